package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/ops/bench/peers/load"
)

const (
	rowElections = "elections"
	// hogFlag makes this program only use a core.
	hogFlag = "-hog"
	// writersUnderHogs is the number of writers per cluster meanwhile.
	writersUnderHogs = 2
)

// timers are Raft's heartbeat and election timeouts and the leader's lease.
type timers struct{ heartbeat, election, lease time.Duration }

func (t timers) String() string {
	return fmt.Sprintf("%d/%d/%d", t.heartbeat.Milliseconds(), t.election.Milliseconds(), t.lease.Milliseconds())
}

func (t timers) flags() []string {
	return []string{"-heartbeat", t.heartbeat.String(), "-election", t.election.String(), "-lease", t.lease.String()}
}

// timerChoices are the candidates for the defaults: Bivouac's is the last but one,
// hashicorp/raft's own the longest.
func timerChoices() []timers {
	const ms = time.Millisecond
	return []timers{{100 * ms, 100 * ms, 60 * ms}, {150 * ms, 150 * ms, 100 * ms}, {250 * ms, 250 * ms, 150 * ms},
		{500 * ms, 500 * ms, 300 * ms}, {1000 * ms, 1000 * ms, 500 * ms}}
}

// longestStarved is the longest heartbeat timeout that is tried with too few cores: longer ones
// are more stable than shorter ones.
const longestStarved = 250 * time.Millisecond

// elections runs raft alone with the shorter timers, and Bivouac, at the same time, each with
// writers, beside twice as many busy processes as cores. It counts the terms that begin
// although every leader runs. Then it kills the leaders of each choice in turn and records the
// time to a new one.
func (b *bench) elections(ctx context.Context) error {
	var all, starved []*system
	for _, t := range timerChoices() {
		if b.trials == 0 && t.heartbeat > longestStarved {
			continue
		}
		name := sysRaft + " " + t.String()
		s, err := newRaftAlone(strings.ReplaceAll(name, "/", "-"), b.dir, b.programs.alone, t.flags()...)
		if err != nil {
			return err
		}
		s.name = name
		b.running[name] = s
		if err := s.start(ctx); err != nil {
			return err
		}
		s.pause()
		if all = append(all, s); t.heartbeat <= longestStarved {
			starved = append(starved, s)
		}
	}
	ours, err := b.system(ctx, sysBivouac)
	if err != nil {
		return err
	}
	if err := b.starve(ctx, append(starved, ours)); err != nil {
		return err
	}
	for trial := range b.trials {
		for _, s := range all {
			took, err := failoverOf(ctx, s, false)
			if err != nil {
				return err
			}
			fmt.Fprintf(b.stdout, "%-14s trial %2d     %-24s %8.0f ms\n", rowElections, trial, s.name, took.Seconds()*1000)
			if err := b.rec.write(record{
				Row:    rowElections,
				System: s.name,
				Repeat: trial,
				Millis: took.Seconds() * 1000,
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// termed returns a cluster's term as known by one of its nodes.
type termed interface {
	term(ctx context.Context) (uint64, error)
}

// starve counts terms while there are too few cores.
func (b *bench) starve(ctx context.Context, all []*system) error {
	if b.starveFor == 0 {
		return nil
	}
	leaders, before := map[*system]int{}, map[*system]uint64{}
	for _, s := range all {
		s.resume()
		defer s.pause()
	}
	for _, s := range all {
		var err error
		if leaders[s], err = s.settled(ctx); err != nil {
			return err
		}
	}
	stop, err := startHogs(2 * runtime.NumCPU())
	if err != nil {
		return err
	}
	defer stop()
	for _, s := range all {
		if before[s], err = s.driver.(termed).term(ctx); err != nil {
			return err
		}
	}
	results := make([]load.Result, len(all))
	var group errgroup.Group
	for i, s := range all {
		group.Go(func() (err error) {
			o := load.Options{Clients: writersUnderHogs, For: b.starveFor}
			results[i], err = load.Run(ctx, o, s.work(workWrite, leaders[s]))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, s := range all {
		after, err := s.driver.(termed).term(ctx)
		if err != nil {
			return err
		}
		rec := record{Row: rowElections, System: s.name, Load: &results[i], Values: map[string]float64{
			"terms": float64(after - before[s]), "seconds": b.starveFor.Seconds(), "hogs": float64(2 * runtime.NumCPU()),
		}}
		fmt.Fprintf(b.stdout, "%-14s %s starved  %-24s %d new terms; %6.0f writes/s, p99 %.1f ms, longest %.1f ms%s\n",
			rowElections, b.starveFor, s.name,
			after-before[s], results[i].PerS, float64(results[i].P99)/1000, float64(results[i].Max)/1000, failures(results[i]))
		if err := b.rec.write(rec); err != nil {
			return err
		}
	}
	return nil
}

// startHogs starts processes that use a core each.
func startHogs(count int) (stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var hogs []*exec.Cmd
	stop = func() {
		for _, h := range hogs {
			_ = h.Process.Kill()
			_ = h.Wait()
		}
	}
	for range count {
		h := exec.Command(self, hogFlag)
		h.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := h.Start(); err != nil {
			stop()
			return nil, err
		}
		hogs = append(hogs, h)
	}
	return stop, nil
}

// hog uses a core until it is killed.
func hog() {
	runtime.GOMAXPROCS(1)
	for n := uint64(1); n != 0; n += 2 {
	}
}

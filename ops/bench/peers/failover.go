package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"bivouac.dev/bivouac/ops/bench/peers/load"
)

const (
	rowFailover = "failover"
	// probeEvery is the interval of writes through each survivor while there is no leader. Each
	// is sent even if the previous one has no response, so that a hanging request does not hide
	// a cluster that has recovered.
	probeEvery = 10 * time.Millisecond
	// probeLimit bounds one such write.
	probeLimit = 8 * time.Second
)

// failovers kills each system's leader in turn, as often as there are trials, and records the
// time until a survivor acknowledges a write that began after the kill.
func (b *bench) failovers(ctx context.Context) error {
	for trial := range b.trials {
		for _, name := range []string{sysBivouac, sysEtcd, sysRqlite, sysHandler} {
			if !b.wants(name) {
				continue
			}
			took, err := b.failover(ctx, name)
			if err != nil {
				return fmt.Errorf("failover of %s, trial %d: %w", name, trial, err)
			}
			fmt.Fprintf(b.stdout, "%-14s trial %2d     %-17s %8.0f ms\n", rowFailover, trial, name, took.Seconds()*1000)
			if err := b.rec.write(record{
				Row:    rowFailover,
				System: name,
				Repeat: trial,
				Millis: took.Seconds() * 1000,
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) failover(ctx context.Context, name string) (time.Duration, error) {
	s, err := b.system(ctx, name)
	if err != nil {
		return 0, err
	}
	return failoverOf(ctx, s, name != sysHandler)
}

// failoverOf kills the leader, waits for the write, starts the node again and waits until all
// serve. Nodes that do not forward accept writes once they lead.
func failoverOf(ctx context.Context, s *system, forwards bool) (time.Duration, error) {
	s.resume()
	defer s.pause()
	leader, err := s.settled(ctx)
	if err != nil {
		return 0, err
	}
	var survivors []load.Do
	for i := range s.nodes {
		if i == leader {
			continue
		}
		do := s.work(workWrite, i)
		if forwards { // with connections in use
			if err := do(ctx, 0, 0); err != nil {
				return 0, err
			}
		}
		survivors = append(survivors, do)
	}
	begin := time.Now()
	if err := s.nodes[leader].Kill(); err != nil {
		return 0, err
	}
	took, err := firstAcknowledged(ctx, begin, survivors)
	if err != nil {
		return 0, err
	}
	if err := s.nodes[leader].start(); err != nil {
		return 0, err
	}
	_, err = s.settled(ctx)
	return took, err
}

// firstAcknowledged writes through all until one acknowledges.
func firstAcknowledged(ctx context.Context, begin time.Time, through []load.Do) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	var sent sync.WaitGroup
	defer sent.Wait()
	defer cancel()
	won := make(chan time.Duration, 1)
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for n := 1; ; n++ {
		for i, do := range through {
			sent.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, probeLimit)
				defer cancel()
				if do(ctx, i, n) == nil {
					select {
					case won <- time.Since(begin):
					default:
					}
				}
			})
		}
		select {
		case took := <-won:
			return took, nil
		case <-ctx.Done():
			return 0, errors.New("no write was acknowledged any more")
		case <-tick.C:
		}
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/bench/peers/load"
)

// The kinds of requests.
const (
	workWrite = "write"
	workRead  = "read"
	workStale = "stale"
)

// readyLimit bounds every wait for a cluster.
const readyLimit = time.Minute

// driver is the part that differs between systems.
type driver interface {
	// leader returns the leading node once all running nodes agree and serve.
	leader(ctx context.Context) (int, error)
	// prepare creates the data of the work, once, when all nodes serve.
	prepare(ctx context.Context) error
	// work returns the requests of one kind to one node, nil if there are none.
	work(kind string, node int) load.Do
	close()
}

// system is a running cluster, or a single process that stands for one.
type system struct {
	name  string
	nodes []*process
	driver
}

// newSystem names the nodes' programs; args returns each one's arguments.
func newSystem(name, dir, program string, count int, args func(i int, dir string) []string) *system {
	s := &system{name: name}
	for i := range count {
		at := filepath.Join(dir, name, fmt.Sprintf("n%d", i))
		s.nodes = append(s.nodes, &process{Command: local.Command{
			Name: fmt.Sprintf("%s-n%d", name, i), Dir: at, Path: program, Args: args(i, at), Log: filepath.Join(at, "log"),
		}})
	}
	return s
}

// start starts all nodes and waits until they serve.
func (s *system) start(ctx context.Context) error {
	for _, n := range s.nodes {
		if err := n.start(); err != nil {
			return err
		}
	}
	if _, err := s.settled(ctx); err != nil {
		return err
	}
	return s.prepare(ctx)
}

// settled waits for a leader that is stable for a while.
func (s *system) settled(ctx context.Context) (leader int, err error) {
	last, since := -1, time.Now()
	err = until(ctx, readyLimit, s.name+" has a leader", func(ctx context.Context) error {
		for _, n := range s.nodes {
			if n.Process != nil && !n.Alive() {
				return fmt.Errorf("%s ended:\n%s", n.Name, local.Tail(n.Log, 10))
			}
		}
		var err error
		if leader, err = s.leader(ctx); err != nil {
			last = -1
			return err
		}
		if leader != last {
			last, since = leader, time.Now()
		}
		if time.Since(since) < 300*time.Millisecond {
			return errors.New("it leads only just now")
		}
		return nil
	})
	return leader, err
}

// pause and resume stop and continue all nodes at once, so that a system uses nothing while
// another is measured. Leadership may change.
func (s *system) pause()  { s.signal(syscall.SIGSTOP) }
func (s *system) resume() { s.signal(syscall.SIGCONT) }

func (s *system) signal(what syscall.Signal) {
	for _, n := range s.nodes {
		_ = n.Signal(what)
	}
}

func (s *system) stop() {
	s.close()
	for _, n := range s.nodes {
		_ = n.Kill()
	}
}

// usage sums over the nodes.
func (s *system) usage() (cpu time.Duration, resident int64) {
	for _, n := range s.nodes {
		c, r := n.usage()
		cpu, resident = cpu+c, resident+r
	}
	return cpu, resident
}

// freeAddresses returns that many free addresses on the loopback interface.
func freeAddresses(count int) ([]string, error) {
	list := make([]string, count)
	for i := range list {
		port, err := local.FreePort()
		if err != nil {
			return nil, err
		}
		list[i] = net.JoinHostPort("127.0.0.1", fmt.Sprint(port))
	}
	return list, nil
}

// users is the number of rows that are written and read: the clients share them.
const users = 64

// document is the settings that every system stores, of about 512 bytes. fresh makes each one
// different. The command that Bivouac stores around it is larger.
func document(user, fresh int) []byte {
	return fmt.Appendf(nil, documentFormat, 1+fresh%1000, user, user)
}

const documentFormat = `{"language":"en","agent":"CodeActAgent","max_iterations":%d,"security_analyzer":"llm",` +
	`"confirmation_mode":true,"llm_model":"anthropic/claude-sonnet-4",` +
	`"llm_base_url":"https://llm-gateway.platform.example.org/v1/anthropic/claude-sonnet-4",` +
	`"enable_default_condenser":true,"enable_sound_notifications":false,"enable_solvability_analysis":true,` +
	`"user_consents_to_analytics":false,"max_budget_per_task":12.5,"condenser_max_size":240,"v1_enabled":true,` +
	`"git_user_name":"User Number %d","git_user_email":"user-%d@example.org"}`

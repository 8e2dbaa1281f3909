// Package raftfsm makes the store what hashicorp/raft applies its log to, and has the format of the
// log's entries.
package raftfsm

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/fsm"
)

// FSM adapts the store to hashicorp/raft. Raft calls every method but Persist from one
// goroutine.
//
// It implements raft.ConfigurationStore, and ApplyBatch receives membership entries too. So the
// store's index reaches every commit index except those of the no-ops that begin a term; term.open
// covers these.
type FSM struct {
	store *fsm.Store
	// Took observes the seconds of each batch; nil does not. Set it and OnApply before Raft starts.
	Took prometheus.Observer
	// OnApply is called for each command, with its refusal, nil for none; it may be nil.
	OnApply func(fsm.Entry, *fsm.Error)
	// Events keeps the events of conversations; nil for a program that keeps the state alone. Set it before
	// Raft starts.
	Events Events
	// moving is held while the state and the store of events move together.
	moving sync.Mutex
	// restores counts Restore.
	restores atomic.Uint64
	// failed is closed when an entry can't be decoded or applied. From then on nothing is applied and
	// no snapshot is taken. Raft would count the entry as applied, and a snapshot would make the gap
	// permanent.
	failed chan struct{}

	mu  sync.Mutex
	err error
	// decoded holds the commands of entries in flight, by the address of the entry's first byte.
	// hashicorp/raft passes a leader's entry to the FSM in the same memory.
	decoded map[*byte][]fsm.Command
}

var (
	_ raft.BatchingFSM        = (*FSM)(nil)
	_ raft.ConfigurationStore = (*FSM)(nil)
)

// Events is the store of events as the log needs it (cluster/eventstore).
type Events interface {
	// Write stores what the log up to an index did to events. It does not wait for the disk.
	Write(index uint64, changes []fsm.EventChange) error
	// Flush returns when all that was written before is on the disk.
	Flush() error
}

// Applied is the result of one command of an entry. A raft.ApplyFuture carries it back to Propose.
type Applied struct {
	Index  uint64
	Term   uint64
	Result fsm.Result
	Err    *fsm.Error
}

// New returns the FSM of a store, which only it may write from then on.
func New(store *fsm.Store) *FSM {
	return &FSM{store: store, failed: make(chan struct{}), decoded: map[*byte][]fsm.Command{}}
}

// Failure returns the error that stopped the FSM, nil while it runs.
func (m *FSM) Failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Failed is closed when an entry or snapshot stops the FSM; then Failure says why.
func (m *FSM) Failed() <-chan struct{} { return m.failed }

// fail stops the FSM; the first error stays.
func (m *FSM) fail(err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.err = err
		close(m.failed)
	}
	return m.err
}

// Apply implements raft.FSM.
func (m *FSM) Apply(l *raft.Log) any { return m.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM. The commands of consecutive entries become one store
// transaction. The response to an entry is an error, or a []Applied with one element for each
// command.
func (m *FSM) ApplyBatch(logs []*raft.Log) []any {
	if m.Took != nil {
		defer func(begin time.Time) { m.Took.Observe(time.Since(begin).Seconds()) }(time.Now())
	}
	responses := make([]any, len(logs))
	var run []int // the entries gathered for one transaction
	var entries []fsm.Entry
	flush := func() error {
		outcomes, err := m.apply(entries)
		if err == nil {
			answers := make([]Applied, len(outcomes))
			for i, o := range outcomes {
				if m.OnApply != nil {
					m.OnApply(entries[i], o.Err)
				}
				answers[i] = Applied{Index: entries[i].Index, Result: o.Result, Err: o.Err}
			}
			for _, at := range run {
				n := 0
				for n < len(answers) && answers[n].Index == logs[at].Index {
					answers[n].Term = logs[at].Term
					n++
				}
				responses[at], answers = answers[:n:n], answers[n:]
			}
		}
		run, entries = run[:0], entries[:0]
		return err
	}
	err := m.Failure()
	for i, l := range logs {
		if err != nil {
			break
		}
		if l.Type != raft.LogCommand { // membership
			if err = flush(); err == nil {
				m.store.SetIndex(l.Index)
				responses[i] = []Applied{{Index: l.Index, Term: l.Term}}
			}
			continue
		}
		commands, unknown := m.commandsOf(l)
		if unknown != nil {
			if err = flush(); err == nil {
				err = m.fail(unknown)
			}
			continue
		}
		run = append(run, i)
		for _, cmd := range commands {
			entries = append(entries, fsm.Entry{Index: l.Index, Command: cmd})
		}
	}
	if err == nil {
		err = flush()
	}
	if err != nil {
		for i := range responses {
			if responses[i] == nil {
				responses[i] = err
			}
		}
	}
	return responses
}

// KeepDecoded hands in the commands of an entry before it is appended, so that they are not decoded
// again. DropDecoded must follow.
func (m *FSM) KeepDecoded(entry []byte, commands []fsm.Command) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.decoded[&entry[0]] = commands
}

// DropDecoded undoes KeepDecoded.
func (m *FSM) DropDecoded(entry []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.decoded, &entry[0])
}

// commandsOf decodes an entry, unless KeepDecoded was called for the same memory.
func (m *FSM) commandsOf(l *raft.Log) ([]fsm.Command, error) {
	if len(l.Data) > 0 {
		m.mu.Lock()
		commands := m.decoded[&l.Data[0]]
		m.mu.Unlock()
		if commands != nil {
			return commands, nil
		}
	}
	return CommandsIn(l)
}

// apply applies entries in one transaction. The store panics on impossible state and stays
// unchanged; apply turns the panic into an error that stops the node.
func (m *FSM) apply(entries []fsm.Entry) (outcomes []fsm.Outcome, err error) {
	if len(entries) == 0 {
		return nil, nil
	}
	defer func() {
		if p := recover(); p != nil {
			outcomes, err = nil, m.fail(fmt.Errorf("applying log entries %d to %d: %v\n%s",
				entries[0].Index, entries[len(entries)-1].Index, p, debug.Stack()))
		}
	}()
	m.moving.Lock()
	defer m.moving.Unlock()
	outcomes = m.store.ApplyBatch(entries)
	if err := m.writeEvents(entries[len(entries)-1].Index); err != nil {
		return nil, err
	}
	return outcomes, nil
}

// writeEvents stores what the last commands did to events. An error is none of their results: it stops the node,
// as one of its log does.
func (m *FSM) writeEvents(index uint64) error {
	changes := m.store.EventChanges()
	if m.Events == nil || len(changes) == 0 {
		return nil
	}
	if err := m.Events.Write(index, changes); err != nil {
		return m.fail(err)
	}
	return nil
}

// Together runs fn with a view while the store of events has what the view has, or more if the log is
// being applied again. The log waits for fn.
func (m *FSM) Together(fn func(*fsm.View) error) error {
	m.moving.Lock()
	defer m.moving.Unlock()
	return fn(m.store.View())
}

// StoreConfiguration implements raft.ConfigurationStore.
func (m *FSM) StoreConfiguration(index uint64, _ raft.Configuration) {
	if m.Failure() == nil {
		m.store.SetIndex(index)
	}
}

// Snapshot implements raft.FSM.
func (m *FSM) Snapshot() (raft.FSMSnapshot, error) {
	if err := m.Failure(); err != nil {
		return nil, fmt.Errorf("no snapshot of a stopped store: %w", err)
	}
	return &fsmSnapshot{m, m.store.Snapshot()}, nil
}

// Restore implements raft.FSM. Like an entry, a snapshot that can't be read stops the node.
func (m *FSM) Restore(r io.ReadCloser) error {
	m.moving.Lock()
	defer m.moving.Unlock()
	m.restores.Add(1)
	err := m.store.Restore(r)
	if err = errors.Join(err, r.Close()); err != nil {
		return m.fail(fmt.Errorf("restoring snapshot: %w", err))
	}
	return nil
}

// Restores counts the snapshots that replaced the whole state.
func (m *FSM) Restores() uint64 { return m.restores.Load() }

type fsmSnapshot struct {
	fsm      *FSM
	snapshot *fsm.Snapshot
}

// Persist implements raft.FSMSnapshot; it runs beside Apply. Raft then drops the log before the snapshot,
// so the snapshot is not finished before the events of that log are on the disk.
func (s *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	if err := s.snapshot.Persist(sink); err != nil {
		return errors.Join(fmt.Errorf("writing snapshot: %w", err), sink.Cancel())
	}
	if s.fsm.Events != nil {
		if err := s.fsm.Events.Flush(); err != nil {
			return errors.Join(s.fsm.fail(err), sink.Cancel())
		}
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (s *fsmSnapshot) Release() {}

package cluster

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/fsm"
)

// machine is the store as hashicorp/raft wants it. Raft calls every method but
// Persist from one goroutine.
//
// It implements raft.ConfigurationStore (through ApplyBatch, which gets
// membership entries too) so that the store's index reaches every commit index
// but those of the no-ops that begin a term; term.open covers these.
type machine struct {
	store *fsm.Store
	// failed is closed when an entry could not be understood. From then on
	// nothing is applied and no snapshot is taken: Raft would go on counting
	// the entry as applied, and a snapshot would make the gap permanent.
	failed chan struct{}

	mu  sync.Mutex
	err error
	// expected are entries on their way whose commands are known, by the place of
	// their first byte: hashicorp/raft hands a leader's entry to the FSM in the
	// memory it came in.
	expected map[*byte][]fsm.Command
}

var (
	_ raft.BatchingFSM        = (*machine)(nil)
	_ raft.ConfigurationStore = (*machine)(nil)
)

// applied is what one command of an entry came to. A raft.ApplyFuture carries
// it back to Propose.
type applied struct {
	index  uint64
	term   uint64
	result fsm.Result
	err    *fsm.Error
}

func newMachine(store *fsm.Store) *machine {
	return &machine{store: store, failed: make(chan struct{}), expected: map[*byte][]fsm.Command{}}
}

// failure gives the error that stopped the machine, nil while it runs.
func (m *machine) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

func (m *machine) fail(err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.err = err
		close(m.failed)
	}
	return m.err
}

// Apply implements raft.FSM.
func (m *machine) Apply(l *raft.Log) any { return m.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM: the commands of consecutive entries
// become one store transaction. The answer to an entry is a []applied with one
// element for each of its commands, or an error.
func (m *machine) ApplyBatch(logs []*raft.Log) []any {
	responses := make([]any, len(logs))
	var run []int // the entries gathered for one transaction
	var entries []fsm.Entry
	flush := func() error {
		outcomes, err := m.apply(entries)
		if err == nil {
			answers := make([]applied, len(outcomes))
			for i, o := range outcomes {
				answers[i] = applied{index: entries[i].Index, result: o.Result, err: o.Err}
			}
			for _, at := range run {
				n := 0
				for n < len(answers) && answers[n].index == logs[at].Index {
					answers[n].term = logs[at].Term
					n++
				}
				responses[at], answers = answers[:n:n], answers[n:]
			}
		}
		run, entries = run[:0], entries[:0]
		return err
	}
	err := m.failure()
	for i, l := range logs {
		if err != nil {
			break
		}
		if l.Type != raft.LogCommand { // membership
			if err = flush(); err == nil {
				m.store.SetIndex(l.Index)
				responses[i] = []applied{{index: l.Index, term: l.Term}}
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

// expect hands in the commands that were read from an entry before it was
// appended, so that they need not be read again. It must be followed by forget.
func (m *machine) expect(entry []byte, commands []fsm.Command) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expected[&entry[0]] = commands
}

// forget undoes expect.
func (m *machine) forget(entry []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.expected, &entry[0])
}

// commandsOf reads an entry, unless it is in this very memory one that was read
// before.
func (m *machine) commandsOf(l *raft.Log) ([]fsm.Command, error) {
	if len(l.Data) > 0 {
		m.mu.Lock()
		commands := m.expected[&l.Data[0]]
		m.mu.Unlock()
		if commands != nil {
			return commands, nil
		}
	}
	return commandsIn(l)
}

// apply turns a panic of the store, which means impossible state and leaves the
// store as it was, into the node's orderly end.
func (m *machine) apply(entries []fsm.Entry) (outcomes []fsm.Outcome, err error) {
	if len(entries) == 0 {
		return nil, nil
	}
	defer func() {
		if p := recover(); p != nil {
			outcomes, err = nil, m.fail(fmt.Errorf("applying log entries %d to %d: %v\n%s",
				entries[0].Index, entries[len(entries)-1].Index, p, debug.Stack()))
		}
	}()
	return m.store.ApplyBatch(entries), nil
}

// StoreConfiguration implements raft.ConfigurationStore.
func (m *machine) StoreConfiguration(index uint64, _ raft.Configuration) {
	if m.failure() == nil {
		m.store.SetIndex(index)
	}
}

// Snapshot implements raft.FSM.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	if err := m.failure(); err != nil {
		return nil, fmt.Errorf("no snapshot of a stopped store: %w", err)
	}
	return &machineSnapshot{m.store.Snapshot()}, nil
}

// Restore implements raft.FSM. A snapshot this program can't read stops the
// node, like an entry.
func (m *machine) Restore(r io.ReadCloser) error {
	err := m.store.Restore(r)
	if err = errors.Join(err, r.Close()); err != nil {
		return m.fail(fmt.Errorf("restoring snapshot: %w", err))
	}
	return nil
}

type machineSnapshot struct{ snapshot *fsm.Snapshot }

// Persist implements raft.FSMSnapshot; it runs beside Apply.
func (s *machineSnapshot) Persist(sink raft.SnapshotSink) error {
	if err := s.snapshot.Persist(sink); err != nil {
		return errors.Join(fmt.Errorf("writing snapshot: %w", err), sink.Cancel())
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (s *machineSnapshot) Release() {}

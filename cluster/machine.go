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
	mu     sync.Mutex
	err    error
}

var (
	_ raft.BatchingFSM        = (*machine)(nil)
	_ raft.ConfigurationStore = (*machine)(nil)
)

// applied is what a raft.ApplyFuture carries back to Propose.
type applied struct {
	index  uint64
	result fsm.Result
	err    *fsm.Error
}

func newMachine(store *fsm.Store) *machine {
	return &machine{store: store, failed: make(chan struct{})}
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

// ApplyBatch implements raft.BatchingFSM: consecutive commands become one
// store transaction.
func (m *machine) ApplyBatch(logs []*raft.Log) []any {
	responses := make([]any, len(logs))
	entries := make([]fsm.Entry, 0, len(logs))
	first := 0 // position in logs of entries[0]
	flush := func(next int) error {
		outcomes, err := m.apply(entries)
		for i, o := range outcomes {
			responses[first+i] = applied{index: entries[i].Index, result: o.Result, err: o.Err}
		}
		entries, first = entries[:0], next
		return err
	}
	err := m.failure()
	for i, l := range logs {
		if err != nil {
			break
		}
		if l.Type != raft.LogCommand { // membership
			if err = flush(i + 1); err == nil {
				m.store.SetIndex(l.Index)
				responses[i] = applied{index: l.Index}
			}
			continue
		}
		cmd, unknown := decode(l)
		if unknown != nil {
			if err = flush(i); err == nil {
				err = m.fail(unknown)
			}
			continue
		}
		entries = append(entries, fsm.Entry{Index: l.Index, Command: cmd})
	}
	if err == nil {
		err = flush(len(logs))
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

// decode reads an entry and refuses what this program does not know: a command
// type, or a protocol version that announces such types.
func decode(l *raft.Log) (fsm.Command, error) {
	cmd, err := fsm.DecodeCommand(l.Data)
	if raise, ok := cmd.Body.(*fsm.ProtocolRaiseBody); err == nil && ok && raise.Version > fsm.ProtocolVersion {
		err = fmt.Errorf("the cluster moved to protocol version %d and this node knows %d: upgrade it", raise.Version, fsm.ProtocolVersion)
	}
	if err != nil {
		return cmd, fmt.Errorf("applying log entry %d of term %d: %w", l.Index, l.Term, err)
	}
	return cmd, nil
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

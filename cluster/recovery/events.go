package recovery

import (
	"path/filepath"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/eventstore"
	"bivouac.dev/bivouac/fsm"
)

// bodies writes the events of the log that is applied into the node's store of events: the recovery
// replaces that log, and a node that was killed may have them nowhere else. It implements
// raftfsm.Events, and opens the store at the first event.
type bodies struct {
	cfg   cluster.Config
	store *eventstore.Store
}

// Write implements raftfsm.Events.
func (b *bodies) Write(index uint64, changes []fsm.EventChange) (err error) {
	if b.store == nil {
		dir := filepath.Join(b.cfg.DataDir, cluster.EventsDir)
		if b.store, err = eventstore.Open(dir, eventstore.Options{Logger: b.cfg.Logger}); err != nil {
			return err
		}
	}
	return b.store.Write(index, changes)
}

// Flush implements raftfsm.Events.
func (b *bodies) Flush() error {
	if b.store == nil {
		return nil
	}
	return b.store.Flush()
}

// close makes durable what was written.
func (b *bodies) close() error {
	if b.store == nil {
		return nil
	}
	s := b.store
	b.store = nil
	return s.Close()
}

package raftstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"github.com/hashicorp/raft"
)

// The points of Replace at which a test may look at the disk.
const (
	PointNoted   = "noted"   // the note is stored
	PointWritten = "written" // the snapshot is there, its last rename done
)

// note in the stable store announces a Replace.
type note struct {
	// ID is the node's id afterwards, Index the new snapshot's.
	ID    string `json:"id"`
	Index uint64 `json:"index"`
}

// First is the state with which a data directory begins a new cluster of one member.
type First struct {
	// ID and Address are the only member's.
	ID, Address string
	Index, Term uint64
	// Persist writes the state into the snapshot.
	Persist func(raft.SnapshotSink) error
	// At is called at each point; nil outside tests.
	At func(point string)
}

func (f *First) reached(point string) {
	if f.At != nil {
		f.At(point)
	}
}

// Replace makes f the state of the directory. A note comes first, then the snapshot, whose
// last rename decides: the next Open finds the snapshot and finishes, or finds none and
// drops the note.
func (s *Store) Replace(f First) error {
	if _, _, err := net.SplitHostPort(f.Address); err != nil {
		return fmt.Errorf("the peer address %q is no host:port: %w", f.Address, err)
	}
	raw, err := json.Marshal(note{ID: f.ID, Index: f.Index})
	if err != nil {
		return fmt.Errorf("encoding the note of the recovery: %w", err)
	}
	if err := Set(s.Stable, keyRecovery, string(raw)); err != nil {
		return fmt.Errorf("storing the note of the recovery: %w", err)
	}
	f.reached(PointNoted)
	members := raft.Configuration{
		Servers: []raft.Server{{ID: raft.ServerID(f.ID), Address: raft.ServerAddress(f.Address)}},
	}
	// The library asks a transport how an address is written.
	_, plain := raft.NewInmemTransport(raft.ServerAddress(f.Address))
	sink, err := s.Snapshots.Create(raft.SnapshotVersionMax, f.Index, f.Term, members, f.Index, plain)
	if err != nil {
		return err
	}
	if err := f.Persist(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return err
	}
	f.reached(PointWritten)
	return nil
}

// finishRecovery finishes a Replace that was noted, before anything in the directory is
// relied on.
func (s *Store) finishRecovery(snapshots *checkedSnapshots) error {
	raw, err := Get(s.Stable, keyRecovery)
	if err != nil || raw == "" {
		return err
	}
	var n note
	if err := json.Unmarshal([]byte(raw), &n); err != nil {
		return s.watchdog.damaged(snapshots.dir, "%s: %v", keyRecovery, err)
	}
	list, err := snapshots.List()
	if err != nil {
		return fmt.Errorf("listing snapshots: %w", err)
	}
	for _, meta := range list {
		only := meta.Configuration.Servers
		if meta.Index != n.Index || len(only) != 1 || only[0].ID != raft.ServerID(n.ID) {
			continue
		}
		if err := s.mark.snapshot(n.Index); err != nil {
			return err
		}
		if err := Set(s.Stable, KeyNodeID, n.ID); err != nil {
			return fmt.Errorf("storing node id: %w", err)
		}
		if err := Set(s.Stable, KeyPromise, ""); err != nil {
			return fmt.Errorf("storing promise: %w", err)
		}
	}
	if err := Set(s.Stable, keyRecovery, ""); err != nil {
		return fmt.Errorf("ending the recovery: %w", err)
	}
	return nil
}

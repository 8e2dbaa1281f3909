package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/fsm/snapshotfile"
)

// pausePoll is how often a pause looks whether the leader's work has ended.
const pausePoll = 10 * time.Millisecond

// restoreTimeout bounds how long Raft may take to begin a restore.
const restoreTimeout = 30 * time.Second

// RestoreOptions are the operator's options for a restore.
type RestoreOptions struct {
	// SuspendKeys suspends every API key of the file.
	SuspendKeys bool
	// KeepKey stays valid: the key of the restoring operator.
	KeepKey *fsm.APIKey
	// Force restores although the present state of the cluster is lost by it.
	Force bool
}

// Restored describes a finished restore.
type Restored struct {
	fsm.Succeeded
	RestoredEvents
	// Manifest is the file's.
	Manifest snapshotfile.Manifest `json:"manifest"`
}

// Restore replaces the whole state by that of a snapshot file, as the first state of a new history.
// It needs a cluster of one member; others join afterwards with empty data directories. The file is
// read three times. CodeConflict: the cluster has other members, or state that would be lost.
// CodeInvalid: the file is no snapshot, is damaged, or is from a newer program. Both change
// nothing.
func (n *Node) Restore(
	ctx context.Context, file io.ReadSeeker, o RestoreOptions,
) (Restored, error) {
	ctx, leave, err := n.enter(ctx, 0)
	if err != nil {
		return Restored{}, err
	}
	defer leave()
	if err := n.mayRestore(o); err != nil {
		return Restored{}, err
	}
	chains := chainsOf{}
	manifest, store, err := loadFile(file, chains)
	if err != nil {
		return Restored{}, err
	}
	resume, err := n.pauseLeading(ctx)
	if err != nil {
		return Restored{}, err
	}
	done, err := n.restore(manifest, store, chains, o)
	if err == nil {
		if err = n.restoreEvents(ctx, file); err != nil {
			err = fsm.Errorf(fsm.CodeOutcomeUnknown,
				"the state is restored, and its events are not: %v; restore the file again, with force", err)
		}
	}
	resume()
	if err != nil {
		return Restored{}, err
	}
	n.logger.Warn("cluster: the state was restored from a snapshot file", "index", done.Index)
	if !n.awaitOpen(ctx) {
		n.logger.Warn("cluster: the term after the restore is not open yet")
	}
	return done, nil
}

// mayRestore refuses a restore that would split the cluster or destroy state.
func (n *Node) mayRestore(o RestoreOptions) error {
	if members := n.servers(); len(members) != 1 || members[0].ID != n.id {
		return fsm.Errorf(fsm.CodeConflict,
			"the cluster has %d members: a snapshot is restored to a cluster of one, "+
				"and the others join it with empty data directories (%s)",
			len(members), restoreRunbook)
	}
	if n.terms.get() == nil {
		return n.orStopping(fsm.Errorf(fsm.CodeNoLeader, "this node does not lead yet; nothing was done"))
	}
	if o.Force {
		return nil
	}
	for _, t := range n.store.Snapshot().Sizes() {
		switch t.Table {
		case "sandboxes", "conversations", "start_tasks", "settings", "providers", "custom_secrets", "profiles":
			return fsm.Errorf(fsm.CodeConflict,
				"the cluster has a state that would be lost (%d rows of %s): restore to a new cluster, or say --force", t.Rows,
				t.Table)
		}
	}
	return nil
}

// restoreRunbook describes a restore.
const restoreRunbook = "bivouac runbook restore"

// loadFile verifies a snapshot file, loads its state, and fills chains with what its events make.
func loadFile(file io.ReadSeeker, chains chainsOf) (snapshotfile.Manifest, *fsm.Store, error) {
	refused := func(m snapshotfile.Manifest, err error) (snapshotfile.Manifest, *fsm.Store, error) {
		return m, nil, fsm.Errorf(fsm.CodeInvalid, "%v", err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return snapshotfile.Manifest{}, nil, fmt.Errorf("reading the snapshot: %w", err)
	}
	manifest, _, err := snapshotfile.Load(file)
	if err != nil {
		return refused(manifest, err)
	}
	r, err := openFile(file)
	if err != nil {
		return refused(manifest, err)
	}
	r.Events = func(in io.Reader) error { return readEventsFile(in, chains.take) }
	store := fsm.NewStore()
	if err := store.Restore(r.State()); err != nil {
		return refused(manifest, err)
	}
	return manifest, store, nil
}

// restore makes the state the first of a new history and hands it to Raft, while the leader's work
// is paused.
func (n *Node) restore(
	manifest snapshotfile.Manifest, store *fsm.Store, chains chainsOf, o RestoreOptions,
) (Restored, error) {
	r := n.raft.Load()
	term := r.CurrentTerm()
	done := Restored{Manifest: manifest}
	events, left, err := n.lostEvents(store.View(), chains)
	if err != nil {
		return done, err
	}
	done.RestoredEvents = events
	done.Succeeded, err = store.Succeed(fsm.Succession{
		ID: uuid.NewString(), At: n.clock(), Kind: fsm.FindingRestored,
		Detail: fmt.Sprintf("restored from a snapshot of %s, index %d; what happened since is lost",
			manifest.Created.UTC().Format(time.RFC3339), manifest.Index),
		Index: max(manifest.Index, n.store.Index(), r.LastIndex()) + fsm.IndexStep,
		// The next term to open is this one again.
		Term: term - 1, SuspendKeys: o.SuspendKeys, KeepKey: o.KeepKey,
		Revoked: n.store.View().RevokedCertificates(), Events: left,
	})
	if err != nil {
		return done, fsm.Errorf(fsm.CodeConflict, "%v", err)
	}
	scratch, err := raftstore.NewScratch(n.cfg.DataDir)
	if err != nil {
		return done, err
	}
	defer scratch.Close()
	if err := store.Snapshot().Persist(scratch); err != nil {
		return done, fmt.Errorf("writing the state: %w", err)
	}
	size, err := scratch.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = scratch.Seek(0, io.SeekStart)
	}
	if err != nil {
		return done, fmt.Errorf("writing the state: %w", err)
	}
	// hashicorp/raft stores the snapshot at the index after that of the metadata.
	meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: done.Index - 1, Term: term, Size: size}
	switch err := n.replaceState(r, meta, scratch); {
	case errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrNotLeader):
		return done, n.orStopping(
			fsm.Errorf(fsm.CodeNoLeader, "this node does not lead; nothing was done"),
		)
	case err != nil:
		return done, fsm.Errorf(fsm.CodeOutcomeUnknown, "restoring: %v", err)
	}
	return done, nil
}

// replaceState hands a state to Raft. Commands that Raft has taken end before it; later ones are
// checked against its protocol version (readable).
func (n *Node) replaceState(r *raft.Raft, meta *raft.SnapshotMeta, state io.Reader) error {
	n.appending.Lock()
	defer n.appending.Unlock()
	if r.Barrier(restoreTimeout).Error() != nil {
		return raft.ErrNotLeader
	}
	return r.Restore(meta, state, restoreTimeout)
}

// leadPause suspends the leader's work: begun is closed when the term's context has ended, over
// ends the pause.
type leadPause struct {
	begun, over chan struct{}
}

// pauseLeading ends the leader's work on this node and returns when all of it has ended. Raft still
// leads. resume opens the term again, as a new one. If ctx ends first, the term is opened again too.
func (n *Node) pauseLeading(ctx context.Context) (resume func(), err error) {
	p := leadPause{begun: make(chan struct{}), over: make(chan struct{})}
	asking, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	select {
	case n.pauses <- p:
	case <-asking.Done():
		return nil, n.orStopping(
			fsm.Errorf(fsm.CodeNoLeader, "this node does not lead; nothing was done"),
		)
	}
	late := func() (func(), error) {
		close(p.over)
		return nil, n.orStopping(fsm.Errorf(fsm.CodeTimeout, "the leader's work does not end; nothing was done"))
	}
	select {
	case <-p.begun:
	case <-ctx.Done():
		return late()
	}
	for !n.leading.TryLock() { // no new work begins while the term is closed
		select {
		case <-time.After(pausePoll):
		case <-ctx.Done():
			return late()
		}
	}
	return func() { n.leading.Unlock(); close(p.over) }, nil
}

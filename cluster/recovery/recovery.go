// Package recovery makes one surviving disk the whole cluster when a majority of the members is
// lost for good. It writes one snapshot: the disk's state as the first of a new history, with this
// node under a new id as the only member (raftstore.Replace). Its nodes are stopped.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/fsm"
)

// recoverDone is the last point of a recovery at which tests inspect the disk, after those of
// raftstore.Replace.
const recoverDone = "done"

// Recovery is the verified data directory of a stopped node.
type Recovery struct {
	cfg     cluster.Config
	storage raftstore.Store
	disk    Survivor
	// at is called at each point, in tests only.
	at func(point string)
}

// Open opens the data directory of a stopped node and verifies it as a start does.
func Open(cfg cluster.Config) (*Recovery, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if err := mustHoldState(cfg.DataDir); err != nil {
		return nil, err
	}
	storage, err := open(cfg.DataDir, cfg.Logger)
	if err != nil {
		return nil, err
	}
	r := &Recovery{cfg: cfg, storage: storage}
	if r.disk, err = describe(&storage, cfg.DataDir); err != nil {
		return nil, errors.Join(err, storage.Close())
	}
	return r, nil
}

// Disk describes the directory.
func (r *Recovery) Disk() Survivor { return r.disk }

// Close releases the directory.
func (r *Recovery) Close() error { return r.storage.Close() }

// Answering lists the former members, and the nodes at the addresses of RetryJoin, that answer
// within a second as members of a cluster. While one does, this disk must not become another
// cluster.
func (r *Recovery) Answering(ctx context.Context) ([]string, error) {
	self := cluster.Server{Name: r.cfg.NodeName, ID: r.disk.ID, Address: r.cfg.Advertised()}
	return cluster.Answering(ctx, r.cfg, self, r.disk.Members)
}

// Recovered describes a finished recovery.
type Recovered struct {
	fsm.Succeeded
	// Node and ID are those of the only member, at Address.
	Node    string `json:"node"`
	ID      string `json:"id"`
	Address string `json:"address"`
	// LeftOut counts the entries after Until.
	LeftOut uint64 `json:"entries_left_out,omitempty"`
}

// Recover makes this disk the whole cluster, with its state up to the index until, 0 for all of it.
// Entries that were not committed count as committed from then on. On an error the directory is
// unchanged.
func (r *Recovery) Recover(until uint64, detail string) (Recovered, error) {
	if r.disk.Node != r.cfg.NodeName {
		return Recovered{}, fmt.Errorf("the data directory belongs to node %q, this is %q", r.disk.Node, r.cfg.NodeName)
	}
	if until > r.disk.LastIndex {
		return Recovered{}, fmt.Errorf("the disk ends with entry %d, before %d", r.disk.LastIndex, until)
	}
	events := &bodies{cfg: r.cfg}
	state, err := replay(&r.storage, until, events)
	if err = errors.Join(err, events.close()); err != nil {
		return Recovered{}, err
	}
	if state.problem != nil {
		return Recovered{}, fmt.Errorf(
			"%w; it would stop the recovered node too: --until %d leaves it out, with all that follows",
			state.problem,
			state.poisoned-1,
		)
	}
	out := Recovered{Node: r.cfg.NodeName, ID: cluster.NewNodeID(r.cfg.NodeName), Address: r.cfg.Advertised()}
	if until > 0 {
		out.LeftOut = r.disk.LastIndex - until
	}
	out.Succeeded, err = state.store.Succeed(fsm.Succession{
		ID: uuid.NewString(), At: time.Now(), Kind: fsm.FindingRecovered, Detail: detail,
		Index: r.disk.LastIndex + fsm.IndexStep,
	})
	if err != nil {
		return Recovered{}, fmt.Errorf("beginning a new history: %w", err)
	}
	return out, r.install(raftstore.First{
		ID: out.ID, Address: out.Address, Index: out.Index, Term: max(r.disk.LastTerm, r.disk.CurrentTerm),
		Persist: func(sink raft.SnapshotSink) error { return state.store.Snapshot().Persist(sink) }, At: r.at,
	})
}

// install writes the first state and opens the directory again. That finishes the recovery and
// verifies the result.
func (r *Recovery) install(first raftstore.First) error {
	if err := r.storage.Replace(first); err != nil {
		return err
	}
	err := r.storage.Close()
	if err == nil {
		r.storage, err = open(r.cfg.DataDir, r.cfg.Logger)
	}
	if err == nil {
		r.disk, err = describe(&r.storage, r.cfg.DataDir)
	}
	if err == nil && (r.disk.ID != first.ID || r.disk.LastIndex != first.Index) {
		err = fmt.Errorf(
			"the disk is %s at index %d, not %s at %d", r.disk.ID, r.disk.LastIndex, first.ID, first.Index,
		)
	}
	if err != nil {
		return fmt.Errorf("the recovery is done, and reading it back failed: %w", err)
	}
	if r.at != nil {
		r.at(recoverDone)
	}
	return nil
}

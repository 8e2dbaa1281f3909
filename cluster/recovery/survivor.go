package recovery

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/raftfsm"
	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/fsm"
)

// Survivor describes the data directory of a stopped node.
type Survivor struct {
	// Node and ID are the node's, Path is the directory.
	Node string `json:"node"`
	ID   string `json:"id"`
	Path string `json:"path"`
	// Cluster and History are those of the state; empty when it can't be built.
	Cluster string      `json:"cluster"`
	History fsm.History `json:"history"`
	// LastIndex and LastTerm are those of the last entry. Committed is an index that is known to be
	// committed; nothing is known about the entries after it.
	LastIndex uint64 `json:"last_index"`
	LastTerm  uint64 `json:"last_term"`
	Committed uint64 `json:"committed_at_least"`
	// Written is when a leader appended the last entry, by the leader's clock; zero when unknown.
	Written time.Time `json:"written,omitzero"`
	// CurrentTerm is the newest term the node took part in, VotedTerm the newest it voted in. When one
	// is above LastTerm, that term's leader may have written entries that this disk lacks.
	CurrentTerm uint64 `json:"current_term"`
	VotedTerm   uint64 `json:"voted_term"`
	// Members are those of the newest configuration.
	Members []cluster.Server `json:"members"`
	// ProtocolVersion is the state's.
	ProtocolVersion int `json:"protocol_version"`
	// Poisoned is the index of an entry that stops every node, 0 for none; Problem is its error.
	Poisoned uint64 `json:"poisoned,omitempty"`
	Problem  string `json:"problem,omitempty"`
}

// further reports whether s is ahead of o by Raft's election rule.
func (s *Survivor) further(o *Survivor) bool {
	if s.LastTerm != o.LastTerm {
		return s.LastTerm > o.LastTerm
	}
	return s.LastIndex > o.LastIndex
}

// Furthest returns the disk to recover from: no other has an entry that it lacks and that may have
// been acknowledged. It refuses disks of different clusters or histories.
func Furthest(disks []Survivor) (Survivor, error) {
	if len(disks) == 0 {
		return Survivor{}, errors.New("there is no disk to compare")
	}
	best := disks[0]
	for _, d := range disks[1:] {
		switch {
		case d.Cluster != "" && best.Cluster != "" && d.Cluster != best.Cluster:
			return best, fmt.Errorf(
				"the disk of %s is of cluster %s and that of %s of cluster %s", d.Node, d.Cluster, best.Node,
				best.Cluster,
			)
		case d.Cluster != "" && best.Cluster != "" && d.History.ID != best.History.ID:
			return best, fmt.Errorf(
				"the disks of %s and %s are of different histories of the cluster: one was recovered or restored without the other",
				d.Node,
				best.Node,
			)
		case d.further(&best):
			best = d
		}
	}
	return best, nil
}

// Describe describes the data directory of a stopped node and verifies it as a start does.
func Describe(cfg cluster.Config) (Survivor, error) {
	r, err := Open(cfg)
	if err != nil {
		return Survivor{}, err
	}
	return r.Disk(), r.Close()
}

// replayed is the state built from a data directory.
type replayed struct {
	store *fsm.Store
	// index and term are those of the last applied entry.
	index, term uint64
	members     raft.Configuration
	written     time.Time
	// oldest is the index of the oldest snapshot read.
	oldest uint64
	// poisoned is the entry that could not be applied, problem the reason.
	poisoned uint64
	problem  error
}

// replay builds the state up to an index, 0 for all, and writes the events of the log to events, nil
// for nowhere. An entry that can't be applied ends it without an error.
func replay(s *raftstore.Store, until uint64, events raftfsm.Events) (*replayed, error) {
	last, err := s.Logs.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("reading the log: %w", err)
	}
	until = cmp.Or(until, ^uint64(0))
	r := &replayed{store: fsm.NewStore()}
	m := raftfsm.New(r.store)
	m.Events = events
	if err := r.fromSnapshot(s, m, until); err != nil {
		return nil, err
	}
	first, err := s.Logs.FirstIndex()
	if err != nil {
		return nil, fmt.Errorf("reading the log: %w", err)
	}
	if r.index < until && (last > r.index && first > r.index+1 || r.index == 0 && r.oldest > 0) {
		return nil, fmt.Errorf(
			"the state at index %d can't be built any more: the oldest there is is that of index %d", until,
			max(r.oldest, r.index),
		)
	}
	for i := r.index + 1; i <= min(last, until); i++ {
		var l raft.Log
		if err := s.Logs.GetLog(i, &l); err != nil {
			return nil, fmt.Errorf("reading log entry %d: %w", i, err)
		}
		if r.problem = r.apply(m, &l); r.problem != nil {
			r.poisoned = i
			return r, nil
		}
		r.index, r.term = l.Index, l.Term
		if !l.AppendedAt.IsZero() {
			r.written = l.AppendedAt
		}
	}
	r.store.SetIndex(r.index)
	return r, nil
}

// fromSnapshot loads the newest snapshot up to the index.
func (r *replayed) fromSnapshot(s *raftstore.Store, m *raftfsm.FSM, until uint64) error {
	list, err := s.Snapshots.List()
	if err != nil {
		return fmt.Errorf("listing snapshots: %w", err)
	}
	for _, found := range list {
		r.oldest = found.Index
		if found.Index > until {
			continue
		}
		meta, state, err := s.Snapshots.Open(found.ID)
		if err != nil {
			continue // verified already: an older one will do
		}
		if err := m.Restore(state); err != nil {
			return err
		}
		r.index, r.term, r.members = meta.Index, meta.Term, meta.Configuration
		return nil
	}
	return nil
}

// apply applies one entry as the node's Raft does.
func (r *replayed) apply(m *raftfsm.FSM, l *raft.Log) error {
	switch l.Type {
	case raft.LogConfiguration:
		if err := raftstore.Contain(func() error { r.members = raft.DecodeConfiguration(l.Data); return nil }); err != nil {
			return fmt.Errorf("applying log entry %d: %w", l.Index, err)
		}
	case raft.LogCommand:
	default:
		return nil
	}
	if err, failed := m.Apply(l).(error); failed {
		return err
	}
	return nil
}

// describe describes the storage.
func describe(s *raftstore.Store, dir string) (Survivor, error) {
	d := Survivor{Path: dir}
	id, err := raftstore.Get(s.Stable, raftstore.KeyNodeID)
	if err != nil {
		return d, err
	}
	d.ID, d.Node = id, peernet.NodeName(raft.ServerID(id))
	if d.CurrentTerm, err = raftstore.GetUint64(s.Stable, "CurrentTerm"); err != nil {
		return d, err
	}
	if d.VotedTerm, err = raftstore.GetUint64(s.Stable, "LastVoteTerm"); err != nil {
		return d, err
	}
	if d.LastIndex, d.LastTerm, d.Committed, err = reachOf(s); err != nil {
		return d, err
	}
	r, err := replay(s, 0, nil)
	if err != nil {
		return d, err
	}
	v := r.store.View()
	d.Cluster, d.History, d.ProtocolVersion = v.ClusterID(), v.History(), v.ProtocolVersion()
	d.Members, d.Written = cluster.ServersOf(r.members.Servers), r.written
	if r.problem != nil {
		d.Poisoned, d.Problem = r.poisoned, r.problem.Error()
	}
	return d, nil
}

// reachOf returns the last entry's index and term and the newest snapshot's index. Snapshots hold
// committed entries only.
func reachOf(s *raftstore.Store) (index, term, snapshot uint64, err error) {
	list, err := s.Snapshots.List()
	if err != nil {
		return 0, 0, 0, fmt.Errorf("listing snapshots: %w", err)
	}
	if len(list) > 0 {
		index, term, snapshot = list[0].Index, list[0].Term, list[0].Index
	}
	last, err := s.Logs.LastIndex()
	if err != nil || last <= index {
		return index, term, snapshot, err
	}
	var l raft.Log
	if err := s.Logs.GetLog(last, &l); err != nil {
		return 0, 0, 0, fmt.Errorf("reading log entry %d: %w", last, err)
	}
	return last, l.Term, snapshot, nil
}

// mustHoldState refuses a directory in which no node has run.
func mustHoldState(dir string) error {
	path := filepath.Join(dir, "raft.db")
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		return fmt.Errorf(
			"%s holds no state of a node (%s is missing or empty): there is nothing to recover", dir, path,
		)
	}
	return nil
}

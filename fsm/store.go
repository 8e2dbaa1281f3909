package fsm

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-memdb"
)

// Store is the replicated state of one node: the tables behind the Raft log. Only Apply,
// ApplyBatch, SetIndex, Restore and Succeed change it. In a running node only the Raft adapter in
// cluster calls them, one at a time; everything else reads Views. All methods are safe for
// concurrent use.
type Store struct {
	// mu serialises the writers.
	mu       sync.Mutex
	db       *memdb.MemDB
	commands *commandWindow
	usage    map[string]*usage
	// events are what the last batch did to chains of events.
	events []EventChange

	// current is the newest View; writers replace it under mu.
	current atomic.Pointer[View]
	waiters waiters
	// visited counts the rows that View.AllSandboxes has passed over.
	visited atomic.Uint64
}

// usage counts what is bounded per user apart from limits. It is derived from the tables.
type usage struct {
	doneTasks      int
	clientCommands int
	clientWeight   int
}

// meta is the state that belongs to no table.
type meta struct {
	ClusterID       string `json:"cluster_id"`
	Term            uint64 `json:"term"`
	TermNode        string `json:"term_node"`
	ProtocolVersion int    `json:"protocol_version"`
	LastAPIKeyID    int    `json:"last_api_key_id"`

	Installation Installation `json:"installation,omitzero"`
	// Configured: a command has set Installation.
	Configured bool `json:"configured,omitempty"`
	// ConfigIndex is the index at which Installation last changed; 0 below VersionConfig.
	ConfigIndex uint64 `json:"config_index,omitempty"`

	// History is nil below protocol version 3. It is replaced, never changed in place.
	History *history `json:"history,omitempty"`
	// LastCommand is the index of the last command; 0 below protocol version 3.
	LastCommand uint64 `json:"last_command,omitempty"`

	// Backup is the record of the backups.
	Backup Backup `json:"backup,omitzero"`
	// Revoked is appended to and never changed in place.
	Revoked []RevokedCertificate `json:"revoked,omitempty"`
	// Clients are the marked clients by id. It is replaced and never changed in place.
	Clients []ClientMark `json:"clients,omitempty"`

	// Forgotten is the latest time of a command whose id is no longer remembered.
	Forgotten time.Time `json:"forgotten,omitzero"`
}

// NewStore returns an empty store at index 0.
func NewStore() *Store {
	s := &Store{db: newDB(), commands: newCommandWindow(), usage: map[string]*usage{}}
	s.current.Store(&View{
		meta:     meta{ProtocolVersion: 1},
		txn:      s.db.Txn(false),
		epoch:    new(epoch),
		visited:  &s.visited,
		commands: s.commands,
	})
	return s
}

// View returns the newest read-only view. It costs one atomic load.
func (s *Store) View() *View { return s.current.Load() }

// EventChanges returns what the last ApplyBatch did to chains of events, in the order of the log.
func (s *Store) EventChanges() []EventChange {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events
}

// Index returns the Raft log index of the last entry applied.
func (s *Store) Index() uint64 { return s.View().index }

// Visited returns how many rows View.AllSandboxes has passed over, for those who measure what a change
// costs.
func (s *Store) Visited() uint64 { return s.visited.Load() }

// SetIndex records that the log has reached index with an entry that holds no command (a membership
// change). It never moves backwards.
func (s *Store) SetIndex(index uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := *s.View()
	if index <= v.index {
		return
	}
	v.index = index
	s.publish(&v, nil)
}

// Wait returns when Index() has reached index, or with the context's error. A Restore in between
// neither loses a waiter nor wakes one too early.
func (s *Store) Wait(ctx context.Context, index uint64) error {
	if s.Index() >= index {
		return nil
	}
	w := s.waiters.add(index)
	defer s.waiters.remove(w)
	// The index may have moved between the first check and add.
	if s.Index() >= index {
		return nil
	}
	select {
	case <-w.reached:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// publish makes v the newest View. If it begins an epoch, the Changed channel of the Views before it
// is closed. The caller holds mu.
func (s *Store) publish(v *View, begins *epoch) {
	v.visited = &s.visited
	if old := s.View().epoch; begins == nil {
		v.epoch = old
		s.current.Store(v)
	} else {
		v.epoch = begins
		old.end(begins, func() { s.current.Store(v) })
	}
	s.waiters.wake(v.index)
}

// usageOf returns the counters of a user, to be changed in place.
func (s *Store) usageOf(userID string) *usage {
	u := s.usage[userID]
	if u == nil {
		u = &usage{}
		s.usage[userID] = u
	}
	return u
}

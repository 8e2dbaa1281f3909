package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"sync"

	"github.com/hashicorp/raft"
)

// What the members know of each other's disks. Each start of a node draws a
// nonce; a leader knows up to which index each member has acknowledged what is
// committed. It tells all members once a second, and each keeps it on its own
// disk: a node whose disk went back in time is found out by any other that lives,
// before Raft starts (guard.go).

// startsKept is how many of its own starts a node remembers.
const startsKept = 16

// start is one start of a node on its disk. Seq grows by one with each.
type start struct {
	Seq   uint64 `json:"seq"`
	Nonce string `json:"nonce"`
}

// record is what is known of one member.
type record struct {
	// Start is the newest start that was heard of.
	Start start `json:"start"`
	// Acked is the highest committed index that the member has acknowledged: its
	// disk has it.
	Acked uint64 `json:"acked"`
	// Address is where it was last.
	Address string `json:"address"`
}

// witness is a node's own copy of the records.
type witness struct {
	stable raft.StableStore

	// storing guards stored, which is what the disk has; it is taken before mu.
	storing sync.Mutex
	stored  map[raft.ServerID]record

	mu      sync.Mutex
	records map[raft.ServerID]record
	// matched are, on a leader, the indexes up to which members have its log, in
	// term.
	term    uint64
	matched map[raft.ServerID]uint64
	// own are this node's starts, the present one last. passed: nobody has objected
	// to it.
	own    []start
	passed bool
}

func (w *witness) init(stable raft.StableStore) error {
	w.stable, w.matched = stable, map[raft.ServerID]uint64{}
	w.records, w.stored = map[raft.ServerID]record{}, map[raft.ServerID]record{}
	if err := w.read(keyWitness, &w.records); err != nil {
		return err
	}
	maps.Copy(w.stored, w.records)
	return w.read(keyStarts, &w.own)
}

func (w *witness) read(key []byte, into any) error {
	raw, err := getString(w.stable, key)
	if err == nil && raw != "" {
		err = json.Unmarshal([]byte(raw), into)
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", key, err)
	}
	return nil
}

func (w *witness) write(key []byte, value any) error {
	raw, err := json.Marshal(value)
	if err == nil {
		err = w.stable.Set(key, raw)
	}
	if err != nil {
		return fmt.Errorf("storing %s: %w", key, err)
	}
	return nil
}

// begin draws the nonce of this start and stores it.
func (w *witness) begin(nonce string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := start{Seq: 1, Nonce: nonce}
	if len(w.own) > 0 {
		next.Seq = w.own[len(w.own)-1].Seq + 1
	}
	own := append(w.own[:len(w.own):len(w.own)], next)
	own = own[max(0, len(own)-startsKept):]
	if err := w.write(keyStarts, own); err != nil {
		return err
	}
	w.own = own
	return nil
}

// starts gives this node's starts, the present one last.
func (w *witness) starts() []start {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.own
}

// present is the start of this process, zero before begin.
func (w *witness) present() start {
	if own := w.starts(); len(own) > 0 {
		return own[len(own)-1]
	}
	return start{}
}

// pass notes that nobody has objected to the present start.
func (w *witness) pass() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passed = true
}

// told is the present start once it is certain that it stays: the members must not
// hold one that they object to against the node's true disk.
func (w *witness) told() start {
	w.mu.Lock()
	passed := w.passed
	w.mu.Unlock()
	if !passed {
		return start{}
	}
	return w.present()
}

// match notes, on the leader of a term, that a member has its log up to index.
func (w *witness) match(id raft.ServerID, term, index uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if term > w.term {
		w.term, w.matched = term, map[raft.ServerID]uint64{}
	}
	if term == w.term && index > w.matched[id] {
		w.matched[id] = index
	}
}

// get gives what is known of one member: for the leader of a term, with what it has
// acknowledged up to commit; for others term is 0. What was matched in another term
// may since have been replaced.
func (w *witness) get(id raft.ServerID, term, commit uint64) record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.know(id, term, commit)
}

// know is get. The caller holds mu.
func (w *witness) know(id raft.ServerID, term, commit uint64) record {
	r := w.records[id]
	if term == w.term {
		r.Acked = max(r.Acked, min(w.matched[id], commit))
	}
	return r
}

// heard notes a start of a member, and where it is.
func (w *witness) heard(id raft.ServerID, s start, address string) {
	w.merge(map[raft.ServerID]record{id: {Start: s, Address: address}})
}

// gather gives the records that the leader of a term has of all members. Its own log
// has all that is committed.
func (w *witness) gather(servers []raft.Server, self raft.ServerID, term, commit uint64) map[raft.ServerID]record {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := map[raft.ServerID]record{}
	for _, s := range servers {
		r := w.know(s.ID, term, commit)
		r.Address = located(s.Address)
		if s.ID == self {
			r.Acked = max(r.Acked, commit)
			if len(w.own) > 0 {
				r.Start = w.own[len(w.own)-1]
			}
		}
		all[s.ID] = r
	}
	return all
}

// merge takes what another node knows: of two starts the later, of two indexes the
// higher. Of two starts of one number the first that was heard of stays.
func (w *witness) merge(others map[raft.ServerID]record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, other := range others {
		r := w.records[id]
		if other.Start.Seq > r.Start.Seq {
			r.Start = other.Start
		}
		r.Acked = max(r.Acked, other.Acked)
		if other.Address != "" {
			r.Address = other.Address
		}
		w.records[id] = r
	}
}

// keep forgets whoever is no member; nil members are all there are.
func (w *witness) keep(servers []raft.Server) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(servers) == 0 {
		return
	}
	kept := map[raft.ServerID]record{}
	for _, s := range servers {
		if r, known := w.records[s.ID]; known {
			kept[s.ID] = r
		}
	}
	w.records = kept
}

// store writes what has changed to the disk.
func (w *witness) store() error {
	w.storing.Lock()
	defer w.storing.Unlock()
	w.mu.Lock()
	records := maps.Clone(w.records)
	w.mu.Unlock()
	if maps.Equal(records, w.stored) {
		return nil
	}
	// Without mu: what is acknowledged meanwhile does not wait for the disk.
	if err := w.write(keyWitness, records); err != nil {
		return err
	}
	w.stored = records
	return nil
}

// addresses gives where the members were last.
func (w *witness) addresses() map[raft.ServerID]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := map[raft.ServerID]string{}
	for id, r := range w.records {
		if r.Address != "" {
			known[id] = r.Address
		}
	}
	return known
}

// objection says why a node with these starts and this last index on its disk must
// not run, "" for no reason. It is pure.
func (r record) objection(starts []start, last uint64) string {
	switch newest := r.Start; {
	case newest.Seq > 0 && len(starts) > 0 && newest.Seq > starts[len(starts)-1].Seq:
		return "a later start of this node is known than its disk knows of, so the disk is an older copy"
	case newest.Seq > 0 && !follows(starts, newest):
		return "another start of this node is known in the place of one on its disk, so the disk is a copy of which another has run"
	case r.Acked > last:
		return fmt.Sprintf("it acknowledged log entry %d, and its disk ends with %d, so the disk is an older copy or has lost writes", r.Acked, last)
	}
	return ""
}

// follows reports whether a start is one of the disk's, or too old to tell.
func follows(starts []start, s start) bool {
	for _, own := range starts {
		if own.Seq == s.Seq {
			return own.Nonce == s.Nonce
		}
	}
	return true
}

// Package records has what the members know of each other's disks. Each start of a node has a
// nonce, and a leader knows up to which index each member has acknowledged committed entries. The
// leader sends the records to all members once a second, and each stores them. So any living member
// can detect a disk that was rolled back or copied, before its Raft starts.
package records

import (
	"encoding/json"
	"fmt"
	"maps"
	"sync"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/membership"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/raftstore"
)

// startsKept is how many of its own starts a node keeps.
const startsKept = 16

// Start is one start of a node on its disk. Seq grows by one with each.
type Start struct {
	Seq   uint64 `json:"seq"`
	Nonce string `json:"nonce"`
}

// Record is what is known about one member.
type Record struct {
	// Start is the newest start reported.
	Start Start `json:"start"`
	// Acked is the highest committed index that the member has acknowledged: it is on the member's
	// disk.
	Acked uint64 `json:"acked"`
	// Address is the last known address.
	Address string `json:"address"`
}

// Book is this node's copy of the records of all members.
type Book struct {
	stable raft.StableStore

	// storing guards stored, the records on disk. It is locked before mu.
	storing sync.Mutex
	stored  map[raft.ServerID]Record

	mu      sync.Mutex
	records map[raft.ServerID]Record
	// matched is set on a leader: the indexes up to which members hold the log of term.
	term    uint64
	matched map[raft.ServerID]uint64
	// own are this node's starts, the current one last. passed: the start check has passed.
	own    []Start
	passed bool
}

// Open reads the records from a stable store.
func Open(stable raft.StableStore) (*Book, error) {
	m := &Book{
		stable: stable, matched: map[raft.ServerID]uint64{},
		records: map[raft.ServerID]Record{}, stored: map[raft.ServerID]Record{},
	}
	if err := m.read(raftstore.KeyWitness, &m.records); err != nil {
		return nil, err
	}
	maps.Copy(m.stored, m.records)
	return m, m.read(raftstore.KeyStarts, &m.own)
}

func (m *Book) read(key string, into any) error {
	raw, err := raftstore.Get(m.stable, key)
	if err == nil && raw != "" {
		err = json.Unmarshal([]byte(raw), into)
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", key, err)
	}
	return nil
}

func (m *Book) write(key string, value any) error {
	raw, err := json.Marshal(value)
	if err == nil {
		err = raftstore.Set(m.stable, key, string(raw))
	}
	if err != nil {
		return fmt.Errorf("storing %s: %w", key, err)
	}
	return nil
}

// Begin makes the start with this nonce the current one. storeStarts puts it on the disk once no
// member objects: a disk must not outgrow the starts that the members know by being refused.
func (m *Book) Begin(nonce string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := Start{Seq: 1, Nonce: nonce}
	if len(m.own) > 0 {
		next.Seq = m.own[len(m.own)-1].Seq + 1
	}
	own := append(m.own[:len(m.own):len(m.own)], next)
	m.own = own[max(0, len(own)-startsKept):]
}

// StoreStarts stores this node's starts, the current one among them.
func (m *Book) StoreStarts() error { return m.write(raftstore.KeyStarts, m.Starts()) }

// Starts returns this node's starts, the current one last.
func (m *Book) Starts() []Start {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.own
}

// CurrentStart is the start of this process, zero before begin.
func (m *Book) CurrentStart() Start {
	if own := m.Starts(); len(own) > 0 {
		return own[len(own)-1]
	}
	return Start{}
}

// MarkPassed records that no member objects to the current start.
func (m *Book) MarkPassed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.passed = true
}

// PassedStart is the current start once the start check has passed, else zero. Members must not
// record a start that may still be refused: they would hold it against the node's true disk.
func (m *Book) PassedStart() Start {
	m.mu.Lock()
	passed := m.passed
	m.mu.Unlock()
	if !passed {
		return Start{}
	}
	return m.CurrentStart()
}

// Match records, on the leader of a term, that a member holds its log up to index.
func (m *Book) Match(id raft.ServerID, term, index uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if term > m.term {
		m.term, m.matched = term, map[raft.ServerID]uint64{}
	}
	if term == m.term && index > m.matched[id] {
		m.matched[id] = index
	}
}

// Get returns the record of a member. The leader of a term passes its term and commit index to
// include what the member has acknowledged; others pass term 0. A match from another term does not
// count, as the entries may have been replaced.
func (m *Book) Get(id raft.ServerID, term, commit uint64) Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.know(id, term, commit)
}

// know is get. The caller holds mu.
func (m *Book) know(id raft.ServerID, term, commit uint64) Record {
	r := m.records[id]
	if term == m.term {
		r.Acked = max(r.Acked, min(m.matched[id], commit))
	}
	return r
}

// Heard records a member's start and address.
func (m *Book) Heard(id raft.ServerID, s Start, address string) {
	m.Merge(map[raft.ServerID]Record{id: {Start: s, Address: address}})
}

// Gather returns the leader's records of all members. Its own log holds everything that is
// committed.
func (m *Book) Gather(
	servers []raft.Server, self raft.ServerID, term, commit uint64,
) map[raft.ServerID]Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[raft.ServerID]Record{}
	for _, s := range servers {
		r := m.know(s.ID, term, commit)
		r.Address = membership.Address(s)
		if s.ID == self {
			r.Acked = max(r.Acked, commit)
			if len(m.own) > 0 {
				r.Start = m.own[len(m.own)-1]
			}
		}
		all[s.ID] = r
	}
	return all
}

// Merge takes another node's records: the later start and the higher index. Of two starts with one
// number the first one reported stays.
func (m *Book) Merge(others map[raft.ServerID]Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, other := range others {
		r := m.records[id]
		if other.Start.Seq > r.Start.Seq {
			r.Start = other.Start
		}
		r.Acked = max(r.Acked, other.Acked)
		if other.Address != "" {
			r.Address = other.Address
		}
		m.records[id] = r
	}
}

// Keep drops the records of nodes that are no members. An empty list keeps all.
func (m *Book) Keep(servers []raft.Server) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(servers) == 0 {
		return
	}
	kept := map[raft.ServerID]Record{}
	for _, s := range servers {
		if r, known := m.records[s.ID]; known {
			kept[s.ID] = r
		}
	}
	m.records = kept
}

// Has reports whether there is a record of a node.
func (m *Book) Has(id raft.ServerID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, known := m.records[id]
	return known
}

// Store writes changed records to the disk.
func (m *Book) Store() error {
	m.storing.Lock()
	defer m.storing.Unlock()
	m.mu.Lock()
	records := maps.Clone(m.records)
	m.mu.Unlock()
	if maps.Equal(records, m.stored) {
		return nil
	}
	// Without mu, so that acknowledgements do not wait for the disk.
	if err := m.write(raftstore.KeyWitness, records); err != nil {
		return err
	}
	m.stored = records
	return nil
}

// Addresses returns the members' last known addresses.
func (m *Book) Addresses() map[raft.ServerID]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := map[raft.ServerID]string{}
	for id, r := range m.records {
		if r.Address != "" {
			known[id] = r.Address
		}
	}
	return known
}

// Named reports whether there is a record of a node with the name.
func (m *Book) Named(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.records {
		if peernet.NodeName(id) == name {
			return true
		}
	}
	return false
}

// Clear forgets the disks of the node with a name.
func (m *Book) Clear(name string) error {
	m.mu.Lock()
	for id := range m.records {
		if peernet.NodeName(id) == name {
			m.records[id] = Record{Address: m.records[id].Address}
			delete(m.matched, id)
		}
	}
	m.mu.Unlock()
	return m.Store()
}

// All returns all records.
func (m *Book) All() map[raft.ServerID]Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.records)
}

// Objection says why a node with these starts and this last index on its disk must not run, "" for
// no reason. It is pure.
func (r Record) Objection(starts []Start, last uint64) string {
	switch newest := r.Start; {
	case newest.Seq > 0 && len(starts) > 0 && newest.Seq > starts[len(starts)-1].Seq:
		return "a later start of this node is known than its disk knows of, so the disk is an older copy"
	case newest.Seq > 0 && !follows(starts, newest):
		return "another start of this node is known in the place of one on its disk, " +
			"so the disk is a copy of which another has run"
	case r.Acked > last:
		return fmt.Sprintf(
			"it acknowledged log entry %d, and its disk ends with %d, so the disk is an older copy or has lost writes",
			r.Acked,
			last,
		)
	}
	return ""
}

// follows reports whether a start is one of the disk's, or older than all that a disk keeps. A start
// that the list should have and has not is that of a copy.
func follows(starts []Start, s Start) bool {
	for _, own := range starts {
		if own.Seq == s.Seq {
			return own.Nonce == s.Nonce
		}
	}
	return len(starts) == 0 || s.Seq+startsKept <= starts[len(starts)-1].Seq
}

package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"sync"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/raftstore"
)

// The members keep records of each other's disks. Each start of a node has a nonce, and a leader
// knows up to which index each member has acknowledged committed entries. The leader sends the
// records to all members once a second, and each stores them. So any living member can detect a
// disk that was rolled back or copied, before its Raft starts (guard.go).

// startsKept is how many of its own starts a node keeps.
const startsKept = 16

// start is one start of a node on its disk. Seq grows by one with each.
type start struct {
	Seq   uint64 `json:"seq"`
	Nonce string `json:"nonce"`
}

// record is what is known about one member.
type record struct {
	// Start is the newest start reported.
	Start start `json:"start"`
	// Acked is the highest committed index that the member has acknowledged: it is on the member's
	// disk.
	Acked uint64 `json:"acked"`
	// Address is the last known address.
	Address string `json:"address"`
}

// memberRecords is this node's copy of the records of all members.
type memberRecords struct {
	stable raft.StableStore

	// storing guards stored, the records on disk. It is locked before mu.
	storing sync.Mutex
	stored  map[raft.ServerID]record

	mu      sync.Mutex
	records map[raft.ServerID]record
	// matched is set on a leader: the indexes up to which members hold the log of term.
	term    uint64
	matched map[raft.ServerID]uint64
	// own are this node's starts, the current one last. passed: the start check has passed.
	own    []start
	passed bool
}

func (m *memberRecords) init(stable raft.StableStore) error {
	m.stable, m.matched = stable, map[raft.ServerID]uint64{}
	m.records, m.stored = map[raft.ServerID]record{}, map[raft.ServerID]record{}
	if err := m.read(raftstore.KeyWitness, &m.records); err != nil {
		return err
	}
	maps.Copy(m.stored, m.records)
	return m.read(raftstore.KeyStarts, &m.own)
}

func (m *memberRecords) read(key string, into any) error {
	raw, err := raftstore.Get(m.stable, key)
	if err == nil && raw != "" {
		err = json.Unmarshal([]byte(raw), into)
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", key, err)
	}
	return nil
}

func (m *memberRecords) write(key string, value any) error {
	raw, err := json.Marshal(value)
	if err == nil {
		err = raftstore.Set(m.stable, key, string(raw))
	}
	if err != nil {
		return fmt.Errorf("storing %s: %w", key, err)
	}
	return nil
}

// begin makes the start with this nonce the current one. storeStarts puts it on the disk once no
// member objects: a disk must not outgrow the starts that the members know by being refused.
func (m *memberRecords) begin(nonce string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := start{Seq: 1, Nonce: nonce}
	if len(m.own) > 0 {
		next.Seq = m.own[len(m.own)-1].Seq + 1
	}
	own := append(m.own[:len(m.own):len(m.own)], next)
	m.own = own[max(0, len(own)-startsKept):]
}

// storeStarts stores this node's starts, the current one among them.
func (m *memberRecords) storeStarts() error { return m.write(raftstore.KeyStarts, m.starts()) }

// starts returns this node's starts, the current one last.
func (m *memberRecords) starts() []start {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.own
}

// currentStart is the start of this process, zero before begin.
func (m *memberRecords) currentStart() start {
	if own := m.starts(); len(own) > 0 {
		return own[len(own)-1]
	}
	return start{}
}

// markPassed records that no member objects to the current start.
func (m *memberRecords) markPassed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.passed = true
}

// passedStart is the current start once the start check has passed, else zero. Members must not
// record a start that may still be refused: they would hold it against the node's true disk.
func (m *memberRecords) passedStart() start {
	m.mu.Lock()
	passed := m.passed
	m.mu.Unlock()
	if !passed {
		return start{}
	}
	return m.currentStart()
}

// match records, on the leader of a term, that a member holds its log up to index.
func (m *memberRecords) match(id raft.ServerID, term, index uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if term > m.term {
		m.term, m.matched = term, map[raft.ServerID]uint64{}
	}
	if term == m.term && index > m.matched[id] {
		m.matched[id] = index
	}
}

// get returns the record of a member. The leader of a term passes its term and commit index to
// include what the member has acknowledged; others pass term 0. A match from another term does not
// count, as the entries may have been replaced.
func (m *memberRecords) get(id raft.ServerID, term, commit uint64) record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.know(id, term, commit)
}

// know is get. The caller holds mu.
func (m *memberRecords) know(id raft.ServerID, term, commit uint64) record {
	r := m.records[id]
	if term == m.term {
		r.Acked = max(r.Acked, min(m.matched[id], commit))
	}
	return r
}

// heard records a member's start and address.
func (m *memberRecords) heard(id raft.ServerID, s start, address string) {
	m.merge(map[raft.ServerID]record{id: {Start: s, Address: address}})
}

// gather returns the leader's records of all members. Its own log holds everything that is
// committed.
func (m *memberRecords) gather(
	servers []raft.Server, self raft.ServerID, term, commit uint64,
) map[raft.ServerID]record {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[raft.ServerID]record{}
	for _, s := range servers {
		r := m.know(s.ID, term, commit)
		r.Address = knownAddress(s.Address)
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

// merge takes another node's records: the later start and the higher index. Of two starts with one
// number the first one reported stays.
func (m *memberRecords) merge(others map[raft.ServerID]record) {
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

// keep drops the records of nodes that are no members. An empty list keeps all.
func (m *memberRecords) keep(servers []raft.Server) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(servers) == 0 {
		return
	}
	kept := map[raft.ServerID]record{}
	for _, s := range servers {
		if r, known := m.records[s.ID]; known {
			kept[s.ID] = r
		}
	}
	m.records = kept
}

// has reports whether there is a record of a node.
func (m *memberRecords) has(id raft.ServerID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, known := m.records[id]
	return known
}

// store writes changed records to the disk.
func (m *memberRecords) store() error {
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

// addresses returns the members' last known addresses.
func (m *memberRecords) addresses() map[raft.ServerID]string {
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

// objection says why a node with these starts and this last index on its disk must not run, "" for
// no reason. It is pure.
func (r record) objection(starts []start, last uint64) string {
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
func follows(starts []start, s start) bool {
	for _, own := range starts {
		if own.Seq == s.Seq {
			return own.Nonce == s.Nonce
		}
	}
	return len(starts) == 0 || s.Seq+startsKept <= starts[len(starts)-1].Seq
}

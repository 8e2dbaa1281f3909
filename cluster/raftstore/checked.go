package raftstore

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// crcOf is the CRC32C of the parts; processors have an instruction for it.
func crcOf(parts ...[]byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := uint32(0)
	for _, p := range parts {
		sum = crc32.Update(sum, table, p)
	}
	return sum
}

const (
	// checksumByte ends the Extensions of a log entry that carries a checksum.
	checksumByte = 0xb1
	checksumLen  = 5
	// checksumMagic begins a value of the stable store that carries its checksum.
	// No older value begins so: those are eight bytes or printable text.
	checksumMagic = "\x00\x01bv"
)

// checkedLogs is a log store whose entries carry checksums. It lies below Raft's log cache
// and verifies every entry it reads: neither library notices a flipped bit in an entry.
// The checksum is in Extensions, which hashicorp/raft leaves to such layers.
type checkedLogs struct {
	inner    raft.LogStore
	watchdog *Watchdog
	// path is where the log is.
	path string
	mark *logMark
	// sizes are of the entries that are there.
	sizes logSizes
	// armed is set when everything was verified.
	armed atomic.Bool
}

var _ raft.MonotonicLogStore = (*checkedLogs)(nil)

// IsMonotonic implements raft.MonotonicLogStore: Raft empties the log when it installs a leader's
// snapshot, because raft-wal takes no entry behind a hole.
func (c *checkedLogs) IsMonotonic() bool { return true }

// FirstIndex implements raft.LogStore.
func (c *checkedLogs) FirstIndex() (index uint64, err error) {
	err = c.watchdog.Do("reading "+c.path, func() (err error) { index, err = c.inner.FirstIndex(); return err })
	return index, err
}

// LastIndex implements raft.LogStore.
func (c *checkedLogs) LastIndex() (index uint64, err error) {
	err = c.watchdog.Do("reading "+c.path, func() (err error) { index, err = c.inner.LastIndex(); return err })
	return index, err
}

// GetLog implements raft.LogStore. A damaged entry stops the node (endCaller).
func (c *checkedLogs) GetLog(index uint64, l *raft.Log) error {
	err := Contain(func() error { return c.inner.GetLog(index, l) })
	switch {
	case errors.Is(err, raft.ErrLogNotFound):
		return err // raft asks for entries that may be compacted away
	case err == nil:
		err = verifyEntry(l, index, c.mark.checkedFrom.Load())
	}
	if err != nil {
		err = c.watchdog.fail(c.watchdog.damaged(c.path, "log entry %d: %v", index, err))
		if c.armed.Load() {
			endCaller()
		}
	}
	return err
}

// endCaller ends the goroutine of Raft that called a store, after the watchdog has the failure.
// hashicorp/raft panics when GetLog or SetUint64 returns an error
// (TestRaft_PanicsWhenTheStoreReturnsTheError), in a goroutine where nothing of ours can recover.
// The process would die without saying what is damaged; in bivouac dev three nodes would. A call
// that blocked would hold up raft.Shutdown. So the goroutine ends and the node stops in order.
func endCaller() { runtime.Goexit() }

// StoreLog implements raft.LogStore.
func (c *checkedLogs) StoreLog(l *raft.Log) error { return c.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (c *checkedLogs) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	copies := make([]raft.Log, len(logs))
	checked := make([]*raft.Log, len(logs))
	for i, l := range logs {
		copies[i] = *l
		copies[i].Extensions = withChecksum(l)
		checked[i] = &copies[i]
	}
	last := logs[len(logs)-1].Index
	err := c.watchdog.alter(fmt.Sprintf("writing log entries %d to %d to %s", logs[0].Index, last, c.path),
		func() error { return c.inner.StoreLogs(checked) })
	if err != nil {
		return err
	}
	c.mark.last.Store(last)
	for _, l := range checked {
		c.sizes.add(l)
	}
	return nil
}

// DeleteRange implements raft.LogStore. The mark is lowered before the end of the log is
// deleted. Raft also compacts a log that a leader's snapshot has emptied, from entry 0 on:
// there is nothing to delete.
func (c *checkedLogs) DeleteRange(first, last uint64) error {
	end, err := c.LastIndex()
	if err != nil || end == 0 {
		return err
	}
	if last >= end {
		if err := c.mark.lower(max(first, 1) - 1); err != nil {
			return err
		}
	}
	err = c.watchdog.alter(fmt.Sprintf("deleting log entries %d to %d from %s", first, last, c.path),
		func() error { return c.inner.DeleteRange(first, last) })
	if err == nil {
		c.sizes.remove(first, last)
	}
	return err
}

// withChecksum gives an entry's Extensions, followed by its checksum.
func withChecksum(l *raft.Log) []byte {
	out := make([]byte, 0, len(l.Extensions)+checksumLen)
	out = append(out, l.Extensions...)
	out = binary.BigEndian.AppendUint32(out, checksumOf(l, l.Extensions))
	return append(out, checksumByte)
}

func checksumOf(l *raft.Log, extensions []byte) uint32 {
	var head [17]byte
	binary.BigEndian.PutUint64(head[0:], l.Index)
	binary.BigEndian.PutUint64(head[8:], l.Term)
	head[16] = byte(l.Type)
	return crcOf(head[:], l.Data, extensions)
}

// verifyEntry verifies an entry and removes its checksum. An older program wrote the entries
// before checkedFrom without one.
func verifyEntry(l *raft.Log, index, checkedFrom uint64) error {
	if l.Index != index {
		return fmt.Errorf("it says it is entry %d", l.Index)
	}
	n := len(l.Extensions) - checksumLen
	if n < 0 || l.Extensions[n+checksumLen-1] != checksumByte {
		if index < checkedFrom {
			return nil
		}
		return errors.New("its checksum is missing")
	}
	extensions := l.Extensions[:n:n]
	if want, got := binary.BigEndian.Uint32(l.Extensions[n:]), checksumOf(l, extensions); want != got {
		return fmt.Errorf("its checksum is %08x, computed %08x", want, got)
	}
	if l.Extensions = extensions; n == 0 {
		l.Extensions = nil
	}
	return nil
}

// logMark stores in the stable store where the log ends, because a log that lost its end
// looks whole. It is stored once a second: a loss of the last second's entries goes
// unnoticed, and the leader still has those.
type logMark struct {
	stable raft.StableStore
	last   atomic.Uint64
	// checkedFrom is the first index whose entry carries a checksum.
	checkedFrom atomic.Uint64

	mu sync.Mutex
	// stored is what the stable store says.
	stored markRecord
}

// markRecord is the mark's value in the stable store.
type markRecord struct {
	Last        uint64 `json:"last"`
	CheckedFrom uint64 `json:"sealed_from"`
	// Snapshot is the index of the newest snapshot.
	Snapshot uint64 `json:"snapshot"`
}

// store writes the mark if the log has grown.
func (m *logMark) store() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	record := m.stored
	record.Last = max(record.Last, m.last.Load())
	if record == m.stored {
		return nil
	}
	return m.write(record)
}

// lower lowers the mark before entries are deleted from the end.
func (m *logMark) lower(last uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last.Store(last)
	record := m.stored
	if record.Last <= last {
		return nil
	}
	record.Last = last
	return m.write(record)
}

// snapshot stores the index of a new snapshot.
func (m *logMark) snapshot(index uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	record := m.stored
	record.Snapshot = max(record.Snapshot, index)
	if record == m.stored {
		return nil
	}
	return m.write(record)
}

// write stores the record; the caller holds mu.
func (m *logMark) write(record markRecord) error {
	raw, err := json.Marshal(record)
	if err == nil {
		err = m.stable.Set([]byte(keyMark), raw)
	}
	if err == nil {
		m.stored = record
	}
	return err
}

// checkedStable is a stable store whose values carry checksums: with a damaged vote or term
// a node could vote twice.
type checkedStable struct {
	inner    raft.StableStore
	watchdog *Watchdog
	path     string
	// armed is set when everything was verified.
	armed atomic.Bool
}

// Set implements raft.StableStore.
func (c *checkedStable) Set(key, value []byte) error {
	checked := append([]byte(checksumMagic), value...)
	checked = binary.BigEndian.AppendUint32(checked, crcOf(key, value))
	return c.watchdog.alter(fmt.Sprintf("writing %s to %s", key, c.path),
		func() error { return c.inner.Set(key, checked) })
}

// Get implements raft.StableStore. An older program's value has no checksum.
func (c *checkedStable) Get(key []byte) ([]byte, error) {
	var raw []byte
	err := Contain(func() (err error) { raw, err = c.inner.Get(key); return err })
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return raw, err
	}
	var value []byte
	if err == nil {
		value, _, err = verifiedValue(key, raw)
	}
	if err != nil {
		return nil, c.watchdog.fail(c.watchdog.damaged(c.path, "%s: %v", key, err))
	}
	return value, nil
}

// verifiedValue verifies a value; old means that it carries no checksum.
func verifiedValue(key, raw []byte) (value []byte, old bool, err error) {
	if rest, ok := strings.CutPrefix(string(raw), checksumMagic); ok && len(rest) >= 4 {
		n := len(rest) - 4
		value = []byte(rest[:n])
		if binary.BigEndian.Uint32([]byte(rest[n:])) != crcOf(key, value) {
			return nil, false, errors.New("its checksum is wrong")
		}
		return value, false, nil
	}
	number := len(raw) == 8
	text := strings.TrimFunc(string(raw), func(r rune) bool { return r >= ' ' && r <= '~' }) == ""
	if number || text {
		return raw, true, nil
	}
	return nil, false, errors.New("it is no value of this program")
}

// SetUint64 implements raft.StableStore. Only Raft calls it. A failure stops the node (endCaller).
func (c *checkedStable) SetUint64(key []byte, value uint64) error {
	err := c.Set(key, binary.BigEndian.AppendUint64(nil, value))
	if err != nil && c.armed.Load() {
		endCaller()
	}
	return err
}

// GetUint64 implements raft.StableStore.
func (c *checkedStable) GetUint64(key []byte) (uint64, error) {
	raw, err := c.Get(key)
	if err != nil {
		return 0, err
	}
	if len(raw) != 8 {
		return 0, c.watchdog.fail(c.watchdog.damaged(c.path, "%s has %d bytes", key, len(raw)))
	}
	return binary.BigEndian.Uint64(raw), nil
}

// checkedSnapshots is a snapshot store whose metadata carry a checksum. hashicorp/raft
// verifies the state alone; a flipped bit in the metadata would change the configuration
// or the index.
type checkedSnapshots struct {
	raft.SnapshotStore
	sums     SnapshotSums
	watchdog *Watchdog
	// dir holds the snapshots.
	dir  string
	mark *logMark
	// armed is set when Raft runs: until then Raft takes an older snapshot in place of a
	// damaged one.
	armed atomic.Bool
}

func metaChecksum(
	version raft.SnapshotVersion,
	index, term uint64,
	configuration raft.Configuration,
	configurationIndex uint64,
) string {
	text := fmt.Sprintf("%d %d %d %d %+v", version, index, term, configurationIndex, configuration)
	return fmt.Sprintf("%08x\n", crcOf([]byte(text)))
}

// Create implements raft.SnapshotStore.
func (c *checkedSnapshots) Create(
	version raft.SnapshotVersion,
	index, term uint64,
	configuration raft.Configuration,
	configurationIndex uint64,
	trans raft.Transport,
) (raft.SnapshotSink, error) {
	if err := c.watchdog.Failure(); err != nil {
		return nil, err
	}
	sink, err := c.SnapshotStore.Create(version, index, term, configuration, configurationIndex, trans)
	if err != nil {
		return nil, fmt.Errorf("beginning a snapshot in %s: %w; %s", c.dir, err, c.watchdog.advice(err))
	}
	if err := c.sums.Put(sink.ID(), metaChecksum(version, index, term, configuration, configurationIndex)); err != nil {
		return nil, errors.Join(fmt.Errorf("writing the checksum of snapshot %s in %s: %w; %s", sink.ID(), c.dir, err,
			c.watchdog.advice(err)), sink.Cancel())
	}
	return &checkedSink{SnapshotSink: sink, store: c, index: index}, nil
}

// checkedSink marks the snapshot when it is complete.
type checkedSink struct {
	raft.SnapshotSink
	store *checkedSnapshots
	index uint64
}

// Close implements raft.SnapshotSink. A failed snapshot loses nothing: the log is kept
// until one succeeds.
func (s *checkedSink) Close() error {
	if err := s.SnapshotSink.Close(); err != nil {
		return fmt.Errorf("ending a snapshot in %s: %w; %s", s.store.dir, err, s.store.watchdog.advice(err))
	}
	return s.store.mark.snapshot(s.index)
}

// Open implements raft.SnapshotStore. The library verifies the state, this the metadata.
func (c *checkedSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, state, err := c.SnapshotStore.Open(id)
	if err == nil {
		if err = c.checkMeta(meta); err != nil {
			_ = state.Close()
		}
	}
	if err == nil {
		return meta, state, nil
	}
	err = c.watchdog.damaged(filepath.Join(c.dir, id), "%v", err)
	if c.armed.Load() {
		err = c.watchdog.fail(err)
	}
	return nil, nil, err
}

func (c *checkedSnapshots) checkMeta(meta *raft.SnapshotMeta) error {
	want, err := c.sums.Get(meta.ID)
	if errors.Is(err, os.ErrNotExist) {
		return nil // of an older program
	}
	if err != nil {
		return err
	}
	if got := metaChecksum(meta.Version, meta.Index, meta.Term, meta.Configuration, meta.ConfigurationIndex); got != want {
		return fmt.Errorf("the checksum of meta.json is %q, computed %q", strings.TrimSpace(want), strings.TrimSpace(got))
	}
	return nil
}

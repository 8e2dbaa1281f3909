package cluster

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
	// sealByte ends the Extensions of a log entry that carries its checksum.
	sealByte = 0xb1
	sealLen  = 5
	// sealedMagic begins a value of the stable store that carries its checksum.
	// No older value begins so: those are eight bytes or printable text.
	sealedMagic = "\x00\x01bv"
)

// checkedLogs is a log store each of whose entries carries a checksum, written
// below raft's log cache and verified on every read: neither of the stores
// notices a flipped bit in an entry by itself. The checksum travels in
// Extensions, which hashicorp/raft leaves to such layers.
type checkedLogs struct {
	inner raft.LogStore
	disk  *disk
	// path is where the log is.
	path string
	mark *logMark
	// armed is set when everything was verified.
	armed atomic.Bool
}

var _ raft.MonotonicLogStore = (*checkedLogs)(nil)

// IsMonotonic implements raft.MonotonicLogStore: with either store Raft empties
// the log when it takes a leader's snapshot. What raft-boltdb would keep lies
// before a hole and may differ from what the majority has.
func (c *checkedLogs) IsMonotonic() bool { return true }

// FirstIndex implements raft.LogStore.
func (c *checkedLogs) FirstIndex() (index uint64, err error) {
	err = c.disk.do("reading "+c.path, func() (err error) { index, err = c.inner.FirstIndex(); return err })
	return index, err
}

// LastIndex implements raft.LogStore.
func (c *checkedLogs) LastIndex() (index uint64, err error) {
	err = c.disk.do("reading "+c.path, func() (err error) { index, err = c.inner.LastIndex(); return err })
	return index, err
}

// GetLog implements raft.LogStore. An entry that is not what was written stops
// the node; Raft, which would panic, ends the goroutine that asked for it.
func (c *checkedLogs) GetLog(index uint64, l *raft.Log) error {
	err := contained(func() error { return c.inner.GetLog(index, l) })
	switch {
	case errors.Is(err, raft.ErrLogNotFound):
		return err // raft asks for entries that may be compacted away
	case err == nil:
		err = unseal(l, index, c.mark.sealedFrom.Load())
	}
	if err != nil {
		err = c.disk.fail(c.disk.damaged(c.path, "log entry %d: %v", index, err))
		if c.armed.Load() {
			runtime.Goexit()
		}
	}
	return err
}

// StoreLog implements raft.LogStore.
func (c *checkedLogs) StoreLog(l *raft.Log) error { return c.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (c *checkedLogs) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	copies := make([]raft.Log, len(logs))
	sealed := make([]*raft.Log, len(logs))
	for i, l := range logs {
		copies[i] = *l
		copies[i].Extensions = seal(l)
		sealed[i] = &copies[i]
	}
	last := logs[len(logs)-1].Index
	err := c.disk.alter(fmt.Sprintf("writing log entries %d to %d to %s", logs[0].Index, last, c.path), func() error { return c.inner.StoreLogs(sealed) })
	if err == nil {
		c.mark.last.Store(last)
	}
	return err
}

// DeleteRange implements raft.LogStore. Before the end of the log goes, the note
// of where it ends is taken back. Raft compacts a log that the leader's snapshot
// has emptied as well, from entry 0 on: there is nothing to delete.
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
	return c.disk.alter(fmt.Sprintf("deleting log entries %d to %d from %s", first, last, c.path), func() error { return c.inner.DeleteRange(first, last) })
}

// seal gives an entry's Extensions with its checksum behind them.
func seal(l *raft.Log) []byte {
	out := make([]byte, 0, len(l.Extensions)+sealLen)
	out = append(out, l.Extensions...)
	out = binary.BigEndian.AppendUint32(out, checksumOf(l, l.Extensions))
	return append(out, sealByte)
}

func checksumOf(l *raft.Log, extensions []byte) uint32 {
	var head [17]byte
	binary.BigEndian.PutUint64(head[0:], l.Index)
	binary.BigEndian.PutUint64(head[8:], l.Term)
	head[16] = byte(l.Type)
	return crcOf(head[:], l.Data, extensions)
}

// unseal verifies an entry and takes its checksum off. Entries before sealedFrom
// were written by a program that gave them none.
func unseal(l *raft.Log, index, sealedFrom uint64) error {
	if l.Index != index {
		return fmt.Errorf("it says it is entry %d", l.Index)
	}
	n := len(l.Extensions) - sealLen
	if n < 0 || l.Extensions[n+sealLen-1] != sealByte {
		if index < sealedFrom {
			return nil
		}
		return errors.New("its checksum is missing")
	}
	extensions := l.Extensions[:n:n]
	if want, got := binary.BigEndian.Uint32(l.Extensions[n:]), checksumOf(l, extensions); want != got {
		return fmt.Errorf("its checksum is %08x, its content's %08x", want, got)
	}
	if l.Extensions = extensions; n == 0 {
		l.Extensions = nil
	}
	return nil
}

// logMark notes beside the log, in the stable store, how far it went: a log
// whose end was cut off looks whole. It is written once a second, so the last
// second's entries may be missing without being missed; those a leader still
// has.
type logMark struct {
	stable raft.StableStore
	last   atomic.Uint64
	// sealedFrom is the first index whose entry carries a checksum.
	sealedFrom atomic.Uint64

	mu sync.Mutex
	// noted is what the stable store says.
	noted markRecord
}

// markRecord is the mark's value in the stable store.
type markRecord struct {
	Last       uint64 `json:"last"`
	SealedFrom uint64 `json:"sealed_from"`
	// Snapshot is the index of the newest snapshot.
	Snapshot uint64 `json:"snapshot"`
}

// note writes the mark if the log has grown.
func (m *logMark) note() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	record := m.noted
	record.Last = max(record.Last, m.last.Load())
	if record == m.noted {
		return nil
	}
	return m.write(record)
}

// lower takes the mark back before entries are deleted from the end.
func (m *logMark) lower(last uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last.Store(last)
	record := m.noted
	if record.Last <= last {
		return nil
	}
	record.Last = last
	return m.write(record)
}

// snapshot notes a new snapshot.
func (m *logMark) snapshot(index uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	record := m.noted
	record.Snapshot = max(record.Snapshot, index)
	if record == m.noted {
		return nil
	}
	return m.write(record)
}

// write stores the record; the caller holds mu.
func (m *logMark) write(record markRecord) error {
	raw, err := json.Marshal(record)
	if err == nil {
		err = m.stable.Set(keyMark, raw)
	}
	if err == nil {
		m.noted = record
	}
	return err
}

// checkedStable is a stable store whose values carry a checksum: with a vote or
// a term that changed on the disk a node could vote twice.
type checkedStable struct {
	inner raft.StableStore
	disk  *disk
	path  string
	// armed is set when everything was verified.
	armed atomic.Bool
}

// Set implements raft.StableStore.
func (c *checkedStable) Set(key, value []byte) error {
	sealed := append([]byte(sealedMagic), value...)
	sealed = binary.BigEndian.AppendUint32(sealed, crcOf(key, value))
	return c.disk.alter(fmt.Sprintf("writing %s to %s", key, c.path), func() error { return c.inner.Set(key, sealed) })
}

// Get implements raft.StableStore. An older program's value has no checksum.
func (c *checkedStable) Get(key []byte) ([]byte, error) {
	var raw []byte
	err := contained(func() (err error) { raw, err = c.inner.Get(key); return err })
	if err != nil && err.Error() == "not found" {
		return raw, err
	}
	var value []byte
	if err == nil {
		value, _, err = unsealed(key, raw)
	}
	if err != nil {
		return nil, c.disk.fail(c.disk.damaged(c.path, "%s: %v", key, err))
	}
	return value, nil
}

// unsealed verifies a value; old tells that it carries no checksum.
func unsealed(key, raw []byte) (value []byte, old bool, err error) {
	if rest, ok := strings.CutPrefix(string(raw), sealedMagic); ok && len(rest) >= 4 {
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

// SetUint64 implements raft.StableStore. Only Raft calls it, and panics when the
// term can't be stored; the goroutine ends instead, in order, and the node with
// it.
func (c *checkedStable) SetUint64(key []byte, value uint64) error {
	err := c.Set(key, binary.BigEndian.AppendUint64(nil, value))
	if err != nil && c.armed.Load() {
		runtime.Goexit()
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
		return 0, c.disk.fail(c.disk.damaged(c.path, "%s has %d bytes", key, len(raw)))
	}
	return binary.BigEndian.Uint64(raw), nil
}

// checkedSnapshots is a snapshot store whose metadata carry a checksum too;
// hashicorp/raft checks the state's alone, and a flipped bit in the metadata
// would be another configuration or another index.
type checkedSnapshots struct {
	raft.SnapshotStore
	sums SnapshotSums
	disk *disk
	// dir holds the snapshots.
	dir  string
	mark *logMark
	// armed is set when Raft runs: until then a damaged snapshot is a reason to
	// look for another.
	armed atomic.Bool
}

func metaChecksum(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration, configurationIndex uint64) string {
	text := fmt.Sprintf("%d %d %d %d %+v", version, index, term, configurationIndex, configuration)
	return fmt.Sprintf("%08x\n", crcOf([]byte(text)))
}

// Create implements raft.SnapshotStore.
func (c *checkedSnapshots) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration, configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	if err := c.disk.failure(); err != nil {
		return nil, err
	}
	sink, err := c.SnapshotStore.Create(version, index, term, configuration, configurationIndex, trans)
	if err != nil {
		return nil, fmt.Errorf("beginning a snapshot in %s: %w; %s", c.dir, err, c.disk.advice(err))
	}
	if err := c.sums.Put(sink.ID(), metaChecksum(version, index, term, configuration, configurationIndex)); err != nil {
		return nil, errors.Join(fmt.Errorf("writing the checksum of snapshot %s in %s: %w; %s", sink.ID(), c.dir, err, c.disk.advice(err)), sink.Cancel())
	}
	return &checkedSink{SnapshotSink: sink, store: c, index: index}, nil
}

// checkedSink notes the snapshot when it is complete.
type checkedSink struct {
	raft.SnapshotSink
	store *checkedSnapshots
	index uint64
}

// Close implements raft.SnapshotSink. A snapshot that could not be written costs
// nothing but itself: the log is kept until one is.
func (s *checkedSink) Close() error {
	if err := s.SnapshotSink.Close(); err != nil {
		return fmt.Errorf("ending a snapshot in %s: %w; %s", s.store.dir, err, s.store.disk.advice(err))
	}
	return s.store.mark.snapshot(s.index)
}

// Open implements raft.SnapshotStore: the library checks the state, this the
// metadata.
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
	err = c.disk.damaged(filepath.Join(c.dir, id), "%v", err)
	if c.armed.Load() {
		err = c.disk.fail(err)
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
		return fmt.Errorf("the checksum of meta.json is %q, its content's %q", strings.TrimSpace(want), strings.TrimSpace(got))
	}
	return nil
}

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/raft"
)

// minFree is how much room the data directory needs for a start: a segment of
// the write-ahead log is 64 MiB. With less the node would stop at its first
// write, again and again.
const minFree = 80 << 20

// checkPlace looks at the data directory before anything is opened.
func (d *disk) checkPlace() error {
	free, err := freeBytes(d.dir)
	if err != nil {
		return fmt.Errorf("looking for room in %s: %w", d.dir, err)
	}
	if free < minFree {
		return fmt.Errorf("the file system of %s has %d MiB left and the node needs %d: make room and start it again; nothing that was acknowledged is lost (%s)", d.dir, free>>20, minFree>>20, runbook)
	}
	if err := forgetCached(d.dir); err != nil {
		return fmt.Errorf("looking at %s: %w", d.dir, err)
	}
	if err := d.removeHalfSnapshots(); err != nil {
		return err
	}
	return d.checkFiles()
}

// removeHalfSnapshots removes what a crash left of snapshots in progress:
// nobody else does.
func (d *disk) removeHalfSnapshots() error {
	half, err := filepath.Glob(filepath.Join(d.dir, "snapshots", "*.tmp"))
	for _, path := range half {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if err != nil {
		return fmt.Errorf("removing unfinished snapshots: %w", err)
	}
	return nil
}

// checkFiles verifies the structure of the bbolt files, and that the stable
// store is there if anything else is.
func (d *disk) checkFiles() error {
	bolt := filepath.Join(d.dir, "raft.db")
	info, err := os.Stat(bolt)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return d.checkNothingElse(bolt)
	}
	if err != nil {
		return fmt.Errorf("looking at %s: %w", bolt, err)
	}
	for _, path := range []string{bolt, filepath.Join(d.dir, "wal", "wal-meta.db")} {
		if inUse(path) {
			continue // opening it says so
		}
		keys, err := checkBolt(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return d.damaged(path, "%v", err)
		}
		if path == bolt {
			err = checkKeys(keys)
		}
		if err != nil {
			return d.damaged(path, "%v", err)
		}
	}
	return nil
}

// checkNothingElse: without raft.db there must be no log and no snapshot, or the
// node would take part as another with the state of this one.
func (d *disk) checkNothingElse(bolt string) error {
	for _, pattern := range []string{filepath.Join("wal", "*"), filepath.Join("snapshots", "*", "meta.json")} {
		if found, err := filepath.Glob(filepath.Join(d.dir, pattern)); err == nil && len(found) > 0 {
			return d.damaged(bolt, "it is missing or empty, and %s is there", found[0])
		}
	}
	return nil
}

// stableKeys are the keys that a stable store may have: Raft's and ours.
var stableKeys = []string{"CurrentTerm", "LastVoteTerm", "LastVoteCand", string(keyNodeID), string(keyPromise), string(keyMark), string(keyRecovery),
	string(keyStarts), string(keyWitness), string(keyPlace)}

// checkKeys refuses buckets and keys that nobody wrote.
func checkKeys(keys map[string][]string) error {
	for _, bucket := range keys[""] {
		if bucket != "logs" && bucket != "conf" {
			return fmt.Errorf("it has an unknown part %q", bucket)
		}
	}
	for _, key := range keys["conf"] {
		if !slices.Contains(stableKeys, key) {
			return fmt.Errorf("it has an unknown value %q", key)
		}
	}
	if slices.Contains(keys["conf"], "CurrentTerm") && !slices.Contains(keys["conf"], string(keyNodeID)) {
		return errors.New("it has no node id")
	}
	return nil
}

// loadMark reads the mark and gives older values their checksums.
func (s *Storage) loadMark(stable *checkedStable) error {
	s.mark = &logMark{stable: stable}
	raw, err := getString(stable, keyMark)
	if err != nil {
		return err
	}
	if raw != "" {
		if err := json.Unmarshal([]byte(raw), &s.mark.noted); err != nil {
			return stable.disk.damaged(stable.path, "%s: %v", keyMark, err)
		}
	}
	if s.mark.noted.Last == math.MaxUint64 {
		s.mark.noted.Last = 0 // what programs of protocol version 2 noted of an empty log
	}
	s.mark.last.Store(s.mark.noted.Last)
	for _, key := range stableKeys {
		raw, err := stable.inner.Get([]byte(key))
		if err != nil {
			continue // checked above, or not there
		}
		value, old, err := unsealed([]byte(key), raw)
		switch {
		case err != nil:
			return stable.disk.damaged(stable.path, "%s: %v", key, err)
		case old && s.mark.noted.SealedFrom > 0:
			return stable.disk.damaged(stable.path, "%s has no checksum", key)
		case old:
			if err := stable.Set([]byte(key), value); err != nil {
				return err
			}
		}
	}
	return nil
}

// verify reads everything that Raft will rely on: the newest snapshot that is
// whole, and each entry behind it. What is missing or damaged is an error.
func (s *Storage) verify(logs *checkedLogs, snapshots *checkedSnapshots) error {
	base, refused, err := newestWhole(snapshots)
	if err != nil {
		return err
	}
	first, err := logs.FirstIndex()
	if err != nil {
		return err
	}
	last, err := logs.LastIndex()
	if err != nil {
		return err
	}
	if s.mark.noted.SealedFrom == 0 {
		record := s.mark.noted
		record.SealedFrom = last + 1
		s.mark.mu.Lock()
		err := s.mark.write(record)
		s.mark.mu.Unlock()
		if err != nil {
			return err
		}
	}
	s.mark.sealedFrom.Store(s.mark.noted.SealedFrom)
	d := logs.disk
	reach := max(base, last)
	switch {
	case last > 0 && first > base+1 && refused != nil:
		return refused
	case last > 0 && first > base+1:
		return d.damaged(logs.path, "it begins with entry %d and the newest snapshot ends with %d", first, base)
	case reach < s.mark.noted.Snapshot && refused != nil:
		return refused
	case reach < s.mark.noted.Snapshot:
		return d.damaged(snapshots.dir, "the snapshot of index %d is missing", s.mark.noted.Snapshot)
	case reach < s.mark.noted.Last:
		return d.damaged(logs.path, "it ends with entry %d and had %d", last, s.mark.noted.Last)
	}
	return s.verifyEntries(logs, first, last, base)
}

// verifyEntries reads the log, and drops what a snapshot of the leader's left
// behind: it lies before a hole, or the whole log ends before the snapshot, if
// the node was killed before Raft emptied it. Raft would append behind that, and
// a write-ahead log refuses to.
func (s *Storage) verifyEntries(logs *checkedLogs, first, last, base uint64) error {
	stale := uint64(0)
	if base > last {
		stale = last
	}
	for i := max(first, 1); i <= last && last > 0; i++ {
		var l raft.Log
		switch err := logs.GetLog(i, &l); {
		case errors.Is(err, raft.ErrLogNotFound) && i <= base:
			stale = max(stale, i)
		case errors.Is(err, raft.ErrLogNotFound):
			return logs.disk.damaged(logs.path, "entry %d is missing, there are %d to %d", i, first, last)
		case err != nil:
			return err
		}
	}
	if stale > 0 {
		if err := logs.DeleteRange(first, stale); err != nil {
			return err
		}
	}
	s.mark.last.Store(max(last, base))
	return nil
}

// newestWhole gives the index of the newest snapshot that can be read, 0 for
// none, and why newer ones can't. Raft will find the same one.
func newestWhole(snapshots *checkedSnapshots) (index uint64, refused error, err error) {
	list, err := snapshots.List()
	if err != nil {
		return 0, nil, fmt.Errorf("listing snapshots: %w", err)
	}
	ids, err := snapshots.sums.IDs()
	if err != nil {
		return 0, nil, fmt.Errorf("listing snapshots: %w", err)
	}
	for _, id := range ids { // those that List leaves out
		if !slices.ContainsFunc(list, func(m *raft.SnapshotMeta) bool { return m.ID == id }) {
			refused = snapshots.disk.damaged(filepath.Join(snapshots.dir, id, "meta.json"), "it can't be read, or is not of that snapshot")
		}
	}
	for _, meta := range list {
		_, state, err := snapshots.Open(meta.ID)
		if err != nil {
			refused = errors.Join(refused, err)
			continue
		}
		if err := state.Close(); err != nil {
			return 0, nil, err
		}
		if refused != nil {
			snapshots.disk.logger.Error("cluster: an older snapshot is used", "index", meta.Index, "error", refused)
		}
		return meta.Index, refused, nil
	}
	return 0, refused, nil
}

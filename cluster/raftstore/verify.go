package raftstore

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

// minFree is the free space that a start needs, in bytes: a segment of the write-ahead log
// is 64 MiB. With less the node would stop at its first write, at every start.
const minFree = 80 << 20

// checkDir checks the data directory before anything is opened.
func (w *Watchdog) checkDir() error {
	if err := errors.Join(removeUnfinishedCopy(w.dir), w.removeUnfinished()); err != nil {
		return err
	}
	free, err := Free(w.dir)
	if err != nil {
		return fmt.Errorf("looking for room in %s: %w", w.dir, err)
	}
	if free < minFree {
		return fmt.Errorf(
			"the file system of %s has %d MiB left and the node needs %d: make room and start it again; "+
				"nothing that was acknowledged is lost (%s)",
			w.dir,
			free>>20,
			minFree>>20,
			runbook,
		)
	}
	if err := forgetCached(w.dir); err != nil {
		return fmt.Errorf("looking at %s: %w", w.dir, err)
	}
	return w.checkFiles()
}

// removeUnfinished removes the snapshots that a crash left unfinished. The library does
// not.
func (w *Watchdog) removeUnfinished() error {
	half, err := filepath.Glob(filepath.Join(w.dir, "snapshots", "*.tmp"))
	for _, path := range half {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if err != nil {
		return fmt.Errorf("removing unfinished snapshots: %w", err)
	}
	return nil
}

// checkFiles verifies the structure of the bbolt files, and that the stable store exists if
// anything else does.
func (w *Watchdog) checkFiles() error {
	bolt := filepath.Join(w.dir, "raft.db")
	info, err := os.Stat(bolt)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return w.checkNothingElse(bolt)
	}
	if err != nil {
		return fmt.Errorf("looking at %s: %w", bolt, err)
	}
	for _, path := range []string{bolt, filepath.Join(w.dir, walName, "wal-meta.db")} {
		if inUse(path) {
			continue // opening it says so
		}
		keys, err := checkBolt(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return w.damaged(path, "%v", err)
		}
		if path == bolt {
			err = checkKeys(keys)
		}
		if err != nil {
			return w.damaged(path, "%v", err)
		}
	}
	return nil
}

// checkNothingElse: without raft.db there must be no log and no snapshot, or the node would
// run under a new id with this one's state.
func (w *Watchdog) checkNothingElse(bolt string) error {
	for _, pattern := range []string{
		filepath.Join(walName, "*"), filepath.Join(copyName, "*"), filepath.Join("snapshots", "*", "meta.json"),
	} {
		if found, err := filepath.Glob(filepath.Join(w.dir, pattern)); err == nil && len(found) > 0 {
			return w.damaged(bolt, "it is missing or empty, and %s is there", found[0])
		}
	}
	return nil
}

// stableKeys are the keys that a stable store may have: Raft's and Bivouac's.
func stableKeys() []string {
	return []string{
		"CurrentTerm", "LastVoteTerm", "LastVoteCand",
		KeyNodeID, KeyPromise, keyMark, keyRecovery, KeyStarts, KeyWitness, KeyProofs, keyPlace,
	}
}

// checkKeys refuses buckets and keys that no program wrote.
func checkKeys(keys map[string][]string) error {
	for _, bucket := range keys[""] {
		if bucket != "logs" && bucket != "conf" {
			return fmt.Errorf("it has an unknown part %q", bucket)
		}
	}
	for _, key := range keys["conf"] {
		if !slices.Contains(stableKeys(), key) {
			return fmt.Errorf("it has an unknown value %q", key)
		}
	}
	if slices.Contains(keys["conf"], "CurrentTerm") && !slices.Contains(keys["conf"], KeyNodeID) {
		return errors.New("it has no node id")
	}
	return nil
}

// loadMark reads the mark, and adds checksums to the values of an older program.
func (s *Store) loadMark(stable *checkedStable) error {
	s.mark = &logMark{stable: stable}
	raw, err := Get(stable, keyMark)
	if err != nil {
		return err
	}
	if raw != "" {
		if err := json.Unmarshal([]byte(raw), &s.mark.stored); err != nil {
			return stable.watchdog.damaged(stable.path, "%s: %v", keyMark, err)
		}
	}
	if s.mark.stored.Last == math.MaxUint64 {
		s.mark.stored.Last = 0 // protocol version 2 stored this for an empty log
	}
	s.mark.last.Store(s.mark.stored.Last)
	for _, key := range stableKeys() {
		raw, err := stable.inner.Get([]byte(key))
		if err != nil {
			continue // checked above, or not there
		}
		value, old, err := verifiedValue([]byte(key), raw)
		switch {
		case err != nil:
			return stable.watchdog.damaged(stable.path, "%s: %v", key, err)
		case old && s.mark.stored.CheckedFrom > 0:
			return stable.watchdog.damaged(stable.path, "%s has no checksum", key)
		case old:
			if err := stable.Set([]byte(key), value); err != nil {
				return err
			}
		}
	}
	return nil
}

// verify reads everything that Raft will rely on: the newest readable snapshot, and each
// entry behind it. A missing or damaged one is an error.
func (s *Store) verify(logs *checkedLogs, snapshots *checkedSnapshots) error {
	base, refused, err := s.newestReadable(snapshots)
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
	if s.mark.stored.CheckedFrom == 0 {
		record := s.mark.stored
		record.CheckedFrom = last + 1
		s.mark.mu.Lock()
		err := s.mark.write(record)
		s.mark.mu.Unlock()
		if err != nil {
			return err
		}
	}
	s.mark.checkedFrom.Store(s.mark.stored.CheckedFrom)
	w := logs.watchdog
	reach := max(base, last)
	switch {
	case last > 0 && first > base+1 && refused != nil:
		return refused
	case last > 0 && first > base+1:
		return w.damaged(logs.path, "it begins with entry %d and the newest snapshot ends with %d", first, base)
	case reach < s.mark.stored.Snapshot && refused != nil:
		return refused
	case reach < s.mark.stored.Snapshot:
		return w.damaged(snapshots.dir, "the snapshot of index %d is missing", s.mark.stored.Snapshot)
	case reach < s.mark.stored.Last:
		return w.damaged(logs.path, "it ends with entry %d and had %d", last, s.mark.stored.Last)
	}
	return s.verifyEntries(logs, first, last, base)
}

// verifyEntries reads the log, and deletes what a leader's snapshot made stale: entries
// before a hole, or a log that ends before the snapshot because the node was killed before
// Raft emptied it. Raft would append behind those, which a write-ahead log refuses.
func (s *Store) verifyEntries(logs *checkedLogs, first, last, base uint64) error {
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
			return logs.watchdog.damaged(logs.path, "entry %d is missing, there are %d to %d", i, first, last)
		case err != nil:
			return err
		case s.judgeEntry != nil && s.judgeEntry(&l) != nil:
			return fmt.Errorf("%s: %w", logs.path, s.judgeEntry(&l))
		default:
			logs.sizes.add(&l)
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

// newestReadable gives the index of the newest readable snapshot, 0 for none, and why newer
// ones are not. Raft will take the same one.
func (s *Store) newestReadable(snapshots *checkedSnapshots) (index uint64, refused error, err error) {
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
			refused = snapshots.watchdog.damaged(filepath.Join(snapshots.dir, id, "meta.json"),
				"it can't be read, or is not of that snapshot")
		}
	}
	for _, meta := range list {
		_, state, err := snapshots.Open(meta.ID)
		if err != nil {
			refused = errors.Join(refused, err)
			continue
		}
		if s.judgeState != nil {
			err = s.judgeState(state)
		}
		if err := errors.Join(err, state.Close()); err != nil {
			return 0, nil, fmt.Errorf("snapshot %s: %w", filepath.Join(snapshots.dir, meta.ID), err)
		}
		if refused != nil {
			snapshots.watchdog.logger.Error("cluster: an older snapshot is used", "index", meta.Index, "error", refused)
		}
		return meta.Index, refused, nil
	}
	return 0, refused, nil
}

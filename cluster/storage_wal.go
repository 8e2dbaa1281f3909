package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// openWAL puts a write-ahead log in place of the log in the stable store.
func (s *Storage) openWAL(dir string, logs *checkedLogs, logger hclog.Logger) error {
	walDir := filepath.Join(dir, "wal")
	last, err := logs.LastIndex()
	if err != nil {
		return err
	}
	if last > 0 {
		return fmt.Errorf("data directory %s holds a %q log; set the log store back, or start with an empty directory and let the node join again", dir, LogStoreBoltDB)
	}
	if err := os.MkdirAll(walDir, 0o700); err != nil {
		return fmt.Errorf("making log directory: %w; %s", err, s.disk.advice(err))
	}
	err = finishRotation(walDir)
	var w *wal.WAL
	if err == nil {
		w, err = wal.Open(walDir, wal.WithLogger(logger.Named("wal")))
	}
	if err != nil && s.disk.advisable(err) {
		return fmt.Errorf("opening write-ahead log %s: %w; %s", walDir, err, s.disk.advice(err))
	}
	if err != nil {
		return s.disk.damaged(walDir, "%v", err)
	}
	logs.inner, logs.path = w, walDir
	closeBolt := s.Close
	s.Close = func() error { return errors.Join(w.Close(), closeBolt()) }
	return nil
}

// finishRotation does what the library (raft-wal v0.4.2, runRotate in wal.go)
// says that opening does: the append that fills a segment seals its file, and a
// goroutine notes that in the metadata later. A node that was stopped between
// the two, or had no room for the next file, would be refused every append
// (ErrSealed), for good.
func finishRotation(walDir string) error {
	var meta metadb.BoltMetaDB
	state, err := meta.Load(walDir)
	if err == nil && len(state.Segments) > 0 {
		var sealed bool
		if sealed, err = noteSealed(walDir, &state); err == nil && sealed {
			err = meta.CommitState(state)
		}
	}
	return errors.Join(err, meta.Close())
}

// noteSealed brings the state up to a last file that is sealed, with the next
// one to come, as WAL.rotateSegmentLocked does; opening makes that file.
func noteSealed(walDir string, state *types.PersistentState) (sealed bool, err error) {
	tail := &state.Segments[len(state.Segments)-1]
	if !tail.SealTime.IsZero() {
		return false, nil
	}
	file, err := segment.NewFiler(walDir, fs.New()).RecoverTail(*tail)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	sealed, start, err := file.Sealed()
	last := file.LastIndex()
	if err = errors.Join(err, file.Close()); err != nil || !sealed {
		return false, err
	}
	tail.SealTime, tail.MaxIndex, tail.IndexStart = time.Now(), last, start
	state.Segments = append(state.Segments, types.SegmentInfo{
		ID: state.NextSegmentID, BaseIndex: last + 1, MinIndex: last + 1,
		SizeLimit: tail.SizeLimit, Codec: tail.Codec, CreateTime: time.Now(),
	})
	state.NextSegmentID++
	return true, nil
}

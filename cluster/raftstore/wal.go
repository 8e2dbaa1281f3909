package raftstore

import (
	"bytes"
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

// openWAL replaces the log in the stable store by a write-ahead log.
func (s *Store) openWAL(dir string, logs *checkedLogs, logger hclog.Logger) error {
	walDir := filepath.Join(dir, "wal")
	last, err := logs.LastIndex()
	if err != nil {
		return err
	}
	if last > 0 {
		return otherKind(dir, BoltDB)
	}
	if err := os.MkdirAll(walDir, 0o700); err != nil {
		return fmt.Errorf("making log directory: %w; %s", err, s.watchdog.advice(err))
	}
	err = finishRotation(walDir)
	var w *wal.WAL
	if err == nil {
		w, err = wal.Open(walDir, wal.WithLogger(logger.Named("wal")))
	}
	if err != nil && refusedBySystem(err) {
		return fmt.Errorf("opening write-ahead log %s: %w; %s", walDir, err, s.watchdog.advice(err))
	}
	if err != nil {
		return s.watchdog.damaged(walDir, "%v", err)
	}
	logs.inner, logs.path = w, walDir
	closeBolt := s.Close
	s.Close = func() error { return errors.Join(w.Close(), closeBolt()) }
	return nil
}

// frameHeader is the length of what precedes an index in a file of the log.
const frameHeader = 8

// finishRotation does what the library (raft-wal v0.4.2, runRotate in wal.go) says that
// opening does. The append that fills a segment also writes an index behind it, which seals
// the file; a goroutine records that in the metadata later. After a stop between the two, or
// within the index, or without room for the next file, every append fails (ErrSealed).
func finishRotation(walDir string) error {
	var meta metadb.BoltMetaDB
	state, err := meta.Load(walDir)
	if err == nil && len(state.Segments) > 0 && state.Segments[len(state.Segments)-1].SealTime.IsZero() {
		var sealed bool
		if sealed, err = recordSealed(walDir, &state); err == nil && sealed {
			err = meta.CommitState(state)
		}
	}
	return errors.Join(err, meta.Close())
}

// recordSealed records in the state that the last file is sealed and which one follows, as
// WAL.rotateSegmentLocked does; opening creates that file. An incomplete index is erased:
// nothing behind it was acknowledged.
func recordSealed(walDir string, state *types.PersistentState) (sealed bool, err error) {
	tail := &state.Segments[len(state.Segments)-1]
	filer := segment.NewFiler(walDir, fs.New())
	file, err := filer.RecoverTail(*tail)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	sealed, start, err := file.Sealed()
	if err != nil || !sealed {
		return false, err
	}
	full := *tail
	full.SealTime, full.MaxIndex, full.IndexStart = time.Now(), file.LastIndex(), start
	if !sameEntries(filer, full, file) {
		return false, zero(filepath.Join(walDir, segment.FileName(full)), int64(start)-frameHeader, frameHeader)
	}
	*tail = full
	state.Segments = append(state.Segments, types.SegmentInfo{
		ID: state.NextSegmentID, BaseIndex: full.MaxIndex + 1, MinIndex: full.MaxIndex + 1,
		SizeLimit: full.SizeLimit, Codec: full.Codec, CreateTime: time.Now(),
	})
	state.NextSegmentID++
	return true, nil
}

// sameEntries reports whether the index of a file gives the entries that a scan finds.
func sameEntries(filer *segment.Filer, full types.SegmentInfo, file types.SegmentReader) bool {
	byIndex, err := filer.Open(full)
	if err != nil {
		return false
	}
	defer func() { _ = byIndex.Close() }()
	same := func(i uint64) bool {
		want, err := file.GetLog(i)
		if err != nil {
			return false
		}
		defer func() { _ = want.Close() }()
		got, err := byIndex.GetLog(i)
		if err != nil {
			return false
		}
		defer func() { _ = got.Close() }()
		return bytes.Equal(got.Bs, want.Bs)
	}
	for i := full.MinIndex; i <= full.MaxIndex; i++ {
		if !same(i) {
			return false
		}
	}
	return true
}

// zero overwrites a part of a file, durably.
func zero(path string, at int64, length int) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, length), at)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	wal "github.com/hashicorp/raft-wal"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// openLog puts the write-ahead log in the place of the log in the stable store. The entries that
// an older program left there are verified, and move to it.
func (s *Store) openLog(dir string, logs *checkedLogs, o Options, verify func() error) error {
	m := newMove(dir, logs, o)
	last, err := logs.LastIndex()
	if err != nil {
		return err
	}
	walDir := filepath.Join(dir, walName)
	if last > 0 && !exists(walDir) {
		if err := verify(); err != nil {
			return err
		}
		if err := m.copy(); err != nil {
			return err
		}
	}
	w, err := s.openWAL(walDir, o.Library)
	if err != nil {
		return err
	}
	closeBolt := s.Close
	s.Close = func() error { return errors.Join(w.Close(), closeBolt()) }
	if last > 0 {
		if err := m.finish(w); err != nil {
			return err
		}
	}
	logs.inner, logs.path = w, walDir
	return nil
}

// openWAL makes or opens the directory of the write-ahead log.
func (s *Store) openWAL(walDir string, logger hclog.Logger) (*wal.WAL, error) {
	if !exists(walDir) {
		if err := errors.Join(os.Mkdir(walDir, 0o700), SyncDir(filepath.Dir(walDir))); err != nil {
			return nil, fmt.Errorf("making log directory: %w; %s", err, s.watchdog.advice(err))
		}
	}
	w, err := openFiles(walDir, logger)
	if err != nil && refusedBySystem(err) {
		return nil, fmt.Errorf("opening write-ahead log %s: %w; %s", walDir, err, s.watchdog.advice(err))
	}
	if err != nil {
		return nil, s.watchdog.damaged(walDir, "%v", err)
	}
	return w, nil
}

// exists reports false only of a path that is known not to exist.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// openFiles opens the write-ahead log in a directory.
func openFiles(walDir string, logger hclog.Logger) (*wal.WAL, error) {
	if err := finishRotation(walDir); err != nil {
		return nil, err
	}
	return wal.Open(walDir, wal.WithLogger(logger.Named("wal")))
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
	filer := segment.NewFiler(walDir, walfs.New())
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

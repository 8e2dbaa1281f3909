package raftstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/migrate"
)

const (
	// walName and copyName are the directories of the log and of an unfinished copy.
	walName  = "wal"
	copyName = "wal.copy"
	// moveBytes and moveEntries bound what one step of a move has in memory and in a transaction.
	moveBytes   = 4 << 20
	moveEntries = 1024
	// moveProgress is how often a move that takes long is logged.
	moveProgress = 2 * time.Second
)

// The steps of a move, in their order. Copying and deleting are several each.
const (
	stepBegin    = "begin"
	stepOpen     = "open"
	stepCopy     = "copy"
	stepClose    = "close"
	stepCompare  = "compare"
	stepSync     = "sync"
	stepRename   = "rename"
	stepSyncName = "sync the name"
	stepDelete   = "delete"
)

// move brings the log of an older program from raft.db to the write-ahead log: it copies the
// entries to DIR/wal.copy and compares them; the rename to DIR/wal marks the copy as complete;
// then it deletes them from raft.db. A start that finds DIR/wal.copy begins anew, one that finds
// DIR/wal and entries in raft.db goes on with the deletion.
type move struct {
	dir      string
	bolt     raft.LogStore
	watchdog *Watchdog
	logger   *slog.Logger
	library  hclog.Logger
	// at is called before each step, and its error is the step's; nil outside tests.
	at func(step string) error
	// every is moveProgress, told when progress was logged last.
	every time.Duration
	told  time.Time
	// compared is set when this start has compared the copy.
	compared bool
}

func newMove(dir string, logs *checkedLogs, o Options) *move {
	return &move{
		dir: dir, bolt: logs.inner, watchdog: logs.watchdog, logger: o.Logger, library: o.Library, at: o.at,
		every: cmp.Or(o.every, moveProgress),
	}
}

// step runs one step. The first that fails is the last operation on the disk.
func (m *move) step(name string, run func() error) error {
	what := fmt.Sprintf("moving the log of %s to the write-ahead log", filepath.Join(m.dir, "raft.db"))
	return m.watchdog.alter(what, func() error {
		if m.at != nil {
			if err := m.at(name); err != nil {
				return err
			}
		}
		return run()
	})
}

// copy copies the verified log of raft.db. What a failure leaves is removed: it takes the room
// that a full disk lacks.
func (m *move) copy() error {
	begun := time.Now()
	m.told = begun
	first, last, err := bounds(m.bolt)
	if err != nil || last == 0 {
		return err
	}
	to := filepath.Join(m.dir, copyName)
	err = m.fill(to)
	if err == nil {
		err = m.step(stepRename, func() error { return os.Rename(to, filepath.Join(m.dir, walName)) })
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(to))
	}
	if err := m.step(stepSyncName, func() error { return SyncDir(m.dir) }); err != nil {
		return err
	}
	m.logger.Info("cluster: the log was copied from raft.db to the write-ahead log", "path", m.dir, "index", last,
		"count", last-first+1, "duration", time.Since(begun))
	return nil
}

// fill makes a complete log of the directory.
func (m *move) fill(to string) (err error) {
	err = m.step(stepBegin, func() error { return errors.Join(os.RemoveAll(to), os.Mkdir(to, 0o700)) })
	if err != nil {
		return err
	}
	var w closingLog
	if err = m.step(stepOpen, func() (err error) { w, err = openFiles(to, m.library); return err }); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }() // a second call does nothing
	err = migrate.CopyLogs(context.Background(), movedLog{w, m}, m.bolt, moveBytes, nil)
	if err == nil {
		err = m.step(stepClose, w.Close)
	}
	if err == nil {
		err = m.step(stepCompare, func() error { return m.compareFiles(to) })
	}
	if err == nil {
		m.compared = true
		err = m.step(stepSync, func() error { return SyncDir(to) })
	}
	return err
}

// closingLog is a log store that is closed by itself.
type closingLog interface {
	raft.LogStore
	Close() error
}

// compareFiles compares a log on disk that is not open.
func (m *move) compareFiles(dir string) error {
	w, err := openFiles(dir, m.library)
	if err != nil {
		return err
	}
	return errors.Join(m.compare(w), w.Close())
}

// compare returns an error unless the log has all entries of raft.db and ends with the same.
func (m *move) compare(log raft.LogStore) error {
	first, last, err := bounds(m.bolt)
	begin, end, err2 := bounds(log)
	switch err := errors.Join(err, err2); {
	case err != nil:
		return err
	case last == 0:
		return nil
	case begin > first || end != last:
		return fmt.Errorf("it has entries %d to %d, and raft.db has %d to %d", begin, end, first, last)
	}
	for i := first; i <= last; i++ {
		var want, got raft.Log
		if err := errors.Join(m.bolt.GetLog(i, &want), log.GetLog(i, &got)); err != nil {
			return fmt.Errorf("comparing entry %d: %w", i, err)
		}
		if got.Index != i || got.Term != want.Term || got.Type != want.Type || !bytes.Equal(got.Data, want.Data) ||
			!bytes.Equal(got.Extensions, want.Extensions) || !got.AppendedAt.Equal(want.AppendedAt) {
			return fmt.Errorf("its entry %d is not the one in raft.db", i)
		}
		m.progress(stepCompare, i, last)
	}
	return nil
}

// finish deletes the entries of raft.db, which the write-ahead log has. The file keeps its size; its
// pages are used again.
func (m *move) finish(log raft.LogStore) error {
	m.told = time.Now()
	if !m.compared {
		if err := m.compare(log); err != nil {
			return m.watchdog.damaged(filepath.Join(m.dir, walName), "%v", err)
		}
	}
	for {
		first, last, err := bounds(m.bolt)
		if err != nil || last == 0 {
			return err
		}
		err = m.step(stepDelete, func() error { return m.bolt.DeleteRange(first, min(last, first+moveEntries-1)) })
		if err != nil {
			return err
		}
		m.progress(stepDelete, first, last)
	}
}

// bounds returns the first and the last index; 0 of an empty log.
func bounds(log raft.LogStore) (first, last uint64, err error) {
	if first, err = log.FirstIndex(); err == nil {
		last, err = log.LastIndex()
	}
	return first, last, err
}

// progress logs at times which entry a step has reached, and how many are left.
func (m *move) progress(step string, index, last uint64) {
	if time.Since(m.told) >= m.every {
		m.told = time.Now()
		m.logger.Info("cluster: the log is moving from raft.db to the write-ahead log", "path", m.dir, "step", step,
			"index", index, "count", last-index)
	}
}

// movedLog is the copy while it is written. Each batch is a step.
type movedLog struct {
	raft.LogStore
	move *move
}

// StoreLogs implements raft.LogStore.
func (l movedLog) StoreLogs(logs []*raft.Log) error {
	err := l.move.step(stepCopy, func() error { return l.LogStore.StoreLogs(logs) })
	if err == nil {
		_, last, _ := bounds(l.move.bolt) // it was read a moment ago
		l.move.progress(stepCopy, logs[len(logs)-1].Index, last)
	}
	return err
}

// removeUnfinishedCopy removes what a move that was killed left behind, before anything asks for
// room. Without raft.db it would be all that is left, and is kept.
func removeUnfinishedCopy(dir string) error {
	bolt, copied := filepath.Join(dir, "raft.db"), filepath.Join(dir, copyName)
	if info, err := os.Stat(bolt); err != nil || info.Size() == 0 || inUse(bolt) {
		return nil
	}
	if err := os.RemoveAll(copied); err != nil {
		return fmt.Errorf("removing %s: %w", copied, err)
	}
	return nil
}

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

package raftstore

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// A data directory of a program without checksums is read, its values get
// theirs, and so do all later entries.
func TestOpen_OlderDataGetsChecksums(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old, err := raftboltdb.New(raftboltdb.Options{Path: filepath.Join(dir, "raft.db")})
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= 5; i++ {
		err = errors.Join(err, old.StoreLog(logEntry(i)))
	}
	err = errors.Join(err, old.SetUint64([]byte("CurrentTerm"), 7), old.Set([]byte("LastVoteCand"), []byte("n1:1")),
		Set(old, KeyNodeID, "n1.x"), old.Close())
	if err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, dir)
	if term, err := s.Stable.GetUint64([]byte("CurrentTerm")); err != nil || term != 7 {
		t.Errorf("CurrentTerm is %d, %v", term, err)
	}
	if err := errors.Join(s.Logs.StoreLog(logEntry(6)), s.MarkEnd(), s.Close()); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, dir)
	for i := uint64(1); i <= 6; i++ {
		var l raft.Log
		if err := s.Logs.GetLog(i, &l); err != nil || !bytes.Equal(l.Data, logEntry(i).Data) {
			t.Errorf("entry %d: %v", i, err)
		}
	}
	if s.mark.stored.CheckedFrom != 6 || s.mark.stored.Last != 6 {
		t.Errorf("the mark is %+v", s.mark.stored)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// From then on an entry or a value without its checksum is damage.
	if old, err = raftboltdb.New(raftboltdb.Options{Path: filepath.Join(dir, "raft.db")}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(old.SetUint64([]byte("CurrentTerm"), 6), old.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, testOptions()); err == nil ||
		!strings.Contains(err.Error(), "CurrentTerm has no checksum") {
		t.Errorf("a value without its checksum: %v", err)
	}
}

// An older copy of the log, put back, is noticed.
func TestOpen_LogThatLostItsEndIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	makeData(t, dir, mustOpen)
	s := mustOpen(t, dir)
	// The store itself, below our checks, forgets.
	logs := s.Logs.(*logCache)
	if err := logs.DeleteRange(damageEntries, damageEntries); err != nil {
		t.Fatal(err)
	}
	if got := s.mark.stored.Last; got != damageEntries-1 {
		t.Errorf("after a truncation the mark is %d", got)
	}
	s.mark.last.Store(damageEntries)
	if err := errors.Join(s.mark.store(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, testOptions()); err == nil ||
		!strings.Contains(err.Error(), "ends with entry 299 and had 300") {
		t.Errorf("a log that lost its end: %v", err)
	}
}

// What a crash leaves of a snapshot in progress is removed: nobody else does,
// and it fills the disk.
func TestOpen_UnfinishedSnapshotsAreRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	half := filepath.Join(dir, "snapshots", "2-10-123.tmp")
	if err := os.MkdirAll(half, 0o700); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, dir)
	defer func() { _ = s.Close() }()
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// The first failure is the last operation: a failed fsync is never followed by
// one that succeeds.
func TestWatchdog_NothingFollowsAFailure(t *testing.T) {
	d := newWatchdog("/data", slog.New(slog.DiscardHandler))
	err := d.Do("writing X", func() error { return syscall.EIO })
	if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "writing X") ||
		!strings.Contains(err.Error(), runbook) {
		t.Errorf("the failure: %v", err)
	}
	again := d.Do("writing Y", func() error { t.Error("it was tried again"); return nil })
	if !errors.Is(again, syscall.EIO) {
		t.Errorf("after the failure: %v", again)
	}
	select {
	case <-d.Failed():
	default:
		t.Error("nobody is told")
	}
	full := newWatchdog("/data", slog.New(slog.DiscardHandler))
	if err := full.Do("writing X", func() error { return syscall.ENOSPC }); !strings.Contains(err.Error(), "make room") {
		t.Errorf("a full disk: %v", err)
	}
	if err := newWatchdog("/data", d.logger).Do("reading", func() error { panic("page 3: invalid") }); err == nil ||
		!strings.Contains(err.Error(), "page 3") {
		t.Errorf("a panic of a store: %v", err)
	}
}

// A disk that hangs is noticed after a second, healed when it answers, and is
// given up after thirty.
func TestWatchdog_HangIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newWatchdog("/data", slog.New(slog.DiscardHandler))
		answer := make(chan struct{})
		ended := make(chan error, 2)
		hang := func() { ended <- d.Do("writing X", func() error { <-answer; return nil }) }
		go hang()
		synctest.Wait()
		d.check(time.Now())
		if d.Trouble() != nil {
			t.Error("at once there is trouble")
		}
		time.Sleep(stallAfter)
		d.check(time.Now())
		stalled, healed := d.Stall()
		select {
		case <-stalled:
		default:
			t.Error("after a second nobody knows")
		}
		if d.Trouble() == nil {
			t.Error("after a second the node still passes for a leader")
		}
		answer <- struct{}{}
		synctest.Wait()
		d.check(time.Now())
		<-healed
		if err := <-ended; err != nil || d.Trouble() != nil {
			t.Errorf("after it answered: %v, %v", err, d.Trouble())
		}
		go hang()
		synctest.Wait()
		time.Sleep(hangAfter)
		d.check(time.Now())
		if err := d.Failure(); err == nil || !strings.Contains(err.Error(), "hangs") {
			t.Errorf("after half a minute: %v", err)
		}
		answer <- struct{}{}
		synctest.Wait()
	})
}

// A disk that answers is looked at once a second, and one that does not at the moment at which it is too
// slow.
func TestWatchdog_RestsWhileTheDiskAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newWatchdog("/data", slog.New(slog.DiscardHandler))
		if again := d.check(time.Now()); again != stallAfter {
			t.Errorf("at rest it looks again after %s", again)
		}
		answer := make(chan struct{})
		go func() { _ = d.Do("writing X", func() error { <-answer; return nil }) }()
		synctest.Wait()
		time.Sleep(400 * time.Millisecond)
		if again := d.check(time.Now()); again != stallAfter-400*time.Millisecond {
			t.Errorf("while a write takes 400 ms it looks again after %s", again)
		}
		time.Sleep(stallAfter)
		if again := d.check(time.Now()); again != stallTick {
			t.Errorf("while the disk stalls it looks again after %s", again)
		}
		close(answer)
		synctest.Wait()
	})
}

// snapshotUpTo writes a snapshot like one a leader sent.
func snapshotUpTo(t *testing.T, s Store, index uint64) {
	t.Helper()
	_, transport := raft.NewInmemTransport("")
	sink, err := s.Snapshots.Create(1, index, 3, raft.Configuration{}, 0, transport)
	if err == nil {
		_, err = sink.Write(stateOf(index))
	}
	if err = errors.Join(err, sink.Close()); err != nil {
		t.Fatal(err)
	}
}

// A node that is killed between storing a leader's snapshot and emptying its log
// goes on behind the snapshot, and starts again later.
func TestOpen_SnapshotBeyondTheLog(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T, string) Store{"wal": mustOpen, "former": mustOpenFormer} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			for i := uint64(1); i <= 10; i++ {
				if err := s.Logs.StoreLog(logEntry(i)); err != nil {
					t.Fatal(err)
				}
			}
			snapshotUpTo(t, s, 20)
			if err := errors.Join(s.MarkEnd(), s.Close()); err != nil {
				t.Fatal(err)
			}
			s = mustOpen(t, dir)
			if err := errors.Join(s.Logs.StoreLog(logEntry(21)), s.MarkEnd(), s.Close()); err != nil {
				t.Fatal(err)
			}
			wantLog(t, dir, 21, 21)
		})
	}
}

// Entries that Raft kept before a snapshot of the leader's, with a hole behind
// them, are dropped; a hole that no snapshot covers is damage.
func TestOpen_HoleBelowTheSnapshot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := mustOpenFormer(t, dir)
	for _, i := range []uint64{8, 9, 10, 21, 22} {
		if err := s.Logs.StoreLog(logEntry(i)); err != nil {
			t.Fatal(err)
		}
	}
	snapshotUpTo(t, s, 20)
	if err := errors.Join(s.MarkEnd(), s.Close()); err != nil {
		t.Fatal(err)
	}
	holed := t.TempDir()
	if err := os.CopyFS(holed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	wantLog(t, dir, 21, 22)
	s = mustOpenFormer(t, holed)
	if err := errors.Join(s.Logs.StoreLog(logEntry(24)), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(holed, testOptions()); err == nil || !strings.Contains(err.Error(), "entry 23 is missing") {
		t.Errorf("a hole behind the snapshot: %v", err)
	}
}

// wantLog opens a data directory and compares what its log holds.
func wantLog(t *testing.T, dir string, first, last uint64) {
	t.Helper()
	s := mustOpen(t, dir)
	defer func() { _ = s.Close() }()
	gotFirst, err := s.Logs.FirstIndex()
	gotLast, err2 := s.Logs.LastIndex()
	if err := errors.Join(err, err2); err != nil || gotFirst != first || gotLast != last {
		t.Errorf("the log is %d to %d (%v), want %d to %d", gotFirst, gotLast, err, first, last)
	}
}

package main

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"bivouac.dev/bivouac/cluster/raftstore"
)

const (
	// syncWrites, each of syncBytes, are timed, for syncTimeout at most.
	syncWrites  = 20
	syncBytes   = 4096
	syncTimeout = 10 * time.Second
	// syncWarning is a median above which each write of the cluster is slow; syncLimit one above
	// which members time out.
	syncWarning = 25 * time.Millisecond
	syncLimit   = 250 * time.Millisecond
	// roomFail is the room below which scratch files and backups are refused.
	roomFail = int64(raftstore.SpareBytes)
)

// disk measures the file system of a directory. synced tells whether Raft's log is there.
func (i *inspection) disk(subject, dir string, synced bool) {
	fs, ok := roomOf(dir, roomTimeout)
	switch {
	case !ok && !exists(dir):
		return // the first start makes it; --check has a line
	case !ok:
		i.add(checkFail, subject, "the file system of %s does not answer (bivouac runbook disk)", dir)
		return
	}
	i.room(subject, dir, int64(fs.Bavail)*fs.Bsize, int64(fs.Blocks)*fs.Bsize, synced)
	if !synced {
		return
	}
	took, err := timeSyncs(dir)
	i.syncs(subject, dir, took, err)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// room judges what is left in a file system. data: Raft's log is there.
func (i *inspection) room(subject, what string, free, size int64, data bool) {
	const text = "%s: %s are left of %s"
	switch {
	case data && free < roomFail:
		i.add(checkFail, subject, text+": the node stops when it is full; make room (bivouac runbook disk)", what,
			sizeText(free), sizeText(size))
	case float64(free) < roomShare*float64(size), data && free < roomLeast:
		i.add(checkWarn, subject, text+": make room (bivouac runbook disk)", what, sizeText(free), sizeText(size))
	default:
		i.add(checkOK, subject, text, what, sizeText(free), sizeText(size))
	}
}

// syncs judges how long the disk takes for a write that must be on it.
func (i *inspection) syncs(subject, dir string, took []time.Duration, err error) {
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		i.add(checkWarn, subject,
			"%s can't be written by this user, so its speed is not known: run this as the node's user", dir)
		return
	case errors.Is(err, os.ErrDeadlineExceeded):
		i.add(checkFail, subject, "%s: a small write was not on the disk after %s (bivouac runbook disk)", dir, syncTimeout)
		return
	case err != nil:
		i.add(checkFail, subject, "%s can't be written: %s (bivouac runbook disk)", dir, causeOf(err))
		return
	}
	slices.Sort(took)
	median, slowest := took[len(took)/2].Round(10*time.Microsecond), took[len(took)-1].Round(10*time.Microsecond)
	const text = "%s: a small write is on the disk after %s, %s at most"
	switch {
	case median > syncLimit:
		i.add(checkFail, subject, text+": too slow for a cluster; use a local SSD of its own", dir, median, slowest)
	case median > syncWarning, slowest > syncLimit:
		i.add(checkWarn, subject, text+": every write waits for that; use a local SSD of its own", dir, median, slowest)
	default:
		i.add(checkOK, subject, text, dir, median, slowest)
	}
}

// timeSyncs writes and syncs a small file in dir, as Raft's log does, and removes it.
func timeSyncs(dir string) ([]time.Duration, error) {
	type outcome struct {
		took []time.Duration
		err  error
	}
	done := make(chan outcome, 1)
	go func() { // ends late where the disk hangs
		took, err := writeSyncs(dir)
		done <- outcome{took, err}
	}()
	select {
	case o := <-done:
		return o.took, o.err
	case <-time.After(syncTimeout):
		return nil, os.ErrDeadlineExceeded
	}
}

func writeSyncs(dir string) (took []time.Duration, err error) {
	f, err := os.CreateTemp(dir, ".doctor-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, syncBytes)
	begun := time.Now()
	for len(took) < syncWrites && time.Since(begun) < syncTimeout/2 {
		at := time.Now()
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
		if err := f.Sync(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(at))
	}
	return took, nil
}

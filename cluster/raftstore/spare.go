package raftstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const (
	// SpareBytes is the space that a SpareFile leaves free for the log, Raft's snapshots and events. A node
	// whose log finds no space stops, and events are refused before that.
	SpareBytes = 512 << 20
	// spareStep is how much is written between two checks of the free space.
	spareStep = 4 << 20
)

// ErrNoRoom is the error of a write for lack of free space.
var ErrNoRoom = errors.New("no room to spare")

// SpareFile is a file on the log's file system, such as a snapshot or a backup. It fails before it
// fills the file system.
type SpareFile struct {
	f *os.File
	// free is Free.
	free func(dir string) (uint64, error)
	// unchecked is how much may be written before the next check.
	unchecked int
}

// Spare makes f a SpareFile.
func Spare(f *os.File) *SpareFile { return &SpareFile{f: f, free: Free} }

// NewScratch makes an unnamed temporary file in dir. It disappears when it is closed or the process
// ends.
func NewScratch(dir string) (*SpareFile, error) {
	f, err := os.CreateTemp(dir, "scratch-*")
	if err != nil {
		return nil, fmt.Errorf("making a scratch file: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("making a scratch file: %w", err), f.Close())
	}
	return Spare(f), nil
}

// Write implements io.Writer. It fails with ErrNoRoom.
func (s *SpareFile) Write(b []byte) (int, error) {
	if s.unchecked < len(b) {
		dir := filepath.Dir(s.f.Name())
		free, err := s.free(dir)
		if err != nil {
			return 0, fmt.Errorf("looking for room in %s: %w", dir, err)
		}
		if free < SpareBytes+uint64(len(b)) {
			return 0, fmt.Errorf(
				"%w: the file system of %s has %d MiB left, and %d stay free for the log: make room", ErrNoRoom,
				dir, free>>20, SpareBytes>>20,
			)
		}
		s.unchecked = len(b) + spareStep
	}
	s.unchecked -= len(b)
	return s.f.Write(b)
}

// Read implements io.Reader.
func (s *SpareFile) Read(b []byte) (int, error) { return s.f.Read(b) }

// Seek implements io.Seeker.
func (s *SpareFile) Seek(offset int64, whence int) (int64, error) { return s.f.Seek(offset, whence) }

// Close implements io.Closer.
func (s *SpareFile) Close() error { return s.f.Close() }

package raftstore

import (
	"errors"
	"io"
	"os"
	"testing"
)

func TestScratch_IsWrittenReadAndGone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := NewScratch(dir)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("it has a name: %v %v", left, err)
	}
	if _, err := io.WriteString(f, "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(f); err != nil || string(b) != "hello" {
		t.Errorf("%q %v", b, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := NewScratch(dir + "/none"); err == nil {
		t.Error("no error without a directory")
	}
}

// TestSpareFile_LeavesRoom: it is not written until the disk is full.
func TestSpareFile_LeavesRoom(t *testing.T) {
	t.Parallel()
	f, err := NewScratch(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	left := uint64(SpareBytes + 3*spareStep)
	f.free = func(string) (uint64, error) { return left, nil }
	chunk := make([]byte, 64<<10)
	for left > 0 {
		n, err := f.Write(chunk)
		if left -= uint64(n); errors.Is(err, ErrNoRoom) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if left < SpareBytes-spareStep || left > SpareBytes+spareStep {
		t.Errorf("it stopped with %d MiB left, want about %d", left>>20, SpareBytes>>20)
	}
	if _, err := f.Write(chunk); !errors.Is(err, ErrNoRoom) {
		t.Errorf("and went on: %v", err)
	}
}

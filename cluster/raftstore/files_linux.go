package raftstore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// forgetCached has the kernel drop its cached pages of the files below dir, so that Open
// verifies what the disk has: after a failed fsync, pages that never reached the disk can
// still be read.
func forgetCached(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		// A file system without the call does not prevent a start.
		_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		return f.Close()
	})
}

// inUse reports whether another process has the bbolt file open.
func inUse(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Free is how many bytes this process may still write below dir.
func Free(dir string) (uint64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return s.Bavail * uint64(s.Bsize), nil
}

// identityOf gives the identity of the file at path.
func identityOf(path string) (fileIdentity, error) {
	var s unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_INO|unix.STATX_BTIME, &s); err != nil {
		return fileIdentity{}, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	id := fileIdentity{Inode: s.Ino}
	if s.Mask&unix.STATX_BTIME != 0 {
		id.Born = s.Btime.Sec*1e9 + int64(s.Btime.Nsec)
	}
	return id, nil
}

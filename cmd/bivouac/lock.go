package main

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// lockDir excludes other processes from dir: it locks the file "lock" in it until release is
// called or the process ends. dir is created with mode 0700 if it is missing.
func lockDir(dir string) (release func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the data directory can't be used: %s", oneLine(err))
	}
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the data directory can't be used: %s", oneLine(err))
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("the data directory %s is in use by another bivouac", dir)
		}
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return func() error {
		// Unlock explicitly: a child between fork and exec holds a copy of the file.
		return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
	}, nil
}

// ownedByCaller rejects a data directory of another user. A command run as root would leave
// files that the node's user can't read.
func ownedByCaller(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("the data directory can't be used: %w", &os.PathError{Op: "stat", Path: dir, Err: err})
	}
	if int(st.Uid) == os.Geteuid() {
		return nil
	}
	id := strconv.Itoa(int(st.Uid))
	owner, as := "#"+id, "setpriv --reuid "+id+" --clear-groups"
	if u, err := user.LookupId(id); err == nil {
		owner, as = u.Username, "runuser -u "+u.Username+" --"
	}
	return fmt.Errorf(
		"nothing was done: %s belongs to the user %s, who could not read what this user writes there; "+
			"say: %s bivouac ...",
		dir,
		owner,
		as,
	)
}

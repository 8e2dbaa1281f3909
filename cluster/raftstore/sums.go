package raftstore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// checkFile holds the checksum of the metadata, in the snapshot's directory.
const checkFile = "check"

// snapshotDir keeps the checksums of a raft.FileSnapshotStore in its directory.
type snapshotDir string

// Put implements SnapshotSums.
func (d snapshotDir) Put(id, sum string) error {
	return writeSynced(filepath.Join(string(d), id+".tmp", checkFile), []byte(sum))
}

// Get implements SnapshotSums.
func (d snapshotDir) Get(id string) (string, error) {
	sum, err := os.ReadFile(filepath.Join(string(d), id, checkFile))
	return string(sum), err
}

// IDs implements SnapshotSums.
func (d snapshotDir) IDs() (ids []string, err error) {
	entries, err := os.ReadDir(string(d))
	for _, e := range entries {
		if e.IsDir() && !strings.HasSuffix(e.Name(), ".tmp") {
			ids = append(ids, e.Name())
		}
	}
	return ids, err
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

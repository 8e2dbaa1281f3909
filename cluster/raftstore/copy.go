package raftstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// fileIdentity tells a file from its copy: at least one of the two numbers differs. Born is
// zero where the file system keeps no birth time; then nothing can be said.
type fileIdentity struct {
	Inode uint64 `json:"inode"`
	Born  int64  `json:"born"`
}

// identifiedFiles are the files of a data directory that are created once.
func identifiedFiles() []string { return []string{"raft.db", walName} }

// identify gives the identities of the files that exist.
func identify(dir string) (map[string]fileIdentity, error) {
	found := map[string]fileIdentity{}
	for _, name := range identifiedFiles() {
		id, err := identityOf(filepath.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		default:
			found[name] = id
		}
	}
	return found, nil
}

// copied names the first file that is not the one recorded, "" for none.
func copied(recorded, found map[string]fileIdentity) string {
	for _, name := range identifiedFiles() {
		was, is := recorded[name], found[name]
		if was.Born != 0 && is.Born != 0 && was != is {
			return name
		}
	}
	return ""
}

// CheckCopy refuses a data directory whose files are not the ones recorded in it: it is a
// copy, and may be older than what the node acknowledged since.
func (s *Store) CheckCopy(dir string) error {
	raw, err := Get(s.Stable, keyPlace)
	if err != nil || raw == "" {
		return err // an older program recorded nothing; RecordFiles does
	}
	recorded := map[string]fileIdentity{}
	if err := json.Unmarshal([]byte(raw), &recorded); err != nil {
		return fmt.Errorf("reading %s: %w", keyPlace, err)
	}
	found, err := identify(dir)
	if err != nil {
		return fmt.Errorf("looking at %s: %w", dir, err)
	}
	if name := copied(recorded, found); name != "" {
		return fmt.Errorf("%s is a copy: %s is not the file that this node made; "+
			"do not run it if the node ran on another directory since: "+
			"start it with an empty directory instead, and it fetches everything from the others. "+
			"If this is the node's newest state, moved by hand, say so with "+
			`"bivouac operator adopt-disk --config FILE" (%s)`, dir, name, runbook)
	}
	return nil
}

// RecordFiles records which files these are, for the next CheckCopy.
func (s *Store) RecordFiles(dir string) error {
	found, err := identify(dir)
	if err != nil {
		return fmt.Errorf("looking at %s: %w", dir, err)
	}
	raw, err := json.Marshal(found)
	if err != nil {
		return err
	}
	if was, err := Get(s.Stable, keyPlace); err != nil || was == string(raw) {
		return err
	}
	return Set(s.Stable, keyPlace, string(raw))
}

// Adopt makes a copied data directory the node's own from its next start on. The node must
// be stopped. An older copy does not become newer by it: the other members still object to
// what they know to be missing.
func Adopt(dir string, o Options) error {
	if _, err := os.Stat(filepath.Join(dir, "raft.db")); err != nil {
		return fmt.Errorf("%s is no node's data directory: %w", dir, err)
	}
	s, err := Open(dir, o)
	if err != nil {
		return err
	}
	return errors.Join(s.RecordFiles(dir), s.Close())
}

// ReadBounded reads at most limit bytes of a file of the data directory.
func ReadBounded(file string, limit int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
)

// fileIdentity tells a file from its copy, of which both are others. Born is zero where the file system
// does not tell, and then nothing can be said.
type fileIdentity struct {
	Inode uint64 `json:"inode"`
	Born  int64  `json:"born"`
}

// placeFiles are the files of a data directory that are made once.
var placeFiles = []string{"raft.db", "wal"}

// identify gives the identities of the files that are there.
func identify(dir string) (map[string]fileIdentity, error) {
	found := map[string]fileIdentity{}
	for _, name := range placeFiles {
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

// copied names the first file that is not the one noted, "" for none.
func copied(noted, found map[string]fileIdentity) string {
	for _, name := range placeFiles {
		was, is := noted[name], found[name]
		if was.Born != 0 && is.Born != 0 && was != is {
			return name
		}
	}
	return ""
}

// checkCopy refuses a data directory whose files are not the ones noted in it: it
// is a copy, and may be older than what the node promised since.
func (s *Storage) checkCopy(dir string) error {
	raw, err := getString(s.Stable, keyPlace)
	if err != nil || raw == "" {
		return err // of a program that noted nothing, or adopted: noted once it is open
	}
	noted := map[string]fileIdentity{}
	if err := json.Unmarshal([]byte(raw), &noted); err != nil {
		return fmt.Errorf("reading %s: %w", keyPlace, err)
	}
	found, err := identify(dir)
	if err != nil {
		return fmt.Errorf("looking at %s: %w", dir, err)
	}
	if name := copied(noted, found); name != "" {
		return fmt.Errorf("%s is a copy: %s is not the file that this node made; do not run it if the node ran on another directory since: "+
			"start it with an empty directory instead, and it fetches everything from the others. If this is the node's newest state, moved by hand, say so with "+
			`"bivouac operator adopt-disk --config FILE" (%s)`, dir, name, runbook)
	}
	return nil
}

// notePlace notes which files these are.
func (s *Storage) notePlace(dir string) error {
	found, err := identify(dir)
	if err != nil {
		return fmt.Errorf("looking at %s: %w", dir, err)
	}
	raw, err := json.Marshal(found)
	if err != nil {
		return err
	}
	if was, err := getString(s.Stable, keyPlace); err != nil || was == string(raw) {
		return err
	}
	return s.Stable.Set(keyPlace, raw)
}

// AdoptDisk takes a copied data directory for the node's own from its next start on.
// The node must be stopped. It does not make an older copy a newer one: the other
// members still object to what they know to be missing.
func AdoptDisk(dir, logStore string, logger *slog.Logger) error {
	if _, err := os.Stat(filepath.Join(dir, "raft.db")); err != nil {
		return fmt.Errorf("%s is no node's data directory: %w", dir, err)
	}
	s, err := openStorage(dir, logStore, logger)
	if err != nil {
		return err
	}
	return errors.Join(s.notePlace(dir), s.Close())
}

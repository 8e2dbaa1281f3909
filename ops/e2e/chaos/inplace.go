//go:build linux

package chaos

import (
	"errors"
	"os"
	"path/filepath"
)

// restoreInPlace makes a directory equal to a copy of it by writing into the existing files.
func restoreInPlace(from, to string) error {
	if from == "" {
		return errors.New("there is no copy")
	}
	var errs []error
	keep := map[string]bool{}
	errs = append(errs, filepath.WalkDir(from, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		keep[rel] = true
		if e.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		return overwrite(path, filepath.Join(to, rel))
	}))
	var gone []string
	errs = append(errs, filepath.WalkDir(to, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if rel, err := filepath.Rel(to, path); err == nil && !keep[rel] && !e.IsDir() {
			gone = append(gone, path)
		}
		return nil
	}))
	for _, path := range gone {
		errs = append(errs, os.Remove(path))
	}
	return errors.Join(errs...)
}

// overwrite replaces a file's content with another's.
func overwrite(from, to string) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	return errors.Join(err, f.Truncate(int64(len(raw))), f.Sync(), f.Close())
}

package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/fsm/snapshotfile"
)

// Saved is a verified snapshot file.
type Saved struct {
	Path     string
	Size     int64
	Manifest snapshotfile.Manifest
	Trial    *fsm.Trial
}

// WriteFile writes a snapshot file in one step. write's output goes to a temporary file beside
// path, which is synced, verified, loaded on trial and renamed. On an error, or when ctx ends,
// nothing is left. replace allows path to exist. The mode is 0600.
func WriteFile(
	ctx context.Context, path string, replace bool, write func(w io.Writer) error,
) (Saved, error) {
	if !replace {
		if err := absent(path); err != nil {
			return Saved{}, err
		}
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+tempInfix+"*")
	if err != nil {
		return Saved{}, fmt.Errorf("making a file: %w", err)
	}
	err = write(raftstore.Spare(f))
	if err == nil {
		err = ctx.Err()
	}
	err = errors.Join(err, f.Sync(), f.Close())
	var saved Saved
	if err == nil {
		saved, err = ReadFile(ctx, f.Name())
	}
	if err == nil {
		err = publish(f.Name(), path, replace)
	}
	if err != nil {
		return Saved{}, errors.Join(err, os.Remove(f.Name()))
	}
	saved.Path = path
	return saved, nil
}

// tempInfix separates a file's name from the random suffix of its temporary file.
const tempInfix = ".tmp-"

// absent returns fs.ErrExist if path exists.
func absent(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s: %w", path, fs.ErrExist)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// publish renames a finished file. Without replace it keeps a file that appeared meanwhile.
func publish(from, to string, replace bool) error {
	if !replace {
		switch err := os.Link(from, to); {
		case err == nil:
			return errors.Join(os.Remove(from), raftstore.SyncDir(filepath.Dir(to)))
		case errors.Is(err, fs.ErrExist):
			return fmt.Errorf("%s: %w", to, fs.ErrExist)
		}
		// A file system without hard links.
		if err := absent(to); err != nil {
			return err
		}
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return raftstore.SyncDir(filepath.Dir(to))
}

// ReadFile verifies a file and loads its state on trial.
func ReadFile(ctx context.Context, path string) (Saved, error) {
	f, err := os.Open(path)
	if err != nil {
		return Saved{}, err
	}
	defer f.Close()
	in := &counter{r: f, ctx: ctx}
	m, trial, err := snapshotfile.Load(in)
	if err != nil {
		return Saved{}, err
	}
	return Saved{Path: path, Size: in.n, Manifest: m, Trial: trial}, nil
}

// counter is a reader that counts bytes and ends with its context.
type counter struct {
	r   io.Reader
	ctx context.Context
	n   int64
}

// Read implements io.Reader.
func (c *counter) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

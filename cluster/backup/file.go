package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/fsm/snapshotfile"
)

// Saved is a file that was verified.
type Saved struct {
	Path     string
	Size     int64
	Manifest snapshotfile.Manifest
	Trial    *fsm.Trial
}

// WriteFile makes the snapshot file at path in one step: what write writes goes
// to a file beside it, which is synced, read back, verified and loaded on trial,
// and then renamed. On an error, and at the end of ctx, nothing is left of it.
// replace allows a file to be there already. The file's mode is 0600.
func WriteFile(ctx context.Context, path string, replace bool, write func(w io.Writer) error) (Saved, error) {
	if !replace {
		if err := absent(path); err != nil {
			return Saved{}, err
		}
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+tempInfix+"*")
	if err != nil {
		return Saved{}, fmt.Errorf("making a file: %w", err)
	}
	err = write(cluster.Spare(f))
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

// tempInfix stands between a file's name and what is drawn for its temporary
// one.
const tempInfix = ".tmp-"

// absent refuses a path at which something is.
func absent(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s: %w", path, fs.ErrExist)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// publish gives a finished file its name. Without replace, a file that came
// meanwhile stays.
func publish(from, to string, replace bool) error {
	if !replace {
		switch err := os.Link(from, to); {
		case err == nil:
			return errors.Join(os.Remove(from), syncDir(filepath.Dir(to)))
		case errors.Is(err, fs.ErrExist):
			return fmt.Errorf("%s: %w", to, fs.ErrExist)
		}
		// A file system without links.
		if err := absent(to); err != nil {
			return err
		}
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncDir(filepath.Dir(to))
}

// syncDir makes a new name in a directory outlast a power failure.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
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

// counter counts what is read through it and ends with its context.
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

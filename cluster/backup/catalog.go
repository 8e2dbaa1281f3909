package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/fsm/snapshotfile"
)

// namePattern matches the file names of backups: time, index and node. Other files are not touched.
var namePattern = regexp.MustCompile(`^bivouac-backup-\d{8}T\d{6}Z-\d{12,}-[a-z0-9-]+\.snap$`)

// catalog is a directory of backups. It caches what it read, by name, size and time.
type catalog struct {
	dir string

	mu    sync.Mutex
	known map[string]*known
}

// known is what was read from a file.
type known struct {
	size     int64
	modified time.Time
	manifest snapshotfile.Manifest
	// problem says why the file is unusable; verified: it was read in full.
	problem  string
	verified bool
	refs     []version
}

// version is one version of a secret.
type version struct {
	path   string
	number int
}

// File is one backup in the directory.
type File struct {
	File     string                `json:"file"`
	Size     int64                 `json:"size"`
	Manifest snapshotfile.Manifest `json:"manifest"`
	// Verified: this process has loaded it on trial. Problem says why it is unusable, "" when nothing
	// is known against it.
	Verified bool   `json:"verified"`
	Problem  string `json:"problem,omitempty"`
}

// age says how many histories ago a leader of v's cluster made the file automatically: 0 is the
// present one, 1 the one before it. ours is false for any other file.
func (f File) age(v *fsm.View) (age int, ours bool) {
	m := f.Manifest
	var history string
	if m.History != nil {
		history = m.History.ID
	}
	if m.Reason != snapshotfile.ReasonBackup || m.ClusterID != v.ClusterID() {
		return 0, false
	}
	now := v.History()
	age = slices.Index(append([]string{now.ID}, now.Parents...), history)
	return age, age >= 0
}

// newestFirst orders the usable backups of v's cluster by history and index. The clock of the leader
// that made one may have been wrong.
func newestFirst(files []File, v *fsm.View) []File {
	ages := map[string]int{}
	ours := slices.DeleteFunc(slices.Clone(files), func(f File) bool {
		age, ours := f.age(v)
		ages[f.File] = age
		return !ours || f.Problem != ""
	})
	slices.SortStableFunc(ours, func(a, b File) int {
		return cmp.Or(cmp.Compare(ages[a.File], ages[b.File]), cmp.Compare(b.Manifest.Index, a.Manifest.Index))
	})
	return ours
}

func baseName(path string) string { return filepath.Base(path) }

func (c *catalog) path(created time.Time, index uint64, node string) string {
	return filepath.Join(c.dir, fmt.Sprintf(
		"bivouac-backup-%s-%012d-%s.snap", created.UTC().Format("20060102T150405Z"), index, node,
	))
}

// prepare makes the directory but not its parents: a missing parent may be a file system that is
// not mounted.
func (c *catalog) prepare() error {
	if err := os.Mkdir(c.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// list returns the backups, newest first. It reads only the manifest of a new file.
func (c *catalog) list() ([]File, error) {
	names, err := c.names()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	files := make([]File, 0, len(names))
	for _, name := range names {
		k, err := c.look(name)
		if err != nil {
			continue // removed meanwhile
		}
		files = append(
			files,
			File{File: name, Size: k.size, Manifest: k.manifest, Verified: k.verified, Problem: k.problem},
		)
	}
	return files, nil
}

// names returns the file names of backups, newest first, and drops removed files from the cache. A
// missing directory has none.
func (c *catalog) names() ([]string, error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() && namePattern.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	slices.Reverse(names)
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.known {
		if !slices.Contains(names, name) {
			delete(c.known, name)
		}
	}
	return names, nil
}

// look returns what is known about a file. The caller holds mu.
func (c *catalog) look(name string) (*known, error) {
	path := filepath.Join(c.dir, name)
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if k := c.known[name]; k != nil && k.size == info.Size() && k.modified.Equal(info.ModTime()) {
		return k, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	k := &known{size: info.Size(), modified: info.ModTime()}
	switch r, err := snapshotfile.Open(f); {
	case err != nil:
		k.problem = err.Error()
	case r.Length() != info.Size():
		k.manifest, k.problem = r.Manifest(), fmt.Sprintf(
			"it is %d bytes long and should be %d", info.Size(), r.Length(),
		)
	default:
		k.manifest = r.Manifest()
	}
	c.keep(name, k)
	return k, nil
}

func (c *catalog) keep(name string, k *known) {
	if c.known == nil {
		c.known = map[string]*known{}
	}
	c.known[name] = k
}

// add records a verified file.
func (c *catalog) add(s Saved) error {
	info, err := os.Stat(s.Path)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep(baseName(s.Path),
		&known{
			size:     info.Size(),
			modified: info.ModTime(),
			manifest: s.Manifest,
			verified: true,
			refs:     versionsIn(s.Trial.View),
		})
	return nil
}

// verify reads a file in full unless that was done.
func (c *catalog) verify(ctx context.Context, name string) error {
	c.mu.Lock()
	k, err := c.look(name)
	c.mu.Unlock()
	if err != nil || k.verified || k.problem != "" {
		return err
	}
	saved, err := ReadFile(ctx, filepath.Join(c.dir, name))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	next := *k
	if next.verified = err == nil; err == nil {
		next.refs = versionsIn(saved.Trial.View)
	} else {
		next.problem = err.Error()
	}
	c.keep(name, &next)
	return nil
}

// versionsIn returns the versions of secrets that a state refers to.
func versionsIn(v *fsm.View) []version {
	var list []version
	for ref := range v.SecretRefs() {
		list = append(list, version{ref.Path, ref.Version})
	}
	return list
}

func (c *catalog) remove(name string) error {
	if err := os.Remove(filepath.Join(c.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, name)
	return nil
}

// removeTemps removes temporary files older than before, left by a crash.
func (c *catalog) removeTemps(before time.Time) error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		name, _, temp := strings.Cut(e.Name(), tempInfix)
		if !temp || !namePattern.MatchString(name) {
			continue
		}
		if info, err := e.Info(); err == nil && info.ModTime().Before(before) {
			errs = append(errs, os.Remove(filepath.Join(c.dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

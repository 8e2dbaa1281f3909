package copies

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/archive"
)

// Store keeps copies in a bucket. It is safe for concurrent use.
type Store struct {
	bucket *blob.Bucket
	// dir is the directory of a store in a directory, "" for another one.
	dir  string
	keys Keys

	mu sync.Mutex
	// home is the cluster's directory as it was first seen. Another one in its place is a mount point.
	home os.FileInfo
}

// Open opens the store at a URL: file:///directory without more, or s3://bucket?region=…&prefix=…/ with the
// credentials of the environment or the machine. keys may be nil: then nothing is encrypted. It makes
// no calls. The caller closes it.
func Open(ctx context.Context, address string, keys Keys) (*Store, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "file" && u.Scheme != "s3" {
		return nil, fmt.Errorf("the store of the workspaces' copies must be a URL file:///… or s3://…, got %q", address)
	}
	s := &Store{keys: keys}
	if u.Scheme == "file" {
		if u.RawQuery != "" { // a prefix would put the copies elsewhere than where they are synced
			return nil, fmt.Errorf("the store of the workspaces' copies is a directory: name it without ?%s", u.RawQuery)
		}
		s.dir = u.Path
		q := u.Query()
		// Attribute files beside every object would double their number, and a rename must not
		// cross file systems.
		q.Set("metadata", "skip")
		q.Set("create_dir", "true")
		q.Set("no_tmp_dir", "true")
		q.Set("dir_file_mode", "448") // 0700
		u.RawQuery = q.Encode()
	}
	if s.bucket, err = blob.OpenBucket(ctx, u.String()); err != nil {
		return nil, fmt.Errorf("opening the store of the workspaces' copies: %w", err)
	}
	return s, nil
}

// Close ends the store.
func (s *Store) Close() error { return s.bucket.Close() }

// The names in the bucket: <cluster>/<sandbox>/<copy>/manifest and …/<copy>/data-<number>. A copy's
// id is its number and random digits, so no two writers have a name in common.
const manifestName = "manifest"

func dirOf(cluster, sandbox, id string) string { return path.Join(cluster, sandbox, id) + "/" }

// nextID draws the id of the copy after one.
func nextID(base *fsm.Copy) string {
	var n uint64
	if base != nil {
		n, _ = number(base.ID)
	}
	b := make([]byte, 6)
	_, _ = rand.Read(b) // never fails
	return fmt.Sprintf("%08d-%s", n+1, hex.EncodeToString(b))
}

// number returns the number of a copy's id.
func number(id string) (uint64, bool) {
	digits, _, cut := strings.Cut(id, "-")
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, cut && err == nil
}

// unavailable is the error of a call of the store.
func unavailable(what string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, archive.ErrDamaged) {
		return err
	}
	if gcerrors.Code(err) == gcerrors.NotFound {
		return fmt.Errorf("%w: %s is gone from the store", archive.ErrDamaged, what)
	}
	return fsm.Errorf(fsm.CodeScheduler, "the store of the workspaces' copies: %s: %v", what, err)
}

// Ready returns an error for a store that has nothing of the cluster: a directory that is not mounted,
// another bucket.
func (s *Store) Ready(ctx context.Context, cluster string) error {
	var err error
	if s.dir != "" {
		err = s.sameHome(cluster)
	} else {
		_, err = s.bucket.List(&blob.ListOptions{Prefix: cluster + "/"}).Next(ctx)
	}
	switch {
	case err == nil || errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist):
		return fsm.Errorf(fsm.CodeScheduler, "the store of the workspaces' copies has nothing of cluster %s: is it "+
			"mounted, and the right one? (bivouac runbook copies)", cluster)
	}
	return fsm.Errorf(fsm.CodeScheduler, "the store of the workspaces' copies: listing %s: %v", cluster, err)
}

// sameHome reports, for a store in a directory, whether the cluster's directory is there, and is
// the one that was there before.
func (s *Store) sameHome(cluster string) error {
	info, err := os.Stat(filepath.Join(s.dir, cluster))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.home != nil && os.SameFile(s.home, info) {
		return nil
	}
	// An operator who lets the copies begin anew makes an empty one (bivouac runbook copies). A mount
	// point in which a leader ended beside an unmount has objects and no manifest, which is written
	// last.
	dir := filepath.Join(s.dir, cluster)
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 && (s.home != nil || !hasManifest(dir)) {
		return fs.ErrNotExist
	}
	s.home = info
	return nil
}

// hasManifest reports whether a directory has a whole copy.
func hasManifest(dir string) (found bool) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if found = err == nil && d.Name() == manifestName; found {
			return fs.SkipAll
		}
		return nil
	})
	return found
}

// moveHome takes the directory that is there now for the store's if it has a copy that the state
// names: the store was mounted again.
func (s *Store) moveHome(ctx context.Context, cluster, sandbox string, c fsm.Copy) {
	if there, err := s.bucket.Exists(ctx, dirOf(cluster, sandbox, c.ID)+manifestName); err != nil || !there {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.home = nil
}

// put writes an object of one piece.
func (s *Store) put(ctx context.Context, key string, data []byte) error {
	if err := s.bucket.WriteAll(ctx, key, data, nil); err != nil {
		return unavailable("writing "+key, err)
	}
	return nil
}

// Remove deletes every copy of a workspace.
func (s *Store) Remove(ctx context.Context, cluster, sandbox string) error {
	if cluster == "" || sandbox == "" {
		return errors.New("a cluster and a sandbox must be named")
	}
	return s.each(ctx, path.Join(cluster, sandbox)+"/", func(o *blob.ListObject) error { return s.remove(ctx, o.Key) })
}

// Unused returns the sandboxes that have copies, are not known, and whose newest object was written
// before a time by the store's clock. Another leader may be writing what is newer.
func (s *Store) Unused(
	ctx context.Context,
	cluster string,
	before time.Time,
	known func(sandbox string) bool,
) ([]string, error) {
	ids, err := s.children(ctx, cluster+"/")
	if err != nil {
		return nil, err
	}
	var unused []string
	for _, id := range ids {
		if known(id) {
			continue
		}
		var newest time.Time
		err := s.each(ctx, path.Join(cluster, id)+"/", func(o *blob.ListObject) error {
			if o.ModTime.After(newest) {
				newest = o.ModTime
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if !newest.IsZero() && newest.Before(before) {
			unused = append(unused, id)
		}
	}
	return unused, nil
}

// children returns the names of the folders below a prefix.
func (s *Store) children(ctx context.Context, prefix string) ([]string, error) {
	var names []string
	it := s.bucket.List(&blob.ListOptions{Prefix: prefix, Delimiter: "/"})
	for {
		o, err := it.Next(ctx)
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return nil, unavailable("listing "+prefix, err)
		}
		if o.IsDir {
			names = append(names, strings.TrimSuffix(strings.TrimPrefix(o.Key, prefix), "/"))
		}
	}
}

// each calls fn with the objects below a prefix.
func (s *Store) each(ctx context.Context, prefix string, fn func(o *blob.ListObject) error) error {
	it := s.bucket.List(&blob.ListOptions{Prefix: prefix})
	for {
		o, err := it.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = fn(o)
		}
		if err != nil {
			return unavailable("listing "+prefix, err)
		}
	}
}

func (s *Store) remove(ctx context.Context, key string) error {
	err := s.bucket.Delete(ctx, key)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil
	}
	return err
}

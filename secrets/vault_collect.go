package secrets

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/vault/api"
	"golang.org/x/sync/errgroup"
)

const (
	// collectors is how many entries are looked at at once.
	collectors = 4
	// collectLimit ends a collection whose view of what is live gets old: with
	// the age at which commands are refused it must stay below DefaultGrace.
	collectLimit = 5 * time.Minute
	// maxDepth bounds the folders below the prefix, as pathPattern does.
	maxDepth = 8
)

// Collect implements Store. It looks at the entries below the prefix and at
// those of sandboxes, and touches only what carries our mark: the namespace's
// folder and even the prefix may hold things of others.
//
// An entry whose versions are all destroyed is marked with the time, and its
// metadata is deleted once that is longer ago than the grace period. Between
// the last look and that delete lies one request; a write to a path that nobody
// used for so long, in just that moment, would be lost, and the user would have
// to enter the secret again.
func (v *Vault) Collect(ctx context.Context, live func(path string, version int) bool) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, collectLimit)
	defer cancel()
	var now time.Time
	err := v.do(ctx, "collect", func(ctx context.Context, s *session) error {
		var err error
		now, err = v.serverTime(ctx, s)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("collecting secrets: %w", err)
	}
	paths, err := v.entries(ctx)
	if err != nil {
		return 0, fmt.Errorf("collecting secrets: %w", err)
	}
	var mu sync.Mutex
	alone := func(path string, version int) bool {
		mu.Lock()
		defer mu.Unlock()
		return live(path, version)
	}
	var destroyed atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(collectors)
	for _, path := range paths {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			n, err := v.collectEntry(ctx, path, alone, now)
			destroyed.Add(int64(n))
			if err != nil {
				return fmt.Errorf("collecting secrets: %s: %w", path, err)
			}
			return nil
		})
	}
	err = g.Wait()
	return int(destroyed.Load()), err
}

// collectEntry destroys the dead versions of one entry, and the entry when
// nothing is left of it. now is Vault's clock.
func (v *Vault) collectEntry(ctx context.Context, path string, live func(string, int) bool, now time.Time) (int, error) {
	at := v.physical(path)
	var dead []int
	err := v.do(ctx, "collect", func(ctx context.Context, s *session) error {
		meta, err := s.kv.GetMetadata(ctx, at)
		if errors.Is(err, api.ErrSecretNotFound) {
			return nil
		}
		if err != nil || !v.owns(meta) {
			return err
		}
		dead = dead[:0]
		kept := 0
		for _, m := range meta.Versions {
			switch {
			case m.Destroyed:
			case now.Sub(m.CreatedTime) > v.cfg.Grace && !live(path, m.Version):
				dead = append(dead, m.Version)
			default:
				kept++
			}
		}
		if len(dead) > 0 {
			if err := s.kv.Destroy(ctx, at, dead); err != nil {
				return err
			}
		}
		if kept > 0 {
			return nil
		}
		return v.retire(ctx, s, at, meta, len(dead) > 0, now)
	})
	if err != nil {
		return 0, err
	}
	v.cache.forget(path, dead)
	return len(dead), nil
}

// retire marks an entry without versions, or deletes it when the mark is old
// enough. emptied says that its last version went just now.
func (v *Vault) retire(ctx context.Context, s *session, at string, meta *api.KVMetadata, emptied bool, now time.Time) error {
	text, _ := meta.CustomMetadata[emptiedKey].(string)
	since, err := time.Parse(time.RFC3339, text)
	switch {
	case emptied || err != nil:
		// Never written to, too: a writer died between metadata and data, or
		// is just about to write. Its check-and-set does not mind the mark.
		return s.kv.PutMetadata(ctx, at, v.metadata(&now))
	case now.Sub(since) > v.cfg.Grace && now.Sub(meta.UpdatedTime) > v.cfg.Grace:
		return s.kv.DeleteMetadata(ctx, at)
	}
	return nil
}

// entries lists the logical paths of all entries that may be ours.
func (v *Vault) entries(ctx context.Context) ([]string, error) {
	var paths []string
	add := func(path string) {
		if checkPath(path) == nil {
			paths = append(paths, path)
		}
	}
	err := v.walk(ctx, v.cfg.Prefix+"/", 0, func(at string) { add(strings.TrimPrefix(at, v.cfg.Prefix+"/")) })
	if err != nil {
		return nil, err
	}
	jobs, err := v.list(ctx, v.cfg.NomadNamespace+"/")
	if err != nil {
		return nil, err
	}
	for _, job := range jobs {
		id, ok := strings.CutPrefix(job, sandboxFolder)
		if !ok || !strings.HasSuffix(id, "/") {
			continue
		}
		folder := v.cfg.NomadNamespace + "/" + job
		err := v.walk(ctx, folder, maxDepth-2, func(at string) { add("sandboxes/" + id + strings.TrimPrefix(at, folder)) })
		if err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// walk calls fn with every entry below a folder, which ends in "/".
func (v *Vault) walk(ctx context.Context, folder string, depth int, fn func(at string)) error {
	if depth > maxDepth {
		return nil
	}
	names, err := v.list(ctx, folder)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, "/") {
			fn(folder + name)
		} else if err := v.walk(ctx, folder+name, depth+1, fn); err != nil {
			return err
		}
	}
	return nil
}

// list gives the names in a folder; folders in it end in "/".
func (v *Vault) list(ctx context.Context, folder string) ([]string, error) {
	var names []string
	err := v.do(ctx, "collect", func(ctx context.Context, s *session) error {
		names = nil
		answer, err := s.client.Logical().ListWithContext(ctx, v.cfg.Mount+"/metadata/"+folder)
		if err != nil || answer == nil {
			return err
		}
		keys, _ := answer.Data["keys"].([]any)
		for _, k := range keys {
			if name, ok := k.(string); ok {
				names = append(names, name)
			}
		}
		return nil
	})
	return names, err
}

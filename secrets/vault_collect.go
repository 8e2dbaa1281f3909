package secrets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/vault/api"
	"golang.org/x/sync/errgroup"
)

const (
	// collectors is how many entries are processed concurrently.
	collectors = 4
	// collectLimit ends a pass whose view of the references gets old. Together with the age at which
	// commands are refused it must stay below DefaultGrace.
	collectLimit = 5 * time.Minute
	// maxDepth bounds the folders below the prefix, as pathPattern does.
	maxDepth = 8
)

// Collect implements Store. It lists the entries below the prefix and those of sandboxes. It
// changes only entries whose metadata has our prefix, because the namespace's folder, and even the
// prefix, may hold entries of others.
//
// When all versions of an entry are destroyed, Collect records the time in its metadata. It deletes
// the metadata once that is longer ago than the retention. One request lies between the last check
// and that deletion. A write in that moment, to a path unused for so long, would be lost, and the
// user would have to enter the secret again.
func (v *Vault) Collect(ctx context.Context, birth Birth, judge func(Entry) Verdict) (Collected, error) {
	ctx, cancel := context.WithTimeout(ctx, collectLimit)
	defer cancel()
	p := &pass{judge: judge, birth: birth, grace: v.cfg.Grace, retention: v.cfg.Retention}
	err := v.do(ctx, "collect", func(ctx context.Context, s *session) error {
		var err error
		if p.now, err = v.serverTime(ctx, s); err != nil {
			return err
		}
		// Without undelete/ a deletion could not be reversed, so it must not happen.
		return v.missing(ctx, s, "delete/", "undelete/", "destroy/")
	})
	if err == nil {
		err = checkBirth(birth)
	}
	if err != nil {
		return Collected{}, fmt.Errorf("collecting secrets: %w", err)
	}
	paths, err := v.entries(ctx)
	if err != nil {
		return Collected{}, fmt.Errorf("collecting secrets: %w", err)
	}
	var mu sync.Mutex
	var total Collected
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(collectors)
	for _, path := range paths {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			done, err := v.collectEntry(ctx, path, p)
			if err != nil {
				return fmt.Errorf("collecting secrets: %s: %w", path, err)
			}
			mu.Lock()
			defer mu.Unlock()
			total.note(path, done)
			return nil
		})
	}
	err = g.Wait()
	total.trim()
	return total, err
}

// collectEntry applies the judge's verdicts to the versions of one entry. It retires the entry when
// no version is left.
func (v *Vault) collectEntry(ctx context.Context, path string, p *pass) (decision, error) {
	at := v.physical(path)
	var d decision
	err := v.do(ctx, "collect", func(ctx context.Context, s *session) error {
		d = decision{}
		meta, err := s.kv.GetMetadata(ctx, at)
		if errors.Is(err, api.ErrSecretNotFound) {
			return nil
		}
		if err != nil || !v.owns(meta) {
			return err
		}
		b := parseBirths(meta.CustomMetadata)
		for _, m := range meta.Versions {
			if m.Destroyed {
				continue
			}
			e := Entry{Path: path, Version: m.Version, Created: m.CreatedTime, Birth: b.of(m.Version)}
			// KV may have a deletion scheduled for later. now is truncated to the second.
			if m.DeletionTime.Before(p.now.Add(time.Second)) {
				e.DeletedAt = m.DeletionTime
			}
			p.decide(e, &d)
		}
		if err := v.carryOut(ctx, s, at, meta, b, d, p); err != nil {
			return err
		}
		if d.kept > 0 {
			return nil
		}
		return v.retire(ctx, s, path, meta, p, len(d.destroy) > 0)
	})
	if err != nil {
		return decision{}, err
	}
	v.cache.forget(path, slices.Concat(d.remove, d.destroy))
	for _, version := range d.undelete {
		v.log.Warn("a secret that is referenced was deleted; it is undeleted", "path", path, "version", version)
	}
	return d, nil
}

// carryOut sends a decision to Vault, what restores and protects versions first.
func (v *Vault) carryOut(
	ctx context.Context,
	s *session,
	at string,
	meta *api.KVMetadata,
	b births,
	d decision,
	p *pass,
) error {
	if len(d.undelete) > 0 {
		if err := s.kv.Undelete(ctx, at, d.undelete); err != nil {
			return err
		}
	}
	if len(d.stamp) > 0 || d.named != namedIn(meta) {
		for _, version := range d.stamp {
			b.set(version, meta.CurrentVersion, p.birth)
		}
		b.trim(lowestStanding(meta))
		if err := s.kv.PutMetadata(ctx, at, v.metadata(b, d.named, nil)); err != nil {
			return err
		}
	}
	if len(d.remove) > 0 {
		if err := s.kv.DeleteVersions(ctx, at, d.remove); err != nil {
			return err
		}
	}
	if len(d.destroy) == 0 {
		return nil
	}
	return s.kv.Destroy(ctx, at, d.destroy)
}

// retire records the time in an entry without versions, or deletes the entry when that time is long
// enough ago. emptied: this pass destroyed its last version. If its owner destroyed all versions,
// the judge is asked about version 0.
func (v *Vault) retire(
	ctx context.Context,
	s *session,
	path string,
	meta *api.KVMetadata,
	p *pass,
	emptied bool,
) error {
	b := parseBirths(meta.CustomMetadata)
	if p.now.Sub(meta.UpdatedTime) <= p.grace && !emptied {
		return nil // a writer is between metadata and data
	}
	if !emptied && p.ask(Entry{Path: path, Created: meta.UpdatedTime, Birth: b[0]}) != Unreferenced {
		return nil
	}
	text, _ := meta.CustomMetadata[emptiedKey].(string)
	since, err := time.Parse(time.RFC3339, text)
	switch {
	case emptied || err != nil:
		// Also for an entry that was never written, because its writer stopped between metadata and data.
		// The recorded time does not affect a writer's check-and-set.
		return s.kv.PutMetadata(ctx, v.physical(path), v.metadata(b, 0, &p.now))
	case p.now.Sub(since) > p.retention && p.now.Sub(meta.UpdatedTime) > p.retention:
		return s.kv.DeleteMetadata(ctx, v.physical(path))
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

// walk calls fn with every entry below a folder. The folder's name ends in "/".
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

// list returns the names in a folder. Names of folders end in "/".
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

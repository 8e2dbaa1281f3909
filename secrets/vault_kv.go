package secrets

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/vault/api"
)

const (
	// maxVersions is how many versions an entry of ours keeps. With KV's default of 10, ten writes
	// that are never committed would push out the version in use. Collect removes unreferenced
	// versions after the grace period, so 1,000 would have to be written within it.
	maxVersions = 1000
	// writeTries bounds how often a write is repeated after a conflict.
	writeTries = 10

	// ownerKey, emptiedKey and namedKey are members of an entry's custom metadata: our prefix, when the
	// last version was destroyed, and the lowest version that a backup names. See also birthKey.
	ownerKey   = "bivouac"
	emptiedKey = "emptied"
	namedKey   = "named"
)

// Write implements Store. It uses check-and-set against the current version, and repeats with the
// new version after a conflict.
func (v *Vault) Write(ctx context.Context, path string, data map[string]string, birth Birth) (Version, error) {
	if err := checkWrite(path, data, birth); err != nil {
		return Version{}, err
	}
	members := make(map[string]any, len(data))
	for k, value := range data {
		members[k] = value
	}
	inUse := 0
	if v.cfg.InUse != nil {
		inUse = v.cfg.InUse(path)
	}
	var version Version
	err := v.do(ctx, "write", func(ctx context.Context, s *session) error {
		var err error
		version, err = v.write(ctx, s, v.physical(path), members, birth, inUse)
		return err
	})
	if err != nil {
		return Version{}, fmt.Errorf("writing %s: %w", path, err)
	}
	return version, nil
}

// write writes the next version at a physical path, unless that pushes out inUse or what a backup names.
func (v *Vault) write(
	ctx context.Context,
	s *session,
	at string,
	data map[string]any,
	birth Birth,
	inUse int,
) (Version, error) {
	for try := range writeTries {
		current, named, err := v.claim(ctx, s, at, birth)
		if err != nil {
			return Version{}, err
		}
		for _, kept := range []struct {
			version int
			what    string
		}{{inUse, "in use"}, {named, "named by a backup"}} {
			if kept.version > 0 && kept.version <= current+1-maxVersions {
				return Version{}, fmt.Errorf("%w: version %d is %s, and %d were written since",
					ErrFull, kept.version, kept.what, current-kept.version)
			}
		}
		written, err := s.kv.Put(ctx, at, data, api.WithCheckAndSet(current))
		if err == nil {
			made := Version{Number: written.VersionMetadata.Version, Created: written.VersionMetadata.CreatedTime}
			if !parseBirths(written.CustomMetadata).of(made.Number).covers(birth) {
				err = v.amend(ctx, s, at, made.Number, birth)
			}
			return made, err
		}
		if !isConflict(err) {
			return Version{}, err
		}
		select { // a random pause, longer each time, separates concurrent writers, a slow Vault's too
		case <-ctx.Done():
			return Version{}, ctx.Err()
		case <-time.After(rand.N(min(20*time.Millisecond<<try, time.Second))):
		}
	}
	return Version{}, unavailable("others wrote it %d times while we tried", writeTries)
}

// claim makes sure that the entry exists, is marked as ours, keeps enough versions and has the
// birth of the next one. It returns the entry's current version and the lowest one that a backup names,
// 0 for none.
func (v *Vault) claim(ctx context.Context, s *session, at string, birth Birth) (current, named int, err error) {
	meta, err := s.kv.GetMetadata(ctx, at)
	if errors.Is(err, api.ErrSecretNotFound) {
		return 0, 0, s.kv.PutMetadata(ctx, at, v.metadata(births{0: birth}, 0, nil))
	}
	if err != nil {
		return 0, 0, err
	}
	named = namedIn(meta)
	b := parseBirths(meta.CustomMetadata)
	if b.begin(meta.CurrentVersion, birth) || !v.owns(meta) || meta.MaxVersions < maxVersions ||
		meta.CustomMetadata[emptiedKey] != nil {
		b.trim(lowestStanding(meta))
		if err := s.kv.PutMetadata(ctx, at, v.metadata(b, named, nil)); err != nil {
			return 0, 0, err
		}
	}
	return meta.CurrentVersion, named, nil
}

// namedIn returns the lowest version that a backup named at the last collection, 0 for none.
func namedIn(meta *api.KVMetadata) int {
	text, _ := meta.CustomMetadata[namedKey].(string)
	version, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return version
}

// metadata returns the metadata of an entry of ours. named is the lowest version that a backup names, 0
// for none. emptied is when its last version was destroyed, nil if it has versions.
func (v *Vault) metadata(b births, named int, emptied *time.Time) api.KVMetadataPutInput {
	custom := map[string]any{ownerKey: v.cfg.Prefix}
	if named > 0 {
		custom[namedKey] = strconv.Itoa(named)
	}
	b.into(custom)
	if emptied != nil {
		custom[emptiedKey] = emptied.UTC().Format(time.RFC3339)
	}
	return api.KVMetadataPutInput{MaxVersions: maxVersions, CASRequired: true, CustomMetadata: custom}
}

func (v *Vault) owns(meta *api.KVMetadata) bool {
	return meta.CustomMetadata[ownerKey] == v.cfg.Prefix
}

// Read implements Store. What it read is cached for cacheTTL.
func (v *Vault) Read(ctx context.Context, path string, version int, created time.Time) (map[string]string, error) {
	if err := checkRead(path, version); err != nil {
		return nil, err
	}
	if data, ok := v.cache.get(path, version, created); ok {
		return data, nil
	}
	var got *api.KVSecret
	var data map[string]string
	err := v.do(ctx, "read", func(ctx context.Context, s *session) error {
		var err error
		if got, err = s.kv.GetVersion(ctx, v.physical(path), version); err != nil {
			return err
		}
		if err := sameVersion(got.VersionMetadata, created); err != nil {
			return err
		}
		data, err = textMembers(got.Data)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading %s version %d: %w", path, version, err)
	}
	v.cache.put(path, version, got.VersionMetadata.CreatedTime, data)
	return data, nil
}

// sameVersion returns nil when the version was written at created, or created is zero, and it can
// be read.
func sameVersion(m *api.KVVersionMetadata, created time.Time) error {
	switch {
	case m == nil:
		return ErrNotFound
	case !created.IsZero() && !m.CreatedTime.Equal(created):
		return &ReusedError{Found: m.CreatedTime, Meant: created}
	case m.Destroyed:
		return fmt.Errorf("%w: it was destroyed", ErrNotFound)
	case !m.DeletionTime.IsZero():
		return errDeletedVersion
	}
	return nil
}

// Newest implements Store.
func (v *Vault) Newest(ctx context.Context, path string) (newest int, err error) {
	if err := checkPath(path); err != nil {
		return 0, err
	}
	err = v.do(ctx, "newest", func(ctx context.Context, s *session) error {
		newest = 0
		meta, err := s.kv.GetMetadata(ctx, v.physical(path))
		if err != nil && !errors.Is(err, api.ErrSecretNotFound) {
			return err
		}
		if err == nil {
			newest = slices.Max(append(standing(meta), 0))
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("looking for versions of %s: %w", path, err)
	}
	return newest, nil
}

// errDeletedVersion: the version can be undeleted.
var errDeletedVersion = fmt.Errorf("%w: %w", ErrNotFound, ErrDeleted)

// textMembers converts the data of a version.
func textMembers(members map[string]any) (map[string]string, error) {
	data := make(map[string]string, len(members))
	for k, value := range members {
		text, ok := value.(string)
		if !ok {
			return nil, fmt.Errorf("%w: member %.40q is not text", ErrInvalid, k)
		}
		data[k] = text
	}
	return data, nil
}

// Undelete implements Store.
func (v *Vault) Undelete(ctx context.Context, path string, version int) error {
	if err := checkRead(path, version); err != nil {
		return err
	}
	err := v.do(ctx, "undelete", func(ctx context.Context, s *session) error {
		at := v.physical(path)
		meta, err := s.kv.GetMetadata(ctx, at)
		if err != nil {
			return err
		}
		for _, m := range meta.Versions {
			if m.Version == version && !m.Destroyed {
				return s.kv.Undelete(ctx, at, []int{version})
			}
		}
		return fmt.Errorf("%w: it was destroyed, or never was", ErrNotFound)
	})
	if err != nil {
		return fmt.Errorf("undeleting %s version %d: %w", path, version, err)
	}
	return nil
}

// Delete implements Store. It destroys the versions that it sees and leaves the entry's metadata to
// Collect, for two reasons. Deleting the whole entry would include a version that is written
// concurrently. And version numbers that start again at 1 could be confused with the old ones by a
// node that has those cached. Paths that are used only once are deleted as a whole.
func (v *Vault) Delete(ctx context.Context, path string) error {
	if err := checkPath(path); err != nil {
		return err
	}
	at := v.physical(path)
	var gone []int
	err := v.do(ctx, "delete", func(ctx context.Context, s *session) error {
		meta, err := s.kv.GetMetadata(ctx, at)
		if errors.Is(err, api.ErrSecretNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		gone = standing(meta)
		if usedOnce(path) {
			return s.kv.DeleteMetadata(ctx, at)
		}
		if len(gone) == 0 {
			return nil
		}
		if err := s.kv.Destroy(ctx, at, gone); err != nil {
			return err
		}
		now := time.Now()
		return s.kv.PutMetadata(ctx, at, v.metadata(parseBirths(meta.CustomMetadata), 0, &now))
	})
	if err != nil {
		return fmt.Errorf("deleting %s: %w", path, err)
	}
	v.cache.forget(path, gone)
	return nil
}

// usedOnce reports whether the path contains an id that is never reused.
func usedOnce(path string) bool {
	return strings.HasPrefix(path, "sandboxes/") || strings.Contains(path, "/start_tasks/")
}

// standing returns the versions of an entry that are not destroyed.
func standing(meta *api.KVMetadata) []int {
	var versions []int
	for _, m := range meta.Versions {
		if !m.Destroyed {
			versions = append(versions, m.Version)
		}
	}
	return versions
}

// Health implements Store.
func (v *Vault) Health(ctx context.Context) error {
	err := v.do(ctx, "health", func(ctx context.Context, s *session) error {
		_, err := v.serverTime(ctx, s)
		return err
	})
	if err != nil {
		return fmt.Errorf("vault at %s: %w", v.cfg.Address, err)
	}
	return nil
}

// serverTime returns the time of Vault's clock, which also stamps the versions, to the second. A
// Vault that can't serve is ErrUnavailable.
func (v *Vault) serverTime(ctx context.Context, s *session) (time.Time, error) {
	health, err := s.client.Sys().HealthWithContext(ctx)
	switch {
	case err != nil:
		return time.Time{}, err
	case !health.Initialized:
		return time.Time{}, unavailable("vault is not initialised")
	case health.Sealed:
		return time.Time{}, errSealed
	}
	return time.Unix(health.ServerTimeUTC, 0), nil
}

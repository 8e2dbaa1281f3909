package secrets

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/hashicorp/vault/api"
)

const (
	// maxVersions is what an entry of ours keeps. KV's own default is 10: ten
	// writes that came to nothing would push out the version in use. Collect
	// clears unreferenced ones after the grace period, so this many would have
	// to fall into it.
	maxVersions = 1000
	// writeTries bounds how often a write that lost against others is repeated.
	writeTries = 10

	// ownerKey and emptiedKey are members of an entry's custom metadata: our
	// prefix, and when the last version was destroyed.
	ownerKey   = "bivouac"
	emptiedKey = "emptied"
)

// Write implements Store: check-and-set against the current version, again with
// the new one when somebody was faster.
func (v *Vault) Write(ctx context.Context, path string, data map[string]string) (int, error) {
	if err := checkWrite(path, data); err != nil {
		return 0, err
	}
	members := make(map[string]any, len(data))
	for k, value := range data {
		members[k] = value
	}
	var version int
	err := v.do(ctx, "write", func(ctx context.Context, s *session) error {
		var err error
		version, err = v.write(ctx, s, v.physical(path), members)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("writing %s: %w", path, err)
	}
	return version, nil
}

func (v *Vault) write(ctx context.Context, s *session, at string, data map[string]any) (int, error) {
	for range writeTries {
		current, err := v.claim(ctx, s, at)
		if err != nil {
			return 0, err
		}
		written, err := s.kv.Put(ctx, at, data, api.WithCheckAndSet(current))
		if err == nil {
			return written.VersionMetadata.Version, nil
		}
		if !isConflict(err) {
			return 0, err
		}
		select { // step out of the other's rhythm
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(rand.N(20 * time.Millisecond)):
		}
	}
	return 0, unavailable("others wrote it %d times while we tried", writeTries)
}

// claim makes sure that the entry is there, is marked as ours and keeps enough
// versions, and gives its current version, 0 for none.
func (v *Vault) claim(ctx context.Context, s *session, at string) (int, error) {
	meta, err := s.kv.GetMetadata(ctx, at)
	if err != nil && !errors.Is(err, api.ErrSecretNotFound) {
		return 0, err
	}
	if meta == nil || !v.owns(meta) || meta.MaxVersions < maxVersions || meta.CustomMetadata[emptiedKey] != nil {
		if err := s.kv.PutMetadata(ctx, at, v.metadata(nil)); err != nil {
			return 0, err
		}
	}
	if meta == nil {
		return 0, nil
	}
	return meta.CurrentVersion, nil
}

// metadata is that of an entry of ours; emptied is when its last version went.
func (v *Vault) metadata(emptied *time.Time) api.KVMetadataPutInput {
	custom := map[string]any{ownerKey: v.cfg.Prefix}
	if emptied != nil {
		custom[emptiedKey] = emptied.UTC().Format(time.RFC3339)
	}
	return api.KVMetadataPutInput{MaxVersions: maxVersions, CASRequired: true, CustomMetadata: custom}
}

func (v *Vault) owns(meta *api.KVMetadata) bool {
	return meta.CustomMetadata[ownerKey] == v.cfg.Prefix
}

// Read implements Store. What was read is remembered for half a minute.
func (v *Vault) Read(ctx context.Context, path string, version int) (map[string]string, error) {
	if err := checkRead(path, version); err != nil {
		return nil, err
	}
	if data, ok := v.cache.get(path, version); ok {
		return data, nil
	}
	var data map[string]string
	err := v.do(ctx, "read", func(ctx context.Context, s *session) error {
		got, err := s.kv.GetVersion(ctx, v.physical(path), version)
		if err != nil {
			return err
		}
		if got.Data == nil { // deleted or destroyed
			return ErrNotFound
		}
		data = make(map[string]string, len(got.Data))
		for k, value := range got.Data {
			text, ok := value.(string)
			if !ok {
				return fmt.Errorf("%w: member %.40q is not text", ErrInvalid, k)
			}
			data[k] = text
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading %s version %d: %w", path, version, err)
	}
	v.cache.put(path, version, data)
	return data, nil
}

// Delete implements Store. It destroys the versions it sees and leaves the
// entry's metadata to Collect, for two reasons: to delete it all would take a
// version along that is written at the same time, and version numbers that
// began again at 1 could be taken for the old ones by a node that remembers
// those. Paths that are used only once are deleted whole.
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
		return s.kv.PutMetadata(ctx, at, v.metadata(&now))
	})
	if err != nil {
		return fmt.Errorf("deleting %s: %w", path, err)
	}
	v.cache.forget(path, gone)
	return nil
}

// usedOnce: paths with an id in them that is never given out again.
func usedOnce(path string) bool {
	return strings.HasPrefix(path, "sandboxes/") || strings.Contains(path, "/start_tasks/")
}

// standing are the versions of an entry that are not destroyed.
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

// serverTime is Vault's clock, which also stamps the versions. A Vault that
// can't serve is ErrUnavailable.
func (v *Vault) serverTime(ctx context.Context, s *session) (time.Time, error) {
	health, err := s.client.Sys().HealthWithContext(ctx)
	switch {
	case err != nil:
		return time.Time{}, err
	case !health.Initialized:
		return time.Time{}, unavailable("vault is not initialised")
	case health.Sealed:
		return time.Time{}, unavailable("vault is sealed")
	}
	return time.Unix(health.ServerTimeUTC, 0), nil
}

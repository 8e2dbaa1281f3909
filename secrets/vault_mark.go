package secrets

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/vault/api"
)

const (
	// markEntry is the mark's entry below the prefix. Collect skips it, because paths of secrets have
	// at least two segments.
	markEntry = "marker"
	// markMember is its only member.
	markMember = "mark"
	// markVersions is how many old marks KV keeps, for operators to inspect.
	markVersions = 10
)

// Place implements Marks.
func (v *Vault) Place() string {
	return fmt.Sprintf("the prefix %s of vault's mount %s", v.cfg.Prefix, v.cfg.Mount)
}

// markAt returns the path of the mark in the mount.
func (v *Vault) markAt() string { return v.cfg.Prefix + "/" + markEntry }

// ReadMark implements Marks. cas is the entry's current version. A mark that was deleted counts as
// missing.
func (v *Vault) ReadMark(ctx context.Context) (mark Mark, cas uint64, found bool, err error) {
	err = v.do(ctx, "mark", func(ctx context.Context, s *session) error {
		mark, cas, found = Mark{}, 0, false
		got, err := s.kv.Get(ctx, v.markAt())
		if errors.Is(err, api.ErrSecretNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if got.VersionMetadata != nil {
			cas = uint64(got.VersionMetadata.Version)
		}
		if got.Data == nil {
			return nil
		}
		text, _ := got.Data[markMember].(string)
		mark, err = decodeMark(text, v.cfg.Mount+"/"+v.markAt())
		found = err == nil
		return err
	})
	if err != nil {
		return Mark{}, 0, false, fmt.Errorf("reading the mark: %w", err)
	}
	return mark, cas, found, nil
}

// WriteMark implements Marks.
func (v *Vault) WriteMark(ctx context.Context, mark Mark, cas uint64) error {
	text, err := encodeMark(mark)
	if err != nil {
		return err
	}
	err = v.do(ctx, "mark", func(ctx context.Context, s *session) error {
		if cas == 0 {
			custom := map[string]any{ownerKey: v.cfg.Prefix}
			err := s.kv.PutMetadata(ctx, v.markAt(),
				api.KVMetadataPutInput{MaxVersions: markVersions, CASRequired: true, CustomMetadata: custom})
			if err != nil {
				return err
			}
		}
		_, err := s.kv.Put(ctx, v.markAt(), map[string]any{markMember: text}, api.WithCheckAndSet(int(cas)))
		if isConflict(err) {
			return ErrConflict
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("writing the mark: %w", err)
	}
	return nil
}

package secrets

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
)

// Write implements Store. The version is on disk when it returns.
func (s *Sealed) Write(ctx context.Context, path string, data map[string]string, birth Birth) (Version, error) {
	if err := checkWrite(path, data, birth); err != nil {
		return Version{}, err
	}
	var version Version
	err := s.update(ctx, bucketVersions, func(b *bbolt.Bucket) error {
		n, err := b.NextSequence()
		if err != nil {
			return err
		}
		key := versionKey(path, int(n))
		r, err := s.newRecord(key, data, birth)
		if err != nil {
			return err
		}
		version = Version{Number: int(n), Created: r.createdAt()}
		return b.Put(key, r.encode())
	})
	if err != nil {
		return Version{}, fmt.Errorf("writing %s: %w", path, err)
	}
	return version, nil
}

// Read implements Store.
func (s *Sealed) Read(ctx context.Context, path string, version int, created time.Time) (map[string]string, error) {
	if err := checkRead(path, version); err != nil {
		return nil, err
	}
	var data map[string]string
	err := s.view(ctx, bucketVersions, func(b *bbolt.Bucket) error {
		key := versionKey(path, version)
		r, err := getRecord(b, key)
		switch {
		case err != nil:
			return err
		case !created.IsZero() && !r.createdAt().Equal(created):
			return &ReusedError{Found: r.createdAt(), Meant: created}
		case r.deleted != 0:
			return errDeletedVersion
		}
		data, err = s.unseal(key, r)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading %s version %d: %w", path, version, err)
	}
	return data, nil
}

// Newest implements Store.
func (s *Sealed) Newest(ctx context.Context, path string) (newest int, err error) {
	if err := checkPath(path); err != nil {
		return 0, err
	}
	prefix := append([]byte(path), 0)
	err = s.view(ctx, bucketVersions, func(b *bbolt.Bucket) error {
		c := b.Cursor()
		for k, _ := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, _ = c.Next() {
			if _, version, ok := parseVersionKey(k); ok {
				newest = max(newest, version)
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("looking for versions of %s: %w", path, err)
	}
	return newest, nil
}

// getRecord returns ErrNotFound when there is no record.
func getRecord(b *bbolt.Bucket, key []byte) (record, error) {
	raw := b.Get(key)
	if raw == nil {
		return record{}, ErrNotFound
	}
	return decodeRecord(raw)
}

// Delete implements Store.
func (s *Sealed) Delete(ctx context.Context, path string) error {
	if err := checkPath(path); err != nil {
		return err
	}
	prefix := append([]byte(path), 0)
	err := s.update(ctx, bucketVersions, func(b *bbolt.Bucket) error {
		var keys [][]byte // a cursor must not meet its own deletions
		c := b.Cursor()
		for k, _ := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, _ = c.Next() {
			keys = append(keys, bytes.Clone(k))
		}
		for _, k := range keys {
			if err := b.Delete(k); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("deleting %s: %w", path, err)
	}
	return nil
}

// Undelete implements Store.
func (s *Sealed) Undelete(ctx context.Context, path string, version int) error {
	if err := checkRead(path, version); err != nil {
		return err
	}
	err := s.update(ctx, bucketVersions, func(b *bbolt.Bucket) error {
		return changeRecord(b, versionKey(path, version), func(r *record) { r.deleted = 0 })
	})
	if err != nil {
		return fmt.Errorf("undeleting %s version %d: %w", path, version, err)
	}
	return nil
}

// changeRecord rewrites the part of a record that is not sealed.
func changeRecord(b *bbolt.Bucket, key []byte, change func(*record)) error {
	r, err := getRecord(b, key)
	if err != nil {
		return err
	}
	change(&r)
	return b.Put(key, r.encode())
}

package secrets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/bbolt"
)

// The files of a sealed store, in its directory.
const (
	sealedFile    = "secrets.db"
	sealedKeyFile = "secrets.key"
)

// The buckets and keys of secrets.db. sealed_record.go describes the versions.
//
//nolint:gochecknoglobals // read-only
var (
	bucketMeta     = []byte("meta")
	bucketVersions = []byte("versions")
	keyFormat      = []byte("format")
	keyCheck       = []byte("check")
	keyMark        = []byte("mark")
)

// sealedFormat is the file format. The program also reads format 1 and converts it to format 2 when
// it opens the file.
const (
	sealedFormat    = "2"
	sealedFormatOld = "1"
)

// Sealed is the Store of the embedded default: one file, whose values are sealed with a key in a
// second file beside it (see sealer). It protects a copy of secrets.db alone. It does not protect
// against the loss of the whole directory; use Vault for that.
//
// Version numbers belong to the store and not to the path. They are never reused, not even after an
// entry is deleted.
type Sealed struct {
	// mu is held by readers and writers of db, exclusively by what replaces it.
	mu               sync.RWMutex
	db               *bbolt.DB
	dir              string
	sealer           *sealer
	grace, retention time.Duration
	now              func() time.Time
}

// SealedOptions says how long a Sealed store keeps unreferenced versions.
type SealedOptions struct {
	// Grace is how old an unreferenced version must be before Collect deletes it; 0 is DefaultGrace.
	// Retention is how long it can be undeleted after that; 0 is DefaultRetention.
	Grace, Retention time.Duration
}

// OpenSealed opens the store in dir and creates it if it does not exist. It returns an error when
// another process has the store open, when the key is missing or does not match, when others can read
// or replace a file, and when the file is damaged.
func OpenSealed(dir string, o SealedOptions) (*Sealed, error) {
	s := &Sealed{dir: dir, grace: o.Grace, retention: o.Retention, now: time.Now}
	s.grace = cmp.Or(s.grace, DefaultGrace)
	s.retention = cmp.Or(s.retention, DefaultRetention)
	if err := s.open(dir); err != nil {
		return nil, fmt.Errorf("opening the secrets in %s: %w", dir, err)
	}
	return s, nil
}

func (s *Sealed) open(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := private(dir); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, compactedFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	path := filepath.Join(dir, sealedFile)
	_, err := os.Stat(path)
	fresh := errors.Is(err, os.ErrNotExist)
	if s.sealer, err = loadSealer(filepath.Join(dir, sealedKeyFile), fresh); err != nil {
		return err
	}
	if s.db, err = openFile(path); err != nil {
		return err
	}
	if err := contain(func() error { return s.db.Update(s.check) }); err != nil {
		return errors.Join(err, s.db.Close())
	}
	return nil
}

// check creates the buckets of a new file, verifies that the key is the one an existing file was
// sealed with, and upgrades an old format.
func (s *Sealed) check(tx *bbolt.Tx) error {
	meta, err := tx.CreateBucketIfNotExists(bucketMeta)
	if err != nil {
		return err
	}
	versions, err := tx.CreateBucketIfNotExists(bucketVersions)
	if err != nil {
		return err
	}
	format := string(meta.Get(keyFormat))
	switch format {
	case "":
		sealed := s.sealer.seal([]byte(sealedFormat), keyCheck)
		return errors.Join(meta.Put(keyFormat, []byte(sealedFormat)), meta.Put(keyCheck, sealed))
	case sealedFormat, sealedFormatOld:
	default:
		return fmt.Errorf("%s has format %.20q; this program knows %s and %s", sealedFile, format, sealedFormatOld,
			sealedFormat)
	}
	if _, err := s.sealer.open(meta.Get(keyCheck), keyCheck); err != nil {
		return fmt.Errorf("%s is not the key %s was sealed with", sealedKeyFile, sealedFile)
	}
	if format == sealedFormatOld {
		return errors.Join(upgradeRecords(versions), meta.Put(keyFormat, []byte(sealedFormat)))
	}
	return nil
}

// Close closes the files. Later operations return ErrUnavailable.
func (s *Sealed) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.db.Close()
}

// Health implements Store.
func (s *Sealed) Health(ctx context.Context) error {
	return s.view(ctx, bucketVersions, func(*bbolt.Bucket) error { return nil })
}

func (s *Sealed) update(ctx context.Context, bucket []byte, fn func(*bbolt.Bucket) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return sealedError(contain(func() error {
		return s.db.Update(func(tx *bbolt.Tx) error { return fn(tx.Bucket(bucket)) })
	}))
}

func (s *Sealed) view(ctx context.Context, bucket []byte, fn func(*bbolt.Bucket) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return sealedError(contain(func() error {
		return s.db.View(func(tx *bbolt.Tx) error { return fn(tx.Bucket(bucket)) })
	}))
}

// sealedError reports a disk that is full or failing as ErrUnavailable.
func sealedError(err error) error {
	if err == nil {
		return nil
	}
	for _, known := range []error{ErrNotFound, ErrConflict, ErrUnavailable, errDamaged} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

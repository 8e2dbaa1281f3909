package secrets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// The files of a sealed store, in its directory.
const (
	sealedFile    = "secrets.db"
	sealedKeyFile = "secrets.key"
)

// The buckets and keys of secrets.db; the versions are sealed_record.go's.
var (
	bucketMeta     = []byte("meta")
	bucketVersions = []byte("versions")
	keyFormat      = []byte("format")
	keyCheck       = []byte("check")
	keyMark        = []byte("mark")
)

// sealedFormat is the file format's number. The program reads format 1, too,
// and makes it format 2 when it opens the file.
const (
	sealedFormat    = "2"
	sealedFormatOld = "1"
)

// Sealed is the Store of the embedded default: one file, its values sealed with
// a key that lies beside it (see sealer). It protects a copy of the file, not
// a directory that is lost whole; that is what Vault is for.
//
// Version numbers are the store's, not the path's: they never come again, not
// even after an entry is deleted.
type Sealed struct {
	db               *bbolt.DB
	dir              string
	sealer           *sealer
	grace, retention time.Duration
	now              func() time.Time
}

// SealedOptions say how long a Sealed store keeps what nobody refers to.
type SealedOptions struct {
	// Grace is how old an unreferenced version must be before Collect deletes
	// it, 0 is DefaultGrace; Retention is how long it can be undeleted then, 0 is
	// DefaultRetention.
	Grace, Retention time.Duration
}

// OpenSealed opens the store in dir and makes it when it is not there. A store
// that another process has open, a key that does not fit or a missing key is an
// error that says so.
func OpenSealed(dir string, o SealedOptions) (*Sealed, error) {
	s := &Sealed{dir: dir, grace: o.Grace, retention: o.Retention, now: time.Now}
	if s.grace == 0 {
		s.grace = DefaultGrace
	}
	if s.retention == 0 {
		s.retention = DefaultRetention
	}
	if err := s.open(dir); err != nil {
		return nil, fmt.Errorf("opening the secrets in %s: %w", dir, err)
	}
	return s, nil
}

func (s *Sealed) open(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(dir, sealedFile)
	_, err := os.Stat(path)
	fresh := errors.Is(err, os.ErrNotExist)
	if s.sealer, err = loadSealer(filepath.Join(dir, sealedKeyFile), fresh); err != nil {
		return err
	}
	s.db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("another process has %s open", sealedFile)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", sealedFile, err)
	}
	if err := s.db.Update(s.check); err != nil {
		return errors.Join(err, s.db.Close())
	}
	return nil
}

// check makes the buckets of a new file, finds out whether the key is the one an
// old file was sealed with, and brings an old format up to date.
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
		return fmt.Errorf("%s has format %.20q; this program knows %s and %s", sealedFile, format, sealedFormatOld, sealedFormat)
	}
	if _, err := s.sealer.open(meta.Get(keyCheck), keyCheck); err != nil {
		return fmt.Errorf("%s is not the key %s was sealed with", sealedKeyFile, sealedFile)
	}
	if format == sealedFormatOld {
		return errors.Join(upgradeRecords(versions), meta.Put(keyFormat, []byte(sealedFormat)))
	}
	return nil
}

// Close closes the files. Operations after it are ErrUnavailable.
func (s *Sealed) Close() error { return s.db.Close() }

// Health implements Store.
func (s *Sealed) Health(ctx context.Context) error {
	return s.view(ctx, bucketVersions, func(*bbolt.Bucket) error { return nil })
}

func (s *Sealed) update(ctx context.Context, bucket []byte, fn func(*bbolt.Bucket) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return sealedError(s.db.Update(func(tx *bbolt.Tx) error { return fn(tx.Bucket(bucket)) }))
}

func (s *Sealed) view(ctx context.Context, bucket []byte, fn func(*bbolt.Bucket) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return sealedError(s.db.View(func(tx *bbolt.Tx) error { return fn(tx.Bucket(bucket)) }))
}

// sealedError: a disk that is full or fails is a store that is away.
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

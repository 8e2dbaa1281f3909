package secrets

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// The files of a sealed store, in its directory.
const (
	sealedFile    = "secrets.db"
	sealedKeyFile = "secrets.key"
)

// The buckets and keys of secrets.db. An entry's key is its path, a zero byte
// and the version, big-endian, so that an entry's versions lie side by side.
var (
	bucketMeta     = []byte("meta")
	bucketVersions = []byte("versions")
	keyFormat      = []byte("format")
	keyCheck       = []byte("check")
)

// sealedFormat is the file format's number.
const sealedFormat = "1"

// Sealed is the Store of the embedded default: one file, its values sealed with
// a key that lies beside it (see sealer). It protects a copy of the file, not
// a directory that is lost whole; that is what Vault is for.
//
// Version numbers are the store's, not the path's: they never come again, not
// even after an entry is deleted.
type Sealed struct {
	db     *bbolt.DB
	sealer *sealer
	grace  time.Duration
	now    func() time.Time
}

// OpenSealed opens the store in dir and makes it when it is not there. grace is
// how old an unreferenced version must be before Collect takes it; 0 is
// DefaultGrace. A store that another process has open, a key that does not fit
// or a missing key is an error that says so.
func OpenSealed(dir string, grace time.Duration) (*Sealed, error) {
	s := &Sealed{grace: grace, now: time.Now}
	if grace == 0 {
		s.grace = DefaultGrace
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

// check makes the buckets of a new file, and finds out whether the key is the
// one an old file was sealed with.
func (s *Sealed) check(tx *bbolt.Tx) error {
	meta, err := tx.CreateBucketIfNotExists(bucketMeta)
	if err != nil {
		return err
	}
	if _, err := tx.CreateBucketIfNotExists(bucketVersions); err != nil {
		return err
	}
	format := meta.Get(keyFormat)
	if format == nil {
		sealed := s.sealer.seal([]byte(sealedFormat), keyCheck)
		return errors.Join(meta.Put(keyFormat, []byte(sealedFormat)), meta.Put(keyCheck, sealed))
	}
	if string(format) != sealedFormat {
		return fmt.Errorf("%s has format %.20q; this program knows %s", sealedFile, format, sealedFormat)
	}
	if _, err := s.sealer.open(meta.Get(keyCheck), keyCheck); err != nil {
		return fmt.Errorf("%s is not the key %s was sealed with", sealedKeyFile, sealedFile)
	}
	return nil
}

// Close closes the files. Operations after it are ErrUnavailable.
func (s *Sealed) Close() error { return s.db.Close() }

// versionKey is where a version lies.
func versionKey(path string, version int) []byte {
	return binary.BigEndian.AppendUint64(append([]byte(path), 0), uint64(version))
}

// parseVersionKey is its reverse.
func parseVersionKey(key []byte) (path string, version int, ok bool) {
	i := bytes.IndexByte(key, 0)
	if i < 0 || len(key) != i+9 {
		return "", 0, false
	}
	return string(key[:i]), int(binary.BigEndian.Uint64(key[i+1:])), true
}

// A record is the time of writing (Unix microseconds, 8 bytes, in clear), and
// the sealed data. Key and time are bound to the data: a record that is moved
// or redated does not open.
func (s *Sealed) record(key []byte, data map[string]string) ([]byte, error) {
	plain, err := json.Marshal(data)
	if err != nil {
		return nil, err
	}
	written := binary.BigEndian.AppendUint64(nil, uint64(s.now().UnixMicro()))
	return append(written, s.sealer.seal(plain, slices.Concat(key, written))...), nil
}

// Write implements Store. It is on disk when it returns.
func (s *Sealed) Write(ctx context.Context, path string, data map[string]string) (int, error) {
	if err := checkWrite(path, data); err != nil {
		return 0, err
	}
	var version int
	err := s.update(ctx, func(b *bbolt.Bucket) error {
		n, err := b.NextSequence()
		if err != nil {
			return err
		}
		version = int(n)
		key := versionKey(path, version)
		record, err := s.record(key, data)
		if err != nil {
			return err
		}
		return b.Put(key, record)
	})
	if err != nil {
		return 0, fmt.Errorf("writing %s: %w", path, err)
	}
	return version, nil
}

// Read implements Store.
func (s *Sealed) Read(ctx context.Context, path string, version int) (map[string]string, error) {
	if err := checkRead(path, version); err != nil {
		return nil, err
	}
	var data map[string]string
	err := s.view(ctx, func(b *bbolt.Bucket) error {
		key := versionKey(path, version)
		record := b.Get(key)
		if record == nil {
			return ErrNotFound
		}
		if len(record) < 8 {
			return errDamaged
		}
		plain, err := s.sealer.open(record[8:], slices.Concat(key, record[:8]))
		if err != nil {
			return err
		}
		return json.Unmarshal(plain, &data)
	})
	if err != nil {
		return nil, fmt.Errorf("reading %s version %d: %w", path, version, err)
	}
	return data, nil
}

// Delete implements Store.
func (s *Sealed) Delete(ctx context.Context, path string) error {
	if err := checkPath(path); err != nil {
		return err
	}
	prefix := append([]byte(path), 0)
	err := s.update(ctx, func(b *bbolt.Bucket) error {
		_, err := deleteKeys(b, prefix, func([]byte, []byte) bool { return true })
		return err
	})
	if err != nil {
		return fmt.Errorf("deleting %s: %w", path, err)
	}
	return nil
}

// Collect implements Store.
func (s *Sealed) Collect(ctx context.Context, live func(path string, version int) bool) (int, error) {
	limit := s.now().Add(-s.grace).UnixMicro()
	destroyed := 0
	err := s.update(ctx, func(b *bbolt.Bucket) error {
		var err error
		destroyed, err = deleteKeys(b, nil, func(key, record []byte) bool {
			path, version, ok := parseVersionKey(key)
			if !ok || len(record) < 8 {
				return false
			}
			return int64(binary.BigEndian.Uint64(record)) < limit && !live(path, version)
		})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("collecting secrets: %w", err)
	}
	return destroyed, nil
}

// deleteKeys deletes the keys with that prefix for which dead is true. A cursor
// must not meet its own deletes, hence the list.
func deleteKeys(b *bbolt.Bucket, prefix []byte, dead func(key, record []byte) bool) (int, error) {
	var keys [][]byte
	c := b.Cursor()
	for k, record := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, record = c.Next() {
		if dead(k, record) {
			keys = append(keys, bytes.Clone(k))
		}
	}
	for _, k := range keys {
		if err := b.Delete(k); err != nil {
			return 0, err
		}
	}
	return len(keys), nil
}

// Health implements Store.
func (s *Sealed) Health(ctx context.Context) error {
	return s.view(ctx, func(*bbolt.Bucket) error { return nil })
}

func (s *Sealed) update(ctx context.Context, fn func(*bbolt.Bucket) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return sealedError(s.db.Update(func(tx *bbolt.Tx) error { return fn(tx.Bucket(bucketVersions)) }))
}

func (s *Sealed) view(ctx context.Context, fn func(*bbolt.Bucket) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return sealedError(s.db.View(func(tx *bbolt.Tx) error { return fn(tx.Bucket(bucketVersions)) }))
}

// sealedError: a disk that is full or fails is a store that is away.
func sealedError(err error) error {
	if err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, errDamaged) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

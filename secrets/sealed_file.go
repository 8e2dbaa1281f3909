package secrets

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// compactedFile is what a compaction writes before it takes the place of secrets.db.
const compactedFile = sealedFile + ".compact"

// minCompacted is the free room in secrets.db, in bytes, below which it is not compacted.
const minCompacted = 1 << 20

// boltOptions are those of secrets.db and of what replaces it.
func boltOptions() *bbolt.Options { return &bbolt.Options{Timeout: time.Second} }

// private returns an error if others could read the key, or replace the key or the store.
func private(dir string) error {
	for _, file := range []struct {
		name   string
		others fs.FileMode
		can    string
		mode   string
	}{
		{"", 0o022, "replace what is in it", "700"},
		{sealedKeyFile, 0o077, "read or change it", "600"},
		{sealedFile, 0o022, "change it", "600"},
	} {
		path := filepath.Join(dir, file.name)
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if mode := info.Mode().Perm(); mode&file.others != 0 {
			return fmt.Errorf("%s has mode %04o: others can %s; chmod %s %s", filepath.Base(path), mode, file.can, file.mode,
				path)
		}
	}
	return nil
}

// openFile opens secrets.db and reads all of it.
func openFile(path string) (db *bbolt.DB, err error) {
	if info, err := os.Stat(path); err == nil && info.Size() == 0 {
		return nil, damagedFile(errors.New("it is empty"))
	}
	err = contain(func() (err error) { db, err = bbolt.Open(path, 0o600, boltOptions()); return err })
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("another process has %s open", sealedFile)
	case errors.Is(err, fs.ErrPermission):
		return nil, err
	case err != nil:
		return nil, damagedFile(err)
	}
	if err := contain(func() error { return db.View(readAll) }); err != nil {
		return nil, errors.Join(damagedFile(err), db.Close())
	}
	return db, nil
}

// readAll reads every record. It finds a file that is shorter than its pages before that.
func readAll(tx *bbolt.Tx) error {
	info, err := os.Stat(tx.DB().Path())
	if err != nil {
		return err
	}
	if info.Size() < tx.Size() {
		return fmt.Errorf("%d of its %d bytes are left", info.Size(), tx.Size())
	}
	return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
		return b.ForEach(func(_, _ []byte) error { return nil })
	})
}

// damagedFile says what to do about a file that can't be read.
func damagedFile(err error) error {
	return fmt.Errorf("%s is damaged: %w: put a copy of it back, or move it away and save the secrets again", sealedFile,
		err)
}

// contain turns a panic of bbolt, or a fault in the mapped file, into an error.
func contain(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errDamaged, p)
		}
	}()
	return fn()
}

// compact replaces secrets.db with a copy without free pages if those are more than half of it.
// Readers and writers wait for it.
func (s *Sealed) compact(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var size, free int64
	err := contain(func() error {
		return s.db.View(func(tx *bbolt.Tx) error {
			stats := s.db.Stats()
			size, free = tx.Size(), int64(stats.FreePageN+stats.PendingPageN)*int64(s.db.Info().PageSize)
			return ctx.Err()
		})
	})
	if err != nil || free < minCompacted || 2*free < size {
		return err
	}
	path := filepath.Join(s.dir, compactedFile)
	next, err := bbolt.Open(path, 0o600, boltOptions())
	if err != nil {
		return err
	}
	err = contain(func() error { return bbolt.Compact(next, s.db, 0) })
	if err == nil {
		err = os.Rename(path, filepath.Join(s.dir, sealedFile))
	}
	if err != nil {
		return errors.Join(err, next.Close(), os.Remove(path))
	}
	former := s.db
	s.db = next // the lock of the file goes with it
	return errors.Join(syncDir(s.dir), former.Close())
}

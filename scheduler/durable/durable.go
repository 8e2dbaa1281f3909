// Package durable replaces files so that a crash or a power failure leaves the old or the new
// content.
package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Replace writes data to a file beside path, syncs it, gives it the mode, renames it to path and
// syncs the directory. renameio.WriteFile would keep the mode of the existing file, may write to
// $TMPDIR first, and does not sync the directory: after a power failure the old file could be back.
func Replace(path string, data []byte, mode os.FileMode) error {
	if err := replace(path, data, mode); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

func replace(path string, data []byte, mode os.FileMode) error {
	dir := filepath.Dir(path)
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(dir), renameio.WithStaticPermissions(mode))
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.CloseAtomicallyReplace()
	}
	if err != nil {
		return errors.Join(err, f.Cleanup())
	}
	return SyncDir(dir)
}

// SyncDir makes the names in a directory last over a power failure.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("syncing a directory: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}

package agentserver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// writeFileSync writes a file and syncs it; it must not exist yet.
func writeFileSync(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// replaceFile makes path hold data, whole or not at all, whenever the machine
// stops.
func replaceFile(path string, data []byte) error {
	tmp := path + ".tmp"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := writeFileSync(tmp, data); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// appendSync adds data at offset size, where the file is known to end well,
// and syncs. A write that fails half-way is cut off again, so that the file
// holds whole lines only.
func appendSync(path string, size int64, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, size)
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("appending: %w", err), f.Truncate(size))
	}
	return errors.Join(err, f.Close())
}

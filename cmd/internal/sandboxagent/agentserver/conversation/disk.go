package conversation

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// writeFileSync writes and syncs a new file. It fails if the file exists.
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

// appendSync writes data at offset size, the end of the last complete line, and syncs. It truncates
// a failed write, so that the file has only complete lines.
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

// IsFull reports whether an error means that the disk has no room.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

package nemesis

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"time"
)

// Clock is the wall clock of one node, of a program built with
// Overlay.MoveClocks.
type Clock struct{ file *os.File }

// NewClock opens the clock's file, which the node makes where it is not there
// yet. dir is what the
// node has as BIVOUAC_DRILL_DIR, name its BIVOUAC_DRILL_NODE.
func NewClock(dir, name string) (*Clock, error) {
	f, err := os.OpenFile(filepath.Join(dir, "clock-"+name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	c := &Clock{file: f}
	return c, c.Set(0)
}

// Set puts the clock so far, in whole seconds, before or behind the true time.
func (c *Clock) Set(offset time.Duration) error {
	raw := make([]byte, 8)
	binary.NativeEndian.PutUint64(raw, uint64(int64(offset/time.Second)))
	_, err := c.file.WriteAt(raw, 0)
	return err
}

// Close closes the file.
func (c *Clock) Close() error { return c.file.Close() }

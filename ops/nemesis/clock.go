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

// Lateness is how a node sends Raft's messages, of a program built with
// Overlay.HoldMessages. The zero Lateness sends them as they are.
type Lateness struct {
	// Twice is how many of a hundred messages are sent again later, Held how many
	// wait before they are sent, and Lost how many are sent later while the sender
	// is told that they were not. Snapshots is how many of a hundred snapshots are
	// sent again later, beside those.
	Twice, Held, Lost, Snapshots uint8
	// Most is how late the latest is; those that are held wait a tenth of it.
	Most time.Duration
}

// Mail sets the Lateness of one node.
type Mail struct{ file *os.File }

// NewMail opens the file by which a node is told. The seed decides which messages
// are late.
func NewMail(dir, name string, seed uint64) (*Mail, error) {
	f, err := os.OpenFile(filepath.Join(dir, "mail-"+name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	m := &Mail{file: f}
	raw := make([]byte, 8)
	binary.NativeEndian.PutUint64(raw, seed)
	if _, err := f.WriteAt(raw, 8); err != nil {
		return m, err
	}
	return m, m.Set(Lateness{})
}

// Set tells the node, from the next message on.
func (m *Mail) Set(l Lateness) error {
	raw := make([]byte, 8)
	word := uint64(l.Twice) | uint64(l.Held)<<8 | uint64(l.Lost)<<16 | uint64(l.Snapshots)<<24 | uint64(l.Most/time.Millisecond)<<32
	binary.NativeEndian.PutUint64(raw, word)
	_, err := m.file.WriteAt(raw, 0)
	return err
}

// Close closes the file.
func (m *Mail) Close() error { return m.file.Close() }

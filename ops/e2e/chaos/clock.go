package chaos

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"time"
)

// Clock sets the wall clock of one node whose program was built with Overlay.MoveClocks.
type Clock struct{ file *os.File }

// NewClock opens the clock's file and creates it if it is missing. dir is the node's
// BIVOUAC_DRILL_DIR, name its BIVOUAC_DRILL_NODE.
func NewClock(dir, name string) (*Clock, error) {
	f, err := os.OpenFile(filepath.Join(dir, "clock-"+name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	c := &Clock{file: f}
	return c, c.Set(0)
}

// Set moves the clock by the offset, in whole seconds, from the true time.
func (c *Clock) Set(offset time.Duration) error {
	raw := make([]byte, 8)
	binary.NativeEndian.PutUint64(raw, uint64(int64(offset/time.Second)))
	_, err := c.file.WriteAt(raw, 0)
	return err
}

// Close closes the file.
func (c *Clock) Close() error { return c.file.Close() }

// Lateness says how a node whose program was built with Overlay.HoldMessages sends Raft's
// messages. The zero Lateness sends them unchanged.
type Lateness struct {
	// In percent of the messages: Twice are sent a second time later, Held are sent later, and
	// Lost are sent later while the sender gets an error. Snapshots is the percentage of
	// snapshots that are sent a second time later.
	Twice, Held, Lost, Snapshots uint8
	// Most is the longest delay; Held messages wait at most a tenth of it.
	Most time.Duration
}

// Mail sets the Lateness of one node.
type Mail struct{ file *os.File }

// NewMail opens the file that controls a node. The seed decides which messages are late.
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

// Set takes effect from the node's next message on.
func (m *Mail) Set(l Lateness) error {
	raw := make([]byte, 8)
	word := uint64(
		l.Twice,
	) | uint64(
		l.Held,
	)<<8 | uint64(
		l.Lost,
	)<<16 | uint64(
		l.Snapshots,
	)<<24 | uint64(
		l.Most/time.Millisecond,
	)<<32
	binary.NativeEndian.PutUint64(raw, word)
	_, err := m.file.WriteAt(raw, 0)
	return err
}

// Close closes the file.
func (m *Mail) Close() error { return m.file.Close() }

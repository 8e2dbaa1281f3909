package cluster

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"bivouac.dev/bivouac/cluster/eventstore"
	"bivouac.dev/bivouac/fsm"
)

// The events of a snapshot file: for each chain a head as JSON and its events in their order, each behind
// its length as a uvarint, and a length of 0 at the end.

// fileHead begins a chain.
type fileHead struct {
	Key            fsm.ChainKey `json:"key"`
	UserID         string       `json:"user_id"`
	ConversationID string       `json:"conversation_id"`
}

// maxFileEvent bounds a length in a file.
const maxFileEvent = fsm.MaxCommandBytes

// pinned returns the state with a view of its events at the same index.
func (n *Node) pinned() (snapshot *fsm.Snapshot, err error) {
	s := n.events.present()
	if s == nil && n.events.open != nil && n.store.View().Active(fsm.VersionEvents) && n.anyEvents() {
		if s, err = n.events.get(); err != nil {
			return nil, err
		}
	}
	if s == nil {
		return n.store.Snapshot(), nil
	}
	err = n.raftFSM.Together(func(*fsm.View) error {
		pin, err := s.Pin()
		if err != nil {
			return err
		}
		snapshot = n.store.Snapshot()
		snapshot.Events = pinnedEvents{snapshot.View(), pin}
		return nil
	})
	return snapshot, err
}

// pinnedEvents are the events of a view on this node's disk.
type pinnedEvents struct {
	view *fsm.View
	pin  *eventstore.Pin
}

// Close implements fsm.SnapshotEvents.
func (p pinnedEvents) Close() error { return p.pin.Close() }

// Write implements fsm.SnapshotEvents. Of a chain that this node lacks events of it writes the first ones.
func (p pinnedEvents) Write(ctx context.Context, w io.Writer) (written fsm.EventsWritten, err error) {
	out := bufio.NewWriterSize(w, 1<<18)
	put := func(b []byte) error {
		_, err := out.Write(binary.AppendUvarint(out.AvailableBuffer(), uint64(len(b))))
		if err == nil {
			_, err = out.Write(b)
		}
		return err
	}
	for c := range p.view.EventChains() {
		head, err := json.Marshal(fileHead{c.Events.Key, c.UserID, c.ID})
		if err != nil {
			return written, err
		}
		if err := put(head); err != nil {
			return written, err
		}
		next, bytes := uint64(0), uint64(0)
		failed := p.pin.Events(c.Events.Key, func(at uint64, stored []byte) bool {
			if at != next || at >= c.Events.Number || ctx.Err() != nil {
				return false
			}
			next, bytes = next+1, bytes+uint64(len(stored))
			err = put(stored)
			return err == nil
		})
		if err := errors.Join(failed, err, ctx.Err(), put(nil)); err != nil {
			return written, err
		}
		written.Conversations++
		written.Number += next
		written.Bytes += bytes
		written.Missing += c.Events.Bytes - min(bytes, c.Events.Bytes)
	}
	return written, out.Flush()
}

// readEventsFile calls event for each event of a file, in the order of its chains. stored must not be kept.
func readEventsFile(r io.Reader, event func(head fileHead, at uint64, stored []byte) error) error {
	in := bufio.NewReaderSize(r, 1<<18)
	var b []byte
	read := func() (err error) {
		length, err := binary.ReadUvarint(in)
		if err != nil {
			return err
		}
		if length > maxFileEvent {
			return fmt.Errorf("an event of %d bytes", length)
		}
		if uint64(cap(b)) < length {
			b = make([]byte, length)
		}
		b = b[:length]
		if _, err := io.ReadFull(in, b); err != nil {
			return fmt.Errorf("an event is cut short: %v", err) //nolint:errorlint // likewise
		}
		return nil
	}
	for {
		switch err := read(); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("reading the events of the file: %w", err)
		}
		var head fileHead
		if err := json.Unmarshal(b, &head); err != nil {
			return fmt.Errorf("reading the events of the file: %w", err)
		}
		for at := uint64(0); ; at++ {
			if err := read(); err != nil { // never io.EOF, which is the end of a whole file
				return fmt.Errorf("reading the events of the file: %v", err) //nolint:errorlint // as it says
			}
			if len(b) == 0 {
				break
			}
			if err := event(head, at, b); err != nil {
				return err
			}
		}
	}
}

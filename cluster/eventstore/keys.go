package eventstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"bivouac.dev/bivouac/fsm"
)

// The first bytes of the keys. Keys and values keep their form: disks have them.
const (
	// prefixEvent, the chain and a position (8 bytes, big endian) have a stored event.
	prefixEvent = 'e'
	// prefixOutline, the chain and a position have the event without its body, so that a filter reads
	// no bodies.
	prefixOutline = 'o'
	// prefixID, the chain and the id of an event have its position.
	prefixID = 'i'
	// prefixHead and the chain have its head: how far its events are here without a gap.
	prefixHead = 'c'
	// prefixDropped and the chain: it was dropped, and its room is not given back yet.
	prefixDropped = 'd'
)

// keyApplied has the index of the last Write, keyOwner the id of the node.
var (
	keyApplied = []byte("m/applied") //nolint:gochecknoglobals // read-only
	keyOwner   = []byte("m/owner")   //nolint:gochecknoglobals // read-only
)

func chainKey(prefix byte, key fsm.ChainKey) []byte {
	return append(append(make([]byte, 0, 1+len(key)+8), prefix), key[:]...)
}

func headKey(key fsm.ChainKey) []byte { return chainKey(prefixHead, key) }

func eventKey(key fsm.ChainKey, at uint64) []byte {
	return binary.BigEndian.AppendUint64(chainKey(prefixEvent, key), at)
}

func outlineKey(key fsm.ChainKey, at uint64) []byte {
	return binary.BigEndian.AppendUint64(chainKey(prefixOutline, key), at)
}

func idKey(key fsm.ChainKey, id []byte) []byte { return append(chainKey(prefixID, key), id...) }

// behind returns the first key behind all that begin with prefix, which is not all 0xff.
func behind(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; ; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
}

func encodeNumber(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// Head is how far the events of a chain are in the store without a gap, and whose they are.
type Head struct {
	UserID         string
	ConversationID string
	fsm.EventChain
}

// encodeHead is the form of a head: number, bytes, hash, user, NUL and conversation.
func encodeHead(c *Head) []byte {
	b := make([]byte, 0, 8+8+len(c.Hash)+len(c.UserID)+1+len(c.ConversationID))
	b = binary.BigEndian.AppendUint64(b, c.Number)
	b = binary.BigEndian.AppendUint64(b, c.Bytes)
	b = append(b, c.Hash[:]...)
	b = append(append(b, c.UserID...), 0)
	return append(b, c.ConversationID...)
}

// errHead: a value is no head of a chain.
var errHead = errors.New("the head of a chain is damaged")

func decodeHead(key fsm.ChainKey, b []byte) (*Head, error) {
	c := &Head{EventChain: fsm.EventChain{Key: key}}
	if len(b) < 16+len(c.Hash) {
		return nil, errHead
	}
	c.Number, c.Bytes = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	b = b[16:]
	b = b[copy(c.Hash[:], b):]
	user, conversation, found := bytes.Cut(b, []byte{0})
	if !found {
		return nil, errHead
	}
	c.UserID, c.ConversationID = string(user), string(conversation)
	return c, nil
}

// perEvent are the prefixes of what an event has.
func perEvent() []byte { return []byte{prefixEvent, prefixOutline, prefixID} }

// put stores events from a position on.
func put(b *pebble.Batch, key fsm.ChainKey, at uint64, events [][]byte) error {
	for i, stored := range events {
		position := at + uint64(i)
		id := fsm.EventID(stored)
		if len(id) == 0 {
			return fmt.Errorf("event %d has no id", position)
		}
		if err := errors.Join(
			b.Set(eventKey(key, position), stored, nil),
			b.Set(outlineKey(key, position), fsm.EventOutline(stored), nil),
			b.Set(idKey(key, id), encodeNumber(position), nil),
		); err != nil {
			return err
		}
	}
	return nil
}

// drop removes a chain, and notes that its room is to be given back.
func drop(b *pebble.Batch, key fsm.ChainKey) error {
	var errs []error
	for _, prefix := range perEvent() {
		from := chainKey(prefix, key)
		errs = append(errs, b.DeleteRange(from, behind(from), nil))
	}
	errs = append(errs, b.Delete(headKey(key), nil), b.Set(chainKey(prefixDropped, key), nil, nil))
	return errors.Join(errs...)
}

package fsm

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"iter"
)

// EventChain is what a conversation's row knows of its events: how many there are, their bytes, and
// a hash that each event continues. The events themselves are on the nodes' disks (cluster/eventstore).
type EventChain struct {
	// Key names the chain on the disks. No other chain ever has it, so a conversation that is deleted
	// and made again begins another.
	Key    ChainKey  `json:"key"`
	Number uint64    `json:"number"`
	Bytes  uint64    `json:"bytes"`
	Hash   ChainHash `json:"hash"`
}

// ChainKey names a chain of events.
type ChainKey [16]byte

// MarshalText implements encoding.TextMarshaler.
func (k ChainKey) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, k[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *ChainKey) UnmarshalText(text []byte) error { return unhex(k[:], text) }

// ChainHash is the hash of a chain: SHA-256 of the hash before it and the stored event.
type ChainHash [sha256.Size]byte

// MarshalText implements encoding.TextMarshaler.
func (h ChainHash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *ChainHash) UnmarshalText(text []byte) error { return unhex(h[:], text) }

// unhex decodes a text of exactly the length that to needs.
func unhex(to, text []byte) error {
	if len(text) != hex.EncodedLen(len(to)) {
		return errors.New("a key or hash of a chain has another length")
	}
	_, err := hex.Decode(to, text)
	return err
}

// Begin returns the chain without events. Its hash differs from chain to chain, so no event of one
// chain continues another.
func (k ChainKey) Begin() EventChain {
	c := EventChain{Key: k}
	copy(c.Hash[:], k[:])
	return c
}

// Next returns the chain after one more event.
func (c EventChain) Next(stored []byte) EventChain {
	return EventChain{c.Key, c.Number + 1, c.Bytes + uint64(len(stored)), c.Hash.Next(stored)}
}

// Next returns the hash after one more event.
func (h ChainHash) Next(stored []byte) ChainHash {
	sum := sha256.New()
	sum.Write(h[:])
	sum.Write(stored)
	sum.Sum(h[:0])
	return h
}

// EventChange is what a command did to one chain, for the store of events on each node's disk.
type EventChange struct {
	UserID         string
	ConversationID string
	// Chain is the chain after the change. If it is dropped, its events are too.
	Chain   EventChain
	Dropped bool
	// Before is the chain's hash before Events, which are its last ones.
	Before ChainHash
	Events [][]byte
}

// At is the position of the first of Events.
func (c EventChange) At() uint64 { return c.Chain.Number - uint64(len(c.Events)) }

// newChain returns the chain of a conversation before its first event, which comes at an index.
func newChain(userID, conversationID string, index uint64) EventChain {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(prefixOf(userID, conversationID), index))
	return ChainKey(sum[:len(ChainKey{})]).Begin()
}

// EventChain finds the events of a user's conversation, nil for none.
func (v *View) EventChain(userID, conversationID string) *EventChain {
	if c := v.Conversation(userID, conversationID); c != nil {
		return c.Events
	}
	return nil
}

// EventChains iterates the conversations that have events.
func (v *View) EventChains() iter.Seq[*Conversation] {
	return func(yield func(*Conversation) bool) {
		for c := range v.AllConversations() {
			if c.Events != nil && !yield(c) {
				return
			}
		}
	}
}

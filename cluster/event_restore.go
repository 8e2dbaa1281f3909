package cluster

import (
	"context"
	"fmt"
	"io"

	"bivouac.dev/bivouac/cluster/eventstore"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/fsm/snapshotfile"
)

// maxLostEvents bounds Restored.EventsLost.
const maxLostEvents = 1000

// LostEvents are events of a conversation that neither a restored file nor the node's disk has.
type LostEvents struct {
	UserID         string `json:"user_id"`
	ConversationID string `json:"conversation_id"`
	// Number and Bytes are what the state had, Left what is left: the first ones.
	Number uint64 `json:"number"`
	Bytes  uint64 `json:"bytes"`
	Left   uint64 `json:"left"`
}

// RestoredEvents says what became of the events of a restored state.
type RestoredEvents struct {
	// Bytes is how many the file had.
	Bytes uint64 `json:"events_bytes"`
	// Lost lists conversations that lack events, at most a thousand of LostCount.
	Lost      []LostEvents `json:"events_lost,omitempty"`
	LostCount int          `json:"events_lost_count"`
}

// chainsOf are the chains that the events of a file make, by their keys.
type chainsOf map[fsm.ChainKey]fsm.EventChain

// take is the next event.
func (c chainsOf) take(head fileHead, at uint64, stored []byte) error {
	chain, known := c[head.Key]
	if !known {
		chain = head.Key.Begin()
	}
	if chain.Number != at || len(fsm.EventID(stored)) == 0 {
		return fmt.Errorf("the file has a chain of events twice, or what is no event")
	}
	c[head.Key] = chain.Next(stored)
	return nil
}

// lostEvents compares the chains of a state with those of a file, and with this node's disk. left says to
// what the chains must be cut.
func (n *Node) lostEvents(state *fsm.View, file chainsOf) (done RestoredEvents, left chainsOf, err error) {
	left = chainsOf{}
	for c := range state.EventChains() {
		chain := file[c.Events.Key]
		if chain == *c.Events {
			done.Bytes += chain.Bytes
			continue
		}
		if chain.Number >= c.Events.Number { // it is not what the state says
			chain = fsm.EventChain{}
		}
		here, err := n.follow(chain, *c.Events)
		if err == nil && here != *c.Events && chain.Number > 0 {
			var alone fsm.EventChain
			if alone, err = n.follow(fsm.EventChain{}, *c.Events); alone == *c.Events {
				here = alone
			}
		}
		switch {
		case err != nil:
			return done, nil, err
		case here == *c.Events:
			continue
		case here.Number < c.Events.Number: // at its end with another hash nobody knows where it begins to differ
			chain = here
		}
		left[c.Events.Key] = chain
		done.Bytes += chain.Bytes
		if done.LostCount++; len(done.Lost) < maxLostEvents {
			done.Lost = append(done.Lost, LostEvents{c.UserID, c.ID, c.Events.Number, c.Events.Bytes, chain.Number})
		}
	}
	return done, left, nil
}

// follow continues a chain over what this node's disk has, as far as a state's chain goes. from without
// events is its beginning.
func (n *Node) follow(from, state fsm.EventChain) (fsm.EventChain, error) {
	if n.events.open == nil {
		return from, nil
	}
	s, err := n.events.get()
	if err != nil {
		return from, err
	}
	if from.Number == 0 {
		from = state.Key.Begin()
	}
	return s.Follow(from, state.Number)
}

// restoreEvents stores the events of a file whose state was restored.
func (n *Node) restoreEvents(ctx context.Context, file io.ReadSeeker) error {
	if n.events.open == nil {
		return nil
	}
	n.events.filling.Lock()
	defer n.events.filling.Unlock()
	r, err := openFile(file)
	if err != nil {
		return err
	}
	put := &restoring{n: n, ctx: ctx}
	r.Events = put.read
	if err := r.Verify(); err != nil {
		return err
	}
	if put.store == nil {
		return nil
	}
	return put.store.Flush()
}

// restoring stores events in batches.
type restoring struct {
	n     *Node
	ctx   context.Context //nolint:containedctx // of one call
	store *eventstore.Store
	chain eventstore.Head
	batch [][]byte
	at    uint64
	size  int
}

func (p *restoring) read(r io.Reader) (err error) {
	if p.store, err = p.n.events.get(); err != nil {
		return err
	}
	if err := readEventsFile(r, p.take); err != nil {
		return err
	}
	return p.settle()
}

func (p *restoring) take(head fileHead, at uint64, stored []byte) error {
	if head.Key != p.chain.Key || at == 0 {
		if err := p.settle(); err != nil {
			return err
		}
		p.chain = eventstore.Head{
			UserID: head.UserID, ConversationID: head.ConversationID, EventChain: fsm.EventChain{Key: head.Key},
		}
		p.at = 0
	}
	p.batch, p.size = append(p.batch, append([]byte{}, stored...)), p.size+len(stored)
	if p.size < fetchBytes {
		return nil
	}
	return p.put()
}

// put stores the batch.
func (p *restoring) put() error {
	if len(p.batch) == 0 {
		return p.ctx.Err()
	}
	err := p.store.Put(p.chain, p.at, p.batch)
	p.at += uint64(len(p.batch))
	p.batch, p.size = nil, 0
	return err
}

// settle ends a chain: as far as it is the state's it counts.
func (p *restoring) settle() error {
	if p.chain.ConversationID == "" {
		return nil
	}
	if err := p.put(); err != nil {
		return err
	}
	key := p.chain.Key
	return p.n.raftFSM.Together(func(v *fsm.View) error {
		row := v.EventChain(p.chain.UserID, p.chain.ConversationID)
		if row == nil || row.Key != key {
			return p.store.Drop(key)
		}
		at, err := p.store.Follow(key.Begin(), row.Number)
		if err != nil || at != *row {
			return err // what lacks is said by the comparison
		}
		p.chain.EventChain = at
		return p.store.Settle(p.chain)
	})
}

// openFile opens a snapshot file at its beginning.
func openFile(file io.ReadSeeker) (*snapshotfile.Reader, error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("reading the snapshot: %w", err)
	}
	return snapshotfile.Open(file)
}

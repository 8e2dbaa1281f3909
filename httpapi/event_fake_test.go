package httpapi

import (
	"bytes"
	"context"
	"slices"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// keepEvents stores what a command did to events. The caller holds mu.
func (c *fakeCluster) keepEvents(changes []fsm.EventChange) {
	if c.events == nil {
		c.events = map[fsm.ChainKey][][]byte{}
	}
	for _, change := range changes {
		if change.Dropped {
			delete(c.events, change.Chain.Key)
		}
		c.events[change.Chain.Key] = append(c.events[change.Chain.Key], change.Events...)
	}
}

// stored returns the events of a chain.
func (c *fakeCluster) stored(key fsm.ChainKey) [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.events[key])
}

// AppendEvents implements Events, as a leader does.
func (c *fakeCluster) AppendEvents(ctx context.Context, cmd fsm.Command) (cluster.AppendedEvents, error) {
	body := *cmd.Body.(*fsm.EventsAppendBody)
	var have [][]byte
	if chain := c.store.View().EventChain(cmd.UserID, body.ConversationID); chain != nil {
		have = c.stored(chain.Key)
	}
	fresh, first := [][]byte(nil), 0
	for i, stored := range body.Events {
		if !slices.ContainsFunc(have, func(old []byte) bool { return bytes.Equal(fsm.EventID(old), fsm.EventID(stored)) }) {
			if len(fresh) == 0 {
				first = i
			}
			fresh = append(fresh, stored)
		}
	}
	at := uint64(len(have))
	switch {
	case len(fresh) == 0:
		return cluster.AppendedEvents{Number: at}, nil
	case body.At != cluster.NoPosition && body.At+uint64(first) > at:
		return cluster.AppendedEvents{Number: at, Gap: true}, nil
	}
	body.At, body.Events = at, fresh
	cmd.ID, cmd.Body = uuid.NewString(), &body
	_, err := c.Propose(ctx, cmd)
	return cluster.AppendedEvents{Number: at + uint64(len(fresh)), Added: len(fresh)}, err
}

// ReadEvents implements Events.
func (c *fakeCluster) ReadEvents(
	_ context.Context, chain fsm.EventChain, q cluster.EventQuery, fn func(at uint64, stored []byte) bool,
) error {
	have, step := c.stored(chain.Key)[:chain.Number], 1
	if q.Back {
		step = -1
	}
	for at := int(q.From); at >= 0 && at < len(have); at += step {
		head, _, err := fsm.CutEvent(have[at])
		switch {
		case err != nil:
			return err
		case q.Takes != nil && !q.Takes(head):
		case !fn(uint64(at), have[at]):
			return nil
		}
	}
	return nil
}

// FindEvents implements Events.
func (c *fakeCluster) FindEvents(_ context.Context, chain fsm.EventChain, ids []string) (map[string][]byte, error) {
	found := map[string][]byte{}
	for _, stored := range c.stored(chain.Key) {
		if id := string(fsm.EventID(stored)); slices.Contains(ids, id) {
			found[id] = stored
		}
	}
	return found, nil
}

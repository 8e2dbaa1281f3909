package cluster

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/eventstore"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

const (
	// fillInterval is how often a node looks whether it lacks events, fillRetry after it could not get
	// some, and compareInterval how often it compares all chains.
	fillInterval    = time.Second
	fillRetry       = 5 * time.Second
	compareInterval = 10 * time.Minute
	// fetchBytes bounds one answer with events, beside its last event, and fetchRate what a node fetches
	// in a second.
	fetchBytes = 4 << 20
	fetchRate  = 32 << 20
)

// found notes how many bytes this node lacks, as compared after so many restores.
func (e *events) found(missing int64, restores uint64) {
	e.missing.Store(missing)
	e.compared.Store(restores)
}

// eventsMissing returns how many bytes of events this node lacks, negative for not known yet.
func (n *Node) eventsMissing() int64 {
	switch {
	case n.events.open == nil, !n.store.View().Active(fsm.VersionEvents):
		return 0
	case n.events.compared.Load() != n.raftFSM.Restores(), n.events.missing.Load() < 0:
		if n.caughtUp.Load() && !n.anyEvents() {
			return 0
		}
		return -1 // it has just started, or a snapshot came since
	}
	return n.events.missing.Load()
}

// eventsRequest asks a member for events of a chain: from a position on, in their order or backwards, or by
// their ids if it has the chain up to a number. By ids an answer may lack some, and is empty only if the chain
// has none of them.
type eventsRequest struct {
	Key  fsm.ChainKey `json:"key"`
	From uint64       `json:"from"`
	Back bool         `json:"back,omitempty"`
	// IDs and Number ask by ids.
	IDs    []string `json:"ids,omitempty"`
	Number uint64   `json:"number,omitempty"`
}

// handleEvents answers callEvents: each event behind its length as a uvarint, without a gap.
func (n *Node) handleEvents(request []byte) ([]byte, error) {
	var q eventsRequest
	if err := json.Unmarshal(request, &q); err != nil {
		return nil, fmt.Errorf("reading the call: %w", err)
	}
	s := n.events.present()
	if s == nil {
		return nil, errors.New("this node has no events")
	}
	var answer []byte
	add := func(stored []byte) bool {
		if len(answer) > 0 && len(answer)+len(stored) > fetchBytes {
			return false
		}
		answer = append(binary.AppendUvarint(answer, uint64(len(stored))), stored...)
		return true
	}
	if len(q.IDs) > 0 {
		err := n.findHere(fsm.EventChain{Key: q.Key, Number: q.Number}, q.IDs, add)
		return answer, err
	}
	next := q.From
	err := s.Events(q.Key, q.From, q.Back, func(at uint64, stored []byte) bool {
		if at != next || !add(stored) {
			return false
		}
		if next++; q.Back {
			next = at - 1 // behind the first event nothing comes
		}
		return true
	})
	return answer, err
}

// fetchEvents asks a member for events. What it answers is checked by nobody yet.
func (n *Node) fetchEvents(ctx context.Context, from raft.Server, q eventsRequest) ([][]byte, error) {
	request, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	raw, err := n.network.Call(ctx, peernet.AddressFor(from.ID, n.currentAddress(from)), callEvents, request)
	if err != nil {
		return nil, err
	}
	var list [][]byte
	for len(raw) > 0 {
		length, size := binary.Uvarint(raw)
		if size <= 0 || length > uint64(len(raw)-size) {
			return nil, fmt.Errorf("the events of %s are cut short", from.ID)
		}
		stored := raw[size : size+int(length)]
		if len(fsm.EventID(stored)) == 0 {
			return nil, fmt.Errorf("%s answers with what is no event", from.ID)
		}
		list, raw = append(list, stored), raw[size+int(length):]
	}
	return list, nil
}

// fillEvents keeps this node's events those of the state, until ctx ends: what a lost memory, an empty,
// old or copied disk, a snapshot or a restore left missing or different, it fetches from the members.
func (n *Node) fillEvents(ctx context.Context) {
	f := &filler{node: n}
	every(ctx, fillInterval, func() {
		if !n.store.View().Active(fsm.VersionEvents) {
			return
		}
		if !n.caughtUp.Load() {
			return // the log is being applied again
		}
		// What the log does to events opens the store. A chain that comes otherwise comes with a snapshot.
		restores := n.raftFSM.Restores()
		if n.events.present() == nil && (f.none && f.restores == restores || !n.anyEvents()) {
			f.none, f.restores = true, restores
			n.events.found(0, restores)
			return
		}
		s, err := n.events.get()
		if err != nil {
			if ctx.Err() == nil {
				n.failWith(err)
			}
			return
		}
		f.store = s
		n.events.filling.Lock()
		defer n.events.filling.Unlock()
		if err := f.look(ctx); err != nil && ctx.Err() == nil && s.Failure() == nil {
			n.logger.Warn("cluster: this node lacks events and can't fetch them; it is tried again", "error", err)
		}
	})
}

// anyEvents reports whether the state has a chain.
func (n *Node) anyEvents() bool {
	for range n.store.View().EventChains() {
		return true
	}
	return false
}

// filler is the work of fillEvents.
type filler struct {
	node  *Node
	store *eventstore.Store
	// restores is raftfsm's count at the last comparison, compared its time.
	restores uint64
	compared time.Time
	retry    time.Time
	// none: the state had no chain after so many restores, and no log entry has begun one since.
	none bool
}

// look compares the chains if something may have changed beside the log, and fetches what is missing.
func (f *filler) look(ctx context.Context) error {
	restores, now := f.node.raftFSM.Restores(), time.Now()
	gaps := f.store.Gapped()
	again := f.node.events.missing.Load() != 0 && now.After(f.retry)
	if !gaps && !again && restores == f.restores && now.Sub(f.compared) < compareInterval {
		return nil
	}
	f.restores, f.compared, f.retry = restores, now, now.Add(fillRetry)
	lacking, err := f.compare(ctx)
	if err != nil {
		f.node.events.found(-1, f.restores)
		return err
	}
	var errs []error
	for _, chain := range lacking {
		if err := f.fill(ctx, chain); err != nil {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if len(lacking) > 0 && len(errs) == 0 {
		f.node.logger.Info("cluster: this node has all events", "count", len(lacking))
		f.node.events.found(0, f.restores)
	}
	return errors.Join(errs[:min(len(errs), 1)]...)
}

// compare returns the chains of the state that are not whole here, and drops those that the state does
// not have.
func (f *filler) compare(ctx context.Context) (lacking []eventstore.Head, err error) {
	var surplus []*eventstore.Head
	err = f.store.Heads(func(head *eventstore.Head) bool {
		row := f.node.store.View().EventChain(head.UserID, head.ConversationID)
		if row == nil || row.Key != head.Key {
			surplus = append(surplus, head)
		}
		return ctx.Err() == nil
	})
	if err != nil {
		return nil, err
	}
	for _, head := range surplus {
		err := f.node.raftFSM.Together(func(v *fsm.View) error {
			row := v.EventChain(head.UserID, head.ConversationID)
			if row != nil && row.Key == head.Key || f.store.Applied() > v.Index() {
				return nil // it came meanwhile, or its deletion is being applied again
			}
			return f.store.Drop(head.Key)
		})
		if err != nil {
			return nil, err
		}
	}
	missing := int64(0)
	for row := range f.node.store.View().EventChains() {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		chain := eventstore.Head{UserID: row.UserID, ConversationID: row.ID, EventChain: *row.Events}
		whole, bytes, err := f.whole(chain)
		if err != nil {
			return nil, err
		}
		if !whole {
			missing += bytes
			lacking = append(lacking, chain)
		}
	}
	f.node.events.found(missing, f.restores)
	return lacking, nil
}

// whole reports whether a chain is here as the state has it, and else how many bytes it lacks, at least
// one.
func (f *filler) whole(row eventstore.Head) (whole bool, missing int64, err error) {
	head, err := f.store.Head(row.Key)
	if err == nil && head != nil && head.EventChain == row.EventChain {
		return true, 0, nil
	}
	// The chain may have moved since the view was taken.
	err = f.node.raftFSM.Together(func(v *fsm.View) error {
		now := v.EventChain(row.UserID, row.ConversationID)
		head, err := f.store.Head(row.Key)
		switch {
		case f.store.Failure() != nil:
			return f.store.Failure()
		case now == nil, now.Key != row.Key:
			whole = true
		case err != nil, head == nil: // one that can't be read is fetched again
			missing = int64(now.Bytes) //nolint:gosec // bounded by the limit
		case head.EventChain == *now,
			head.Number > now.Number && f.store.Applied() > v.Index(): // the log is being applied again
			whole = true
		default:
			missing = max(int64(now.Bytes)-int64(head.Bytes), 1) //nolint:gosec // bounded by the limit
		}
		return nil
	})
	return whole, max(missing, 1), err
}

// errNoRoom: this node's disk has no room for the events that it lacks.
var errNoRoom = errors.New("its disk has no room for them (bivouac runbook disk)")

// errDiffers: events that were fetched do not make the chain of the state.
var errDiffers = errors.New("the events that members answer with are not those of the state")

// filling is one chain while it is fetched: at is how far it is here.
type filling struct {
	*filler
	chain eventstore.Head
	at    fsm.EventChain
	// replace: what is here differs, or can't be read. It is dropped when a member has answered with the
	// chain's first events.
	replace bool
}

// again begins the chain again.
func (p *filling) again() {
	p.at, p.replace = p.chain.Key.Begin(), true
}

// follow goes on over what is here. It ends a chain that is whole, or was deleted meanwhile. An error means
// that what is here differs, or can't be read.
func (p *filling) follow() (ended bool, err error) {
	for {
		row := p.node.store.View().EventChain(p.chain.UserID, p.chain.ConversationID)
		if row == nil || row.Key != p.chain.Key {
			return true, nil
		}
		if p.replace {
			return false, nil
		}
		p.at, err = p.store.Follow(p.at, row.Number)
		if err == nil && p.at.Number < row.Number {
			return false, nil
		}
		if err == nil {
			ended, err = p.settle()
		}
		if ended || err != nil {
			return ended, err
		}
	}
}

// fill fetches what a chain lacks. What is here counts as far as the whole chain ends as the state says.
func (f *filler) fill(ctx context.Context, chain eventstore.Head) error {
	p := &filling{filler: f, chain: chain}
	p.again()
	head, err := f.store.Head(chain.Key)
	p.replace = err != nil
	if head != nil && head.Number <= chain.Number {
		p.at = head.EventChain
	}
	members, turn, failures, differing := f.members(), 0, 0, 0
	refused := []error{err}
	for {
		ended, err := p.follow()
		if failure := f.store.Failure(); failure != nil || ended {
			return failure
		}
		if err != nil {
			p.again()
			turn++ // another member may have others
			if differing++; differing > len(members) {
				return err
			}
		}
		if failures >= len(members) {
			return errors.Join(append(refused, errors.New("no member has the events of a conversation"))...)
		}
		if f.node.room.low.Load() {
			return errNoRoom
		}
		from := members[turn%len(members)]
		got, err := f.node.fetchEvents(ctx, from, eventsRequest{Key: chain.Key, From: p.at.Number})
		if err != nil || len(got) == 0 {
			if err != nil {
				refused = append(refused, fmt.Errorf("asking %s: %w", peernet.NodeName(from.ID), err))
			}
			turn++
			failures++
			continue
		}
		failures = 0
		if err := p.take(ctx, got); err != nil {
			return err
		}
	}
}

// take stores fetched events, and waits so that the node keeps to its rate.
func (p *filling) take(ctx context.Context, got [][]byte) error {
	size := 0
	for _, stored := range got {
		size += len(stored)
	}
	if p.replace {
		err := p.node.raftFSM.Together(func(*fsm.View) error { return p.store.Drop(p.chain.Key) })
		if err != nil {
			return err
		}
		p.replace = false
	}
	if err := p.store.Put(p.chain, p.at.Number, got); err != nil {
		return err
	}
	// It is 0 when the comparison says so, not before.
	p.node.events.missing.Store(max(p.node.events.missing.Load()-int64(size), 1))
	p.node.metrics.EventsFetched.Add(float64(size))
	select {
	case <-time.After(time.Duration(size) * time.Second / fetchRate):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settle ends a chain that was followed to its end, or was deleted. It goes on behind new events, and errs
// if the events differ.
func (p *filling) settle() (settled bool, err error) {
	err = p.node.raftFSM.Together(func(v *fsm.View) (err error) {
		row := v.EventChain(p.chain.UserID, p.chain.ConversationID)
		if row == nil || row.Key != p.at.Key {
			settled = true
			return nil
		}
		p.at, err = p.store.Follow(p.at, row.Number)
		switch {
		case err != nil, p.at.Number < row.Number:
			return err
		case p.at != *row:
			return errDiffers
		}
		settled = true
		return p.store.Settle(eventstore.Head{
			UserID: p.chain.UserID, ConversationID: p.chain.ConversationID, EventChain: *row,
		})
	})
	return settled, err
}

// members returns the other members, the leader first.
func (f *filler) members() []raft.Server {
	var list []raft.Server
	l, _ := f.node.leaders.get()
	for _, s := range f.node.servers() {
		switch s.ID {
		case f.node.id:
		case l.id:
			list = append([]raft.Server{s}, list...)
		default:
			list = append(list, s)
		}
	}
	return list
}

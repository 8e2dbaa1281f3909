package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster/eventstore"
	"bivouac.dev/bivouac/fsm"
)

// events is the node's store of events. It is opened at its first use: below fsm.VersionEvents nothing
// uses it, so that an older program finds the data directory as it left it.
type events struct {
	// open is Config.OpenEvents; owner is the node's id.
	open  func() (*eventstore.Store, error)
	owner string

	mu     sync.Mutex
	store  *eventstore.Store
	ended  bool
	opened chan struct{} // closed with the first use

	// missing is how many bytes of events this node lacks, -1 for not known yet; compared counts the
	// snapshots that were restored before.
	missing  atomic.Int64
	compared atomic.Uint64
	// filling is held by what repairs chains: the filler and a restore.
	filling sync.Mutex
	// appending has a conversation's turn while events are appended to it.
	appending turns
}

func (e *events) init(open func() (*eventstore.Store, error), owner string) {
	e.open, e.owner, e.opened = open, owner, make(chan struct{})
	e.appending.taken = map[string]*turn{}
	e.missing.Store(-1)
}

// get opens the store if it is not open.
func (e *events) get() (*eventstore.Store, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return nil, errStopping()
	}
	if e.store != nil {
		return e.store, nil
	}
	s, err := e.open()
	if err != nil {
		return nil, err
	}
	if err := s.Own(e.owner); err != nil {
		return nil, err
	}
	e.store = s
	close(e.opened)
	return s, nil
}

// present returns the store if it is open.
func (e *events) present() *eventstore.Store {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.store
}

// Write implements raftfsm.Events.
func (e *events) Write(index uint64, changes []fsm.EventChange) error {
	s, err := e.get()
	if err != nil {
		return err
	}
	return s.Write(index, changes)
}

// Flush implements raftfsm.Events.
func (e *events) Flush() error {
	if s := e.present(); s != nil {
		return s.Flush()
	}
	return nil
}

// failed reports whether the store has failed. Then goroutines wait for it for ever.
func (e *events) failed() bool {
	s := e.present()
	return s != nil && s.Failure() != nil
}

// close closes the store. Nothing uses it any more.
func (e *events) close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	if e.store == nil {
		return nil
	}
	s := e.store
	e.store = nil
	return s.Close()
}

// keepEvents starts what the events of this node need.
func (n *Node) keepEvents(tasks *sync.WaitGroup) {
	if n.events.open == nil {
		return
	}
	for _, task := range []func(context.Context){n.watchEvents, n.fillEvents, n.watchRoom} {
		tasks.Go(func() { task(n.stopping) })
	}
}

// watchEvents stops the node when its store of events fails, and gives back the room of what is
// deleted.
func (n *Node) watchEvents(ctx context.Context) {
	select {
	case <-n.events.opened:
	case <-ctx.Done():
		return
	}
	s := n.events.present()
	if s == nil {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.Run(ctx) })
	select {
	case <-s.Failed():
		n.failWith(s.Failure())
	case <-ctx.Done():
	}
}

// turn is one conversation's; free has a token while nobody appends.
type turn struct {
	free    chan struct{}
	waiting int
}

// turns let one at a time append to a conversation.
type turns struct {
	mu    sync.Mutex
	taken map[string]*turn
}

// take waits for the turn of a conversation, or for the end of ctx.
func (t *turns) take(ctx context.Context, name string) (release func(), err error) {
	t.mu.Lock()
	mine := t.taken[name]
	if mine == nil {
		mine = &turn{free: make(chan struct{}, 1)}
		mine.free <- struct{}{}
		t.taken[name] = mine
	}
	mine.waiting++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if mine.waiting--; mine.waiting == 0 {
			delete(t.taken, name)
		}
	}
	select {
	case <-mine.free:
		return func() { mine.free <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// NoPosition as EventsAppendBody.At of AppendEvents: the sender numbers its events not as the
// conversation does.
const NoPosition = math.MaxUint64

// AppendedEvents says what became of the events of AppendEvents.
type AppendedEvents struct {
	// Number is how many events the conversation has.
	Number uint64 `json:"number"`
	// Added is how many of the given ones are new.
	Added int `json:"added"`
	// Gap: nothing was added, because there are fewer events than stand before the first new one at the
	// sender: those from Number on are missing, or others.
	Gap bool `json:"gap,omitempty"`
}

// appendResponse answers callAppendEvents.
type appendResponse struct {
	AppendedEvents
	Error *fsm.Error `json:"error,omitempty"`
}

// AppendEvents appends those events of a command (fsm.EventsAppendBody) whose ids the conversation does
// not have, in their order. At of its body is the position of the first one at the sender, or
// NoPosition. An event that is new although others have its position comes behind them: the log's order
// counts. On nil all of them are on a majority of disks. It is safe to repeat. All errors are
// *fsm.Error: those of Propose, and CodeNoLeader while the leader lacks events of the conversation.
func (n *Node) AppendEvents(ctx context.Context, cmd fsm.Command) (AppendedEvents, error) {
	body, ok := cmd.Body.(*fsm.EventsAppendBody)
	if !ok || cmd.UserID == "" {
		return AppendedEvents{}, fsm.Errorf(fsm.CodeInvalid, "these are no events of a user")
	}
	if v := n.store.View(); !v.Active(fsm.VersionEvents) {
		return AppendedEvents{}, fsm.NeedsVersion("keeping events", fsm.VersionEvents, v.ProtocolVersion())
	}
	if err := validate(cmd); err != nil {
		return AppendedEvents{}, err
	}
	ctx, leave, err := n.enter(ctx, n.cfg.ProposeTimeout)
	if err != nil {
		return AppendedEvents{}, err
	}
	defer leave()
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		l, err := n.awaitLeader(ctx)
		if err != nil {
			return AppendedEvents{}, n.proposeError(ctx, false)
		}
		done, refused := n.appendAt(ctx, l, cmd, body)
		if refused == nil {
			return done, nil
		}
		if refused.Code != fsm.CodeNoLeader && refused.Code != fsm.CodeOutcomeUnknown {
			return AppendedEvents{}, refused
		}
		select {
		case <-time.After(wait):
		case <-l.ctx.Done():
		case <-ctx.Done():
			return AppendedEvents{}, refused
		}
	}
}

// appendAt appends events here if this node leads, else at the leader.
func (n *Node) appendAt(
	ctx context.Context, l *leadership, cmd fsm.Command, body *fsm.EventsAppendBody,
) (AppendedEvents, *fsm.Error) {
	if l.id == n.id {
		return n.appendHere(ctx, cmd, body)
	}
	data, err := cmd.EncodeBinary()
	if err != nil {
		return AppendedEvents{}, asError(err)
	}
	lost := func(err error) (AppendedEvents, *fsm.Error) {
		return AppendedEvents{}, &fsm.Error{Code: fsm.CodeOutcomeUnknown, RetryAfter: retryAfter,
			Message: fmt.Sprintf("asking the leader to keep events: %v; repeating it is safe", err)}
	}
	calling, done := whileLeads(ctx, l)
	defer done()
	raw, err := n.network.Call(calling, n.addressOf(l), callAppendEvents, data)
	if err != nil {
		return lost(err)
	}
	var answer appendResponse
	if err := json.Unmarshal(raw, &answer); err != nil {
		return lost(err)
	}
	return answer.AppendedEvents, answer.Error
}

// handleAppendEvents answers callAppendEvents.
func (n *Node) handleAppendEvents(ctx context.Context, request []byte) ([]byte, error) {
	cmd, err := fsm.DecodeCommand(request)
	if err != nil {
		return nil, err
	}
	body, ok := cmd.Body.(*fsm.EventsAppendBody)
	if !ok {
		return nil, fmt.Errorf("command %s appends no events", cmd.Type)
	}
	ctx, leave, err := n.enter(ctx, n.cfg.ProposeTimeout)
	if err != nil {
		return nil, err
	}
	defer leave()
	var answer appendResponse
	answer.AppendedEvents, answer.Error = n.appendHere(ctx, cmd, body)
	return json.Marshal(answer)
}

// appendHere appends events while this node leads. Ids are looked up before the log, and the command
// says at which number of events, so Apply decides by the chain alone.
func (n *Node) appendHere(
	ctx context.Context, cmd fsm.Command, body *fsm.EventsAppendBody,
) (AppendedEvents, *fsm.Error) {
	release, err := n.events.appending.take(ctx, cmd.UserID+"\x00"+body.ConversationID)
	if err != nil {
		return AppendedEvents{}, n.proposeError(ctx, false)
	}
	defer release()
	tried := uint64(NoPosition)
	var conflict *fsm.Error
	for {
		if n.terms.get() == nil {
			return AppendedEvents{}, &fsm.Error{Code: fsm.CodeNoLeader, RetryAfter: retryAfter,
				Message: "this node does not lead; nothing was done"}
		}
		fresh, first, last, at, err := n.freshEvents(cmd.UserID, body)
		done := AppendedEvents{Number: at}
		switch {
		case err != nil:
			return done, asError(err)
		case len(fresh) == 0:
			return done, nil // what is there needs no room
		case body.At != NoPosition && body.At+first > at:
			done.Gap = true
			return done, nil
		case at == tried: // it is another conflict: looking again changes nothing
			return AppendedEvents{}, conflict
		}
		if refused := n.roomForEvents(); refused != nil {
			n.metrics.EventsRefused.Inc()
			return done, refused
		}
		next := *body
		next.At, next.Events = at, fresh
		if body.At != NoPosition && body.At+last+1 < at+uint64(len(fresh)) {
			next.Facts = fsm.EventFacts{} // they are old ones that were missing
		}
		again := cmd
		again.ID, again.Body = uuid.NewString(), &next
		_, refused := n.proposeOwn(ctx, again)
		switch {
		case refused == nil:
			return AppendedEvents{Number: at + uint64(len(fresh)), Added: len(fresh)}, nil
		case refused.Code != fsm.CodeConflict || ctx.Err() != nil:
			return AppendedEvents{}, refused
		}
		tried, conflict = at, refused
		// The chain has moved. What was applied there is in this node's store, too.
	}
}

// freshEvents returns the events whose ids the conversation does not have, where the first and the last of
// them stand among all, and the conversation's number of events.
func (n *Node) freshEvents(
	userID string, body *fsm.EventsAppendBody,
) (fresh [][]byte, first, last, at uint64, err error) {
	v := n.store.View()
	if c := v.Conversation(userID, body.ConversationID); c == nil || c.SandboxID != body.SandboxID {
		return nil, 0, 0, 0, fsm.Errorf(fsm.CodeNotFound, "Conversation not found")
	}
	if v.EventChain(userID, body.ConversationID) == nil {
		return body.Events, 0, uint64(len(body.Events) - 1), 0, nil
	}
	s, err := n.events.get()
	if err != nil {
		return nil, 0, 0, 0, err
	}
	// Together: a view may have an event that the store gets in this moment.
	var chain *fsm.EventChain
	var head *eventstore.Head
	err = n.raftFSM.Together(func(v *fsm.View) (err error) {
		if chain = v.EventChain(userID, body.ConversationID); chain != nil {
			head, err = s.Head(chain.Key)
		}
		return err
	})
	switch {
	case err != nil:
		return nil, 0, 0, 0, err
	case chain == nil:
		return body.Events, 0, uint64(len(body.Events) - 1), 0, nil
	case head == nil || head.EventChain != *chain:
		return nil, 0, 0, 0, &fsm.Error{Code: fsm.CodeNoLeader, RetryAfter: retryAfter,
			Message: "the leader lacks events of this conversation and fetches them; nothing was done"}
	}
	ids := make([]string, len(body.Events))
	for i, stored := range body.Events {
		ids[i] = string(fsm.EventID(stored))
	}
	known, err := s.Find(chain.Key, ids)
	if err != nil {
		return nil, 0, 0, 0, err
	}
	for i, stored := range body.Events {
		if _, there := known[ids[i]]; !there {
			if len(fresh) == 0 {
				first = uint64(i)
			}
			last = uint64(i)
			fresh = append(fresh, stored)
		}
	}
	return fresh, first, last, chain.Number, nil
}

package cluster

import (
	"context"
	"errors"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// certainty is what one attempt at a command tells of its fate.
type certainty int

const (
	// nothingDone: this attempt did not and will not apply the command.
	nothingDone certainty = iota
	// maybeDone: it may have, or may yet.
	maybeDone
	// done: the answer is Apply's own, from a committed entry.
	done
)

// attempt is the outcome of trying a command once.
type attempt struct {
	certainty certainty
	// index and term are those of the log entry, with done.
	index, term uint64
	result      fsm.Result
	// err is Apply's refusal, with done; with nothingDone a refusal before the
	// log, after which trying again is no use. Otherwise nil.
	err *fsm.Error
	// here, if set, is closed when this node's store has the entry.
	here <-chan struct{}
}

// Propose has the cluster apply cmd and returns what Apply answered, once this
// node's own store has it too: a View taken afterwards here, even a stale one,
// shows it. Any node may be asked.
//
// All errors are *fsm.Error. Apply's own refusals come back as they are.
// Before the log: CodeInvalid, CodeProtocol, CodeNoLeader when no leader was
// found within ProposeTimeout, CodeTimeout when ctx ended first or the command
// is too old, CodeShuttingDown; then nothing was done. CodeOutcomeUnknown: it
// may have been applied, or may yet be; proposing the same command again, with
// the same id, is safe and tells. Propose itself does so until its time is up.
func (n *Node) Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	begin := time.Now()
	result, err := n.propose(ctx, cmd)
	if err != nil { // a nil *fsm.Error must not become a non-nil error
		n.metrics.proposed(begin, err)
		return result, err
	}
	n.metrics.proposed(begin, nil)
	return result, nil
}

func (n *Node) propose(caller context.Context, cmd fsm.Command) (fsm.Result, *fsm.Error) {
	if err := validate(cmd); err != nil {
		return fsm.Result{}, err
	}
	data, err := cmd.Encode()
	if err != nil {
		return fsm.Result{}, fsm.Errorf(fsm.CodeInternal, "%v", err)
	}
	if len(data) > maxCommandBytes {
		return fsm.Result{}, fsm.Errorf(fsm.CodeInvalid, "the request is too large: %d bytes as a command, at most %d", len(data), maxCommandBytes)
	}
	ctx, leave, err := n.enter(caller, n.cfg.ProposeTimeout)
	if err != nil {
		return fsm.Result{}, errStopping()
	}
	defer leave()

	sent := false // an earlier attempt may have been applied
	wait := retryMin
	for {
		l, err := n.awaitLeader(ctx)
		if err != nil {
			return fsm.Result{}, n.unproposed(caller, sent)
		}
		a := n.try(ctx, l, cmd, data)
		switch {
		case a.certainty == done:
			// The answer stands even if this node does not catch up in time.
			n.awaitStore(ctx, a)
			return a.result, a.err
		case a.certainty == maybeDone:
			sent = true
		case a.err != nil && !sent:
			return fsm.Result{}, a.err
		case a.err != nil:
			return fsm.Result{}, n.unproposed(caller, sent)
		}
		select {
		case <-time.After(wait):
			wait = min(2*wait, retryMax)
		case <-l.ctx.Done(): // the pause is for this leader, not for the next
			wait = retryMin
		case <-ctx.Done():
		}
	}
}

// awaitStore waits until this node's store has what was done.
func (n *Node) awaitStore(ctx context.Context, a attempt) {
	if a.here == nil {
		_ = n.store.Wait(ctx, a.index)
		return
	}
	select {
	case <-a.here:
	case <-ctx.Done():
	}
}

// unproposed is the error for a command whose time ran out.
func (n *Node) unproposed(caller context.Context, sent bool) *fsm.Error {
	switch {
	case sent:
		return &fsm.Error{Code: fsm.CodeOutcomeUnknown, RetryAfter: retryAfter,
			Message: "the outcome is not known: the leader was lost on the way; repeating the same request is safe"}
	case n.stopping.Err() != nil:
		return errStopping()
	case caller.Err() != nil:
		return &fsm.Error{Code: fsm.CodeTimeout, Message: "the request ended before there was a leader; nothing was done", RetryAfter: retryAfter}
	default:
		return &fsm.Error{Code: fsm.CodeNoLeader, Message: "the cluster has no leader; nothing was done", RetryAfter: retryAfter}
	}
}

// validate checks what needs no state.
func validate(cmd fsm.Command) *fsm.Error {
	if cmd.ID == "" || cmd.Body == nil || cmd.Type != cmd.Body.CommandType() {
		return fsm.Errorf(fsm.CodeInvalid, "a command needs an id and a body of its type")
	}
	if err := cmd.Body.Validate(); err != nil {
		return asError(err)
	}
	return nil
}

// asError makes any error one that can travel.
func asError(err error) *fsm.Error {
	var e *fsm.Error
	if errors.As(err, &e) {
		return e
	}
	return fsm.Errorf(fsm.CodeInternal, "%v", err)
}

// try makes one attempt: here if this node leads, else at the leader.
func (n *Node) try(ctx context.Context, l *leadership, cmd fsm.Command, data []byte) attempt {
	if l.id == n.id {
		return n.apply(ctx, cmd, data)
	}
	return n.forward(ctx, l, data)
}

// apply puts the command into the log; this node leads, as far as it knows.
func (n *Node) apply(ctx context.Context, cmd fsm.Command, data []byte) attempt {
	if n.terms.get() == nil {
		return attempt{}
	}
	if err := n.admit(cmd); err != nil {
		return attempt{err: err}
	}
	return n.entries.send(ctx, &parcel{cmd: cmd, data: data})
}

// admit is the leader's last check before the log.
func (n *Node) admit(cmd fsm.Command) *fsm.Error {
	if age := n.clock().Sub(cmd.Time); age > maxCommandAge || age < -maxCommandAge {
		return &fsm.Error{Code: fsm.CodeTimeout, RetryAfter: retryAfter,
			Message: "the command's time is more than a minute from the leader's clock; nothing was done; if this repeats, the nodes' clocks differ"}
	}
	if needs, has := fsm.MinVersion(cmd.Type), n.store.View().ProtocolVersion(); needs > has {
		return &fsm.Error{Code: fsm.CodeProtocol, RetryAfter: time.Minute,
			Message: "not every node of the cluster knows this yet; finish the upgrade and try again"}
	}
	return nil
}

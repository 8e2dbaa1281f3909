package cluster

import (
	"context"
	"errors"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// commitStatus says what is known about a command after one attempt.
type commitStatus int

const (
	// notCommitted: this attempt did not apply the command and never will.
	notCommitted commitStatus = iota
	// maybeCommitted: the attempt may have applied the command, or may do so later.
	maybeCommitted
	// committed: the result is Apply's own, from a committed entry.
	committed
)

// outcome is the result of one attempt to propose a command.
type outcome struct {
	status commitStatus
	// index and term are those of the log entry, when committed.
	index, term uint64
	result      fsm.Result
	// err is Apply's refusal when committed. When notCommitted it is a refusal before the log; another
	// attempt would fail too. Else it is nil.
	err *fsm.Error
}

// Propose applies cmd in the cluster and returns Apply's result. A View taken here afterwards, even a
// stale one, shows it (fence). Every node accepts it.
//
// All errors are *fsm.Error. Apply's refusals come back unchanged. Errors before the log, with
// nothing done: CodeInvalid, CodeProtocol, CodeNoLeader (no leader within ProposeTimeout),
// CodeTimeout (ctx ended first, or the command is too old) and CodeShuttingDown. CodeOutcomeUnknown
// means that the command may have been applied, or may be later. Proposing it again with the same
// id is safe and returns its result; Propose does so itself until its time ends.
func (n *Node) Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	begin := time.Now()
	result, err := n.proposeOwn(ctx, cmd)
	if err != nil { // a nil *fsm.Error must not become a non-nil error
		n.metrics.Proposed(begin, err)
		return result, err
	}
	n.metrics.Proposed(begin, nil)
	return result, nil
}

// proposeOwn proposes a command of this process, with a proof of the operator's key behind it.
func (n *Node) proposeOwn(ctx context.Context, cmd fsm.Command) (fsm.Result, *fsm.Error) {
	cmd, data, proof, err := encodeFor(ctx, cmd, n.store.View().Active(fsm.VersionBinary))
	if err != nil {
		return fsm.Result{}, err
	}
	return n.propose(ctx, cmd, encoded{data: data, proof: proof})
}

// encoded is a command as it goes to the leader.
type encoded struct {
	// data is the encoded command, proof that of an operator's key for it, if any.
	data, proof []byte
	// foreign: another program proposed it, through the peer port.
	foreign bool
}

func (n *Node) propose(caller context.Context, cmd fsm.Command, e encoded) (fsm.Result, *fsm.Error) {
	ctx, leave, err := n.enter(caller, n.cfg.ProposeTimeout)
	if err != nil {
		return fsm.Result{}, errStopping()
	}
	defer leave()

	sent := false // an earlier attempt may have applied the command
	wait := retryMin
	for {
		l, err := n.awaitLeader(ctx)
		if err != nil {
			return fsm.Result{}, n.proposeError(caller, sent)
		}
		a := n.proposeOnce(ctx, l, cmd, e)
		switch {
		case a.status == committed:
			n.acknowledged.raise(a.index, n.cfg.ProposeTimeout)
			return a.result, a.err
		case a.status == maybeCommitted:
			sent = true
		case a.err != nil && !sent:
			return fsm.Result{}, n.namesVersion(cmd, a.err)
		case a.err != nil:
			return fsm.Result{}, n.proposeError(caller, sent)
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

// proposeError is the error of a command whose time ended.
func (n *Node) proposeError(caller context.Context, sent bool) *fsm.Error {
	switch {
	case sent:
		return &fsm.Error{Code: fsm.CodeOutcomeUnknown, RetryAfter: retryAfter,
			Message: "the outcome is not known: the leader was lost on the way; repeating the same request is safe"}
	case n.stopping.Err() != nil:
		return errStopping()
	case caller.Err() != nil:
		return &fsm.Error{
			Code:       fsm.CodeTimeout,
			Message:    "the request ended before there was a leader; nothing was done",
			RetryAfter: retryAfter,
		}
	default:
		return &fsm.Error{
			Code:       fsm.CodeNoLeader,
			Message:    "the cluster has no leader; nothing was done",
			RetryAfter: retryAfter,
		}
	}
}

// validate checks what needs no state.
func validate(cmd fsm.Command) *fsm.Error {
	if cmd.ID == "" || cmd.Body == nil || cmd.Type != cmd.Body.CommandType() {
		return fsm.Errorf(fsm.CodeInvalid, "a command needs an id and a body of its type")
	}
	if err := fsm.Validate(cmd.Body); err != nil {
		return asError(err)
	}
	return nil
}

// asError turns any error into one that can be sent to a peer.
func asError(err error) *fsm.Error {
	var e *fsm.Error
	if errors.As(err, &e) {
		return e
	}
	return fsm.Errorf(fsm.CodeInternal, "%v", err)
}

// proposeOnce makes one attempt: here if this node leads, else at the leader.
func (n *Node) proposeOnce(
	ctx context.Context, l *leadership, cmd fsm.Command, e encoded,
) outcome {
	if l.id == n.id {
		return n.apply(ctx, cmd, e)
	}
	if n.store.View().Active(fsm.VersionAccess) { // an older leader knows no proofs
		return n.forward(ctx, l, withProof(e.data, e.proof))
	}
	a := n.forward(ctx, l, e.data)
	if len(e.proof) == 0 || a.err == nil || a.err.Code != fsm.CodeForbidden {
		return a
	}
	// The leader's state may be ahead of the one above, and want the proof.
	if v, err := n.View(ctx, Linearizable); err != nil || !v.Active(fsm.VersionAccess) {
		return a
	}
	return n.forward(ctx, l, withProof(e.data, e.proof))
}

// apply appends the command to the log while this node believes that it leads.
func (n *Node) apply(ctx context.Context, cmd fsm.Command, e encoded) outcome {
	if n.terms.get() == nil {
		return outcome{}
	}
	if e.foreign {
		if err := n.authorised(cmd, e.data, e.proof); err != nil {
			return outcome{err: err}
		}
	}
	if err := n.admit(cmd); err != nil {
		return outcome{err: err}
	}
	return n.entries.send(ctx, &proposal{cmd: cmd, data: e.data})
}

// admit is the leader's last check before the log.
func (n *Node) admit(cmd fsm.Command) *fsm.Error {
	if age := n.clock().Sub(cmd.Time); age > maxCommandAge || age < -maxCommandAge {
		return &fsm.Error{Code: fsm.CodeTimeout, RetryAfter: retryAfter,
			Message: "the command's time is more than a minute from the leader's clock; nothing was done; " +
				"if this repeats, the nodes' clocks differ"}
	}
	if v, needs := n.store.View(), fsm.MinVersion(cmd.Type); !v.Active(needs) {
		return fsm.NeedsVersion(string(cmd.Type), needs, v.ProtocolVersion())
	}
	return nil
}

// namesVersion replaces the error of a leader that is too old to know the type of a command.
func (n *Node) namesVersion(cmd fsm.Command, err *fsm.Error) *fsm.Error {
	v, needs := n.store.View(), fsm.MinVersion(cmd.Type)
	if err.Code != fsm.CodeProtocol || v.Active(needs) {
		return err
	}
	return fsm.NeedsVersion(string(cmd.Type), needs, v.ProtocolVersion())
}

package fsm

import "time"

// touchStep is the least move of LastActive that is worth a write.
const touchStep = time.Second

// SandboxTouchBody tells of the use of sandboxes, at most 1,000: proxies that
// carried traffic, the leader that asked agent servers. It never moves
// LastActive backwards, nor beyond Command.Time, and leaves out moves under a
// second, and unknown, unclaimed and deleted sandboxes. It does not close
// View.Changed: a deadline that moves away needs nobody to look.
type SandboxTouchBody struct {
	Touches []Touch `json:"touches"`
}

// Touch is the last use of one sandbox.
type Touch struct {
	ID string    `json:"id"`
	At time.Time `json:"at"`
	// Conversation is set when the use was a message to that conversation, whose
	// UpdatedAt it moves; from protocol version 3. One that is not in the sandbox
	// is left out.
	Conversation string `json:"conversation,omitempty"`
}

// CommandType implements Body.
func (*SandboxTouchBody) CommandType() CommandType { return SandboxTouch }

// Validate implements Body.
func (b *SandboxTouchBody) Validate() error {
	var r rules
	r.count("touches", len(b.Touches))
	for i := range b.Touches {
		r.lookedUp("sandbox id", b.Touches[i].ID)
		r.lookedUp("conversation id", b.Touches[i].Conversation)
	}
	return r.result()
}

func (t *transaction) applySandboxTouch(b *SandboxTouchBody) (Result, *Error) {
	for _, touch := range b.Touches {
		old := first[Sandbox](t.txn, tableSandboxes, indexID, []byte(touch.ID))
		if old == nil || old.Member() || old.Desired == DesiredDeleted {
			continue
		}
		at := touch.At.UTC().Truncate(time.Microsecond)
		if at.After(t.now) {
			at = t.now
		}
		t.talked(old, touch.Conversation, at)
		if at.Sub(old.Status.LastActive) < touchStep {
			continue
		}
		s := *old
		s.Status.LastActive = at
		// Not put: nothing is counted differently and nobody is woken.
		must(t.txn.Insert(tableSandboxes, &s))
	}
	return Result{}, nil
}

// talked notes a message to a conversation in a sandbox.
func (t *transaction) talked(s *Sandbox, id string, at time.Time) {
	if id == "" || t.meta.History == nil { // below version 3 other nodes know no such member
		return
	}
	old := first[Conversation](t.txn, tableConversations, indexID, keyOf(s.UserID, id))
	if old == nil || old.SandboxID != s.ID || !at.After(old.UpdatedAt) {
		return
	}
	c := *old
	c.UpdatedAt = at
	put(t, tableConversations, old, &c)
}

// SandboxExpireBody pauses or deletes a sandbox whose time is up (View.Expiry).
// The leader's. It is dropped, without an error, when the sandbox is unknown,
// unclaimed or of another generation, is no longer in the state that expires,
// or was used after NotActiveSince. Result.Sandbox is set only when it took
// effect.
type SandboxExpireBody struct {
	ID         string `json:"id"`
	Generation uint64 `json:"generation"`
	// Action is ExpirePause or ExpireDelete.
	Action string `json:"action"`
	// Reason becomes PausedBy of a sandbox that is paused.
	Reason string `json:"reason"`
	// NotActiveSince is the LastActive that the leader decided by. Zero says
	// that the sandbox was never used when Reason is PausedByIdle, and for other
	// reasons that use does not matter.
	NotActiveSince time.Time `json:"not_active_since,omitzero"`
}

// CommandType implements Body.
func (*SandboxExpireBody) CommandType() CommandType { return SandboxExpire }

// Validate implements Body.
func (b *SandboxExpireBody) Validate() error {
	var r rules
	r.sandboxID("sandbox id", b.ID)
	r.check(b.Action == ExpirePause || b.Action == ExpireDelete, "unknown action %q", clip(b.Action))
	r.name("reason", b.Reason, maxName)
	return r.result()
}

func (t *transaction) applySandboxExpire(b *SandboxExpireBody) (Result, *Error) {
	s := first[Sandbox](t.txn, tableSandboxes, indexID, []byte(b.ID))
	useMatters := b.Reason == PausedByIdle || !b.NotActiveSince.IsZero()
	switch {
	case s == nil || s.Member() || s.Generation != b.Generation,
		useMatters && s.Status.LastActive.After(b.NotActiveSince):
		return Result{}, nil
	case b.Action == ExpirePause && s.Desired == DesiredRunning:
		return Result{Sandbox: t.desire(s, DesiredPaused, b.Reason)}, nil
	case b.Action == ExpireDelete && s.Desired == DesiredPaused:
		next := t.desire(s, DesiredDeleted, "")
		if t.meta.History != nil {
			kept := *next
			kept.KeepWorkspace = true
			put(t, tableSandboxes, next, &kept)
			next = &kept
		}
		return Result{Sandbox: next}, nil
	}
	return Result{}, nil
}

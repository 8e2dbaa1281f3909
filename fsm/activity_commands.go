package fsm

import "time"

// touchStep is the smallest change of LastActive that is written.
const touchStep = time.Second

// SandboxTouchBody records the use of sandboxes, at most 1,000 in one command: traffic that the
// proxies carried, and what the leader learned from agent servers. It never moves LastActive
// backwards or beyond Command.Time. It skips changes under a second, and unknown, unclaimed and
// deleted sandboxes. It does not close View.Changed: a later deadline needs no work.
type SandboxTouchBody struct {
	Touches []Touch `json:"touches"`
}

// Touch is the last use of one sandbox.
type Touch struct {
	ID string    `json:"id"`
	At time.Time `json:"at"`
	// Conversation is set when the use was a message to that conversation; the command then moves its
	// UpdatedAt. From protocol version 3. A conversation of another sandbox is skipped.
	Conversation string `json:"conversation,omitempty"`
}

// CommandType implements Body.
func (*SandboxTouchBody) CommandType() CommandType { return SandboxTouch }

// check implements Body.
func (b *SandboxTouchBody) check(r *rules) {
	r.count("touches", len(b.Touches))
	for i := range b.Touches {
		r.lookedUp("sandbox id", b.Touches[i].ID)
		r.lookedUp("conversation id", b.Touches[i].Conversation)
	}
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
		// Not put: no count changes and no waiter needs to wake.
		must(t.txn.Insert(tableSandboxes, &s))
	}
	return Result{}, nil
}

// talked records a message to a conversation in a sandbox.
func (t *transaction) talked(s *Sandbox, id string, at time.Time) {
	if id == "" || !t.meta.active(VersionHistory) {
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

// SandboxExpireBody pauses or deletes a sandbox whose deadline has passed (View.Expiry). The leader
// proposes it. It does nothing, without an error, when the sandbox is unknown, unclaimed or of
// another generation, is no longer in the state that expires, or was used after NotActiveSince.
// Result.Sandbox is set only when it took effect.
type SandboxExpireBody struct {
	ID         string `json:"id"`
	Generation uint64 `json:"generation"`
	// Action is ExpirePause or ExpireDelete.
	Action string `json:"action"`
	// Reason becomes PausedBy when the sandbox is paused.
	Reason string `json:"reason"`
	// NotActiveSince is the LastActive on which the leader decided. Zero means that the sandbox was
	// never used if Reason is PausedByIdle, and that use does not matter for other reasons.
	NotActiveSince time.Time `json:"not_active_since,omitzero"`
}

// CommandType implements Body.
func (*SandboxExpireBody) CommandType() CommandType { return SandboxExpire }

// check implements Body.
func (b *SandboxExpireBody) check(r *rules) {
	r.sandboxID("sandbox id", b.ID)
	r.check(b.Action == ExpirePause || b.Action == ExpireDelete, "unknown action %q", clip(b.Action))
	r.name("reason", b.Reason, MaxName)
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
		if t.meta.active(VersionHistory) {
			kept := *next
			kept.KeepWorkspace = true
			put(t, tableSandboxes, next, &kept)
			next = &kept
		}
		return Result{Sandbox: next}, nil
	}
	return Result{}, nil
}

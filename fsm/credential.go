package fsm

import "time"

// Credential identifies what authenticated the request behind a command: an API key, a session or a
// sandbox's own key. It does not hold the key.
//
// A node may be behind and accept a key that was revoked through another node. So the key is
// checked again at a current state: in Apply for a command, and in the view that serves a read.
type Credential struct {
	// Lookup is the public part of an API key.
	Lookup string `json:"lookup,omitempty"`
	// SandboxID and KeyHash identify a sandbox's own key. Lookup and KeyHash are a session: the API key
	// behind it, and Session.Hash.
	SandboxID string `json:"sandbox_id,omitempty"`
	KeyHash   string `json:"key_hash,omitempty"`
}

// ofSession reports whether a session acted, and not its API key.
func (c Credential) ofSession() bool { return c.Lookup != "" && c.KeyHash != "" }

// IsZero reports whether there was no key: in the leader's own commands, and in those that arrive
// over the peer port.
func (c Credential) IsZero() bool { return c == Credential{} }

// Good reports whether the credential is valid for a user at this index and time. An API key must
// be the user's and valid, and the user not disabled. A session must be of that key and not have
// ended. A sandbox must be the user's, not being deleted, and still have that key; and the user must
// not be locked out (LockedOut). The zero Credential is always valid.
func (v *View) Good(userID string, c Credential, now time.Time) bool {
	if c.Lookup != "" {
		key := v.APIKeyByLookup(c.Lookup)
		if key == nil || key.UserID != userID || !v.GoodKey(key, now) {
			return false
		}
		return !c.ofSession() || !v.Active(VersionSessions) || v.Session(c.KeyHash).opens(key, now)
	}
	if c.IsZero() {
		return true
	}
	s := v.SandboxAny(c.SandboxID)
	if s == nil || s.Desired == DesiredDeleted || s.UserID != userID || s.KeyHash != c.KeyHash || s.KeyHash == "" {
		return false
	}
	return !v.LockedOut(userID, now)
}

// GoodKey is Good for an API key of this view and its user.
func (v *View) GoodKey(key *APIKey, now time.Time) bool {
	return key.Valid(now) && !v.disabled(key.UserID)
}

// LockedOut reports whether nothing of a user's may act: the user is disabled, or has no valid API
// key. The keys of the user's sandboxes, and what is derived from them, then open nothing. Below
// VersionAccess nobody is locked out.
func (v *View) LockedOut(userID string, now time.Time) bool {
	if !v.Active(VersionAccess) {
		return false
	}
	if v.disabled(userID) {
		return true
	}
	return !hasValidKey(v.txn, userID, now)
}

// disabled reports whether a user is disabled.
func (v *View) disabled(userID string) bool {
	u := v.User(userID)
	return u != nil && u.DisabledAt != nil
}

// refused returns the error for a command whose credential is no longer valid, or nil.
func (t *transaction) refused(cmd Command) *Error {
	if !t.meta.active(VersionHistory) {
		return nil
	}
	v := t.view()
	// A command that was forwarded without a key acts for its user, too. Good checks a key's user.
	ofUser := cmd.Type.ofUser() && cmd.Credential.Lookup == ""
	if v.Good(cmd.UserID, cmd.Credential, t.now) && !(ofUser && v.disabled(cmd.UserID)) {
		return nil
	}
	return Errorf(CodeUnauthorized, "the key that this was asked with is no longer valid, or its user is disabled")
}

// view returns a view of the transaction so far, for rules that views and Apply share.
func (t *transaction) view() *View { return &View{meta: t.meta, txn: t.txn} }

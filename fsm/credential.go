package fsm

// Credential identifies the key that authenticated the request behind a command: an API key or a
// sandbox's own key. It does not hold the key.
//
// A node may be behind and accept a key that was revoked through another node. So the key is
// checked again at a current state: in Apply for a command, and in the view that serves a read.
type Credential struct {
	// Lookup is the public part of an API key.
	Lookup string `json:"lookup,omitempty"`
	// SandboxID and KeyHash identify a sandbox's own key.
	SandboxID string `json:"sandbox_id,omitempty"`
	KeyHash   string `json:"key_hash,omitempty"`
}

// IsZero reports whether there was no key: in the leader's own commands, and in those that arrive
// over the peer port.
func (c Credential) IsZero() bool { return c == Credential{} }

// Good reports whether the credential is valid for a user at this index. An API key must be the
// user's, and neither revoked nor suspended. A sandbox must be the user's, not being deleted, and
// still have that key. The zero Credential is always valid.
func (v *View) Good(userID string, c Credential) bool {
	if c.Lookup != "" {
		key := v.APIKeyByLookup(c.Lookup)
		return key != nil && key.Valid() && key.UserID == userID
	}
	if c.IsZero() {
		return true
	}
	s := v.SandboxAny(c.SandboxID)
	return s != nil && s.Desired != DesiredDeleted && s.UserID == userID && s.KeyHash == c.KeyHash && s.KeyHash != ""
}

// refused returns the error for a command whose credential is no longer valid, or nil.
func (t *transaction) refused(cmd Command) *Error {
	if !t.meta.active(VersionHistory) {
		return nil
	}
	v := View{txn: t.txn}
	if v.Good(cmd.UserID, cmd.Credential) {
		return nil
	}
	return Errorf(CodeUnauthorized, "the key that this was asked with is revoked, suspended or of a sandbox that is gone")
}

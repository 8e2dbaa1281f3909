package fsm

// Credential is what the request behind a command showed to prove who it is: an
// API key or a sandbox's own key. It holds neither.
//
// A node may be behind: it lets a request in by a key that was revoked through
// another node. So the key is checked again where no node is behind, in Apply
// for a command and in the view that a read is answered from.
type Credential struct {
	// Lookup is the public part of an API key.
	Lookup string `json:"lookup,omitempty"`
	// SandboxID and KeyHash are a sandbox's, for its own key.
	SandboxID string `json:"sandbox_id,omitempty"`
	KeyHash   string `json:"key_hash,omitempty"`
}

// IsZero reports whether no key was shown: the leader's own commands, and those
// that come over the peer port.
func (c Credential) IsZero() bool { return c == Credential{} }

// Good reports whether the credential is good at this index for a user: the API
// key is the user's and neither revoked nor suspended; the sandbox is the user's,
// not being deleted, and still has that key. The zero one always is.
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

// credentialVersion is the protocol version from which Apply checks credentials:
// below it there may be nodes that do not, and all must come to the same.
const credentialVersion = 3

// refused tells for what a command is refused whose credential is no longer good;
// nil when it is.
func (t *transaction) refused(cmd Command) *Error {
	if t.meta.ProtocolVersion < credentialVersion {
		return nil
	}
	v := View{txn: t.txn}
	if v.Good(cmd.UserID, cmd.Credential) {
		return nil
	}
	return Errorf(CodeUnauthorized, "the key that this was asked with is revoked, suspended or of a sandbox that is gone")
}

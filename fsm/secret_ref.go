package fsm

// SecretRef points at one version of one entry in the secret store (Vault's KV v2, or the encrypted
// file). It is all that the FSM holds of a secret. The zero SecretRef points at nothing.
type SecretRef struct {
	// Path is logical: "users/<user>/settings/llm_api_key", "sandboxes/<sandbox>/session". The secrets
	// package maps it to a mount and a path.
	Path string `json:"path,omitempty"`
	// Version is the KV v2 version, from 1.
	Version int `json:"version,omitempty"`
	// Created is the store's creation time of the version, verbatim. A store that was restored assigns
	// version numbers again, and Created tells them apart. "" is unknown: the cluster was below
	// protocol version 3.
	Created string `json:"created,omitempty"`
	// Bytes is the size of the value, which counts for the user who keeps it. It is 0 for what the
	// scheduler wrote and for what was written below VersionRoom.
	Bytes int `json:"bytes,omitempty"`
}

// IsZero reports whether the ref points at nothing.
func (r SecretRef) IsZero() bool { return r == SecretRef{} }

// OldestSecret returns the lowest version of the entry at a path in the secret store that the state
// refers to, 0 for none.
func (v *View) OldestSecret(path string) int {
	row := firstWithPrefix[secretRef](v.txn, tableSecretRefs, indexID, append([]byte(path), 0))
	if row == nil {
		return 0
	}
	return row.ref.Version
}

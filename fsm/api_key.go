package fsm

import "time"

// APIKey is an issued key, without its value: the key itself is shown once,
// when it is made, as "bvk_<lookup>_<secret>".
type APIKey struct {
	// ID counts up from 1 (api-contract.md B.8 wants an integer).
	ID int `json:"id"`
	// Lookup is the public part by which the key is found, 12 base62
	// characters. Unique.
	Lookup string `json:"lookup"`
	// Hash is the SHA-256 of the whole key, hex; compared in constant time by
	// httpapi.
	Hash   string `json:"hash"`
	Name   string `json:"name"`
	UserID string `json:"user_id"`
	// Operator keys may also call the operator routes (keys, specs).
	Operator  bool       `json:"operator,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
	// SuspendedAt is set when a restore brought the key back: it may have been
	// revoked since the backup. api_key.enable ends it.
	SuspendedAt *time.Time `json:"suspended_at,omitempty"`
}

// Valid reports whether the key may be used.
func (k *APIKey) Valid() bool { return k.RevokedAt == nil && k.SuspendedAt == nil }

package fsm

import "time"

// APIKey is an issued key without its value. The key itself, "bvk_<lookup>_<secret>", is shown
// once, when it is created.
type APIKey struct {
	// ID counts up from 1 (API.md, "Operators").
	ID int `json:"id"`
	// Lookup is the public part that finds the key, 12 base62 characters. It is unique.
	Lookup string `json:"lookup"`
	// Hash is the SHA-256 of the whole key in hex. httpapi compares it in constant time.
	Hash   string `json:"hash"`
	Name   string `json:"name"`
	UserID string `json:"user_id"`
	// Operator keys may also call the operator routes (API.md, "Operators").
	Operator  bool       `json:"operator,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
	// SuspendedAt is set when a restore brings the key back, because the key may have been revoked
	// since the backup. api_key.enable clears it.
	SuspendedAt *time.Time `json:"suspended_at,omitempty"`
}

// Valid reports whether the key may be used.
func (k *APIKey) Valid() bool { return k.RevokedAt == nil && k.SuspendedAt == nil }

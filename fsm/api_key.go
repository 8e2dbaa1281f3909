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
	// Operator is the role below VersionAccess. RoleOf reads both.
	Operator bool `json:"operator,omitempty"`
	// Role is set from VersionAccess on.
	Role Role `json:"role,omitempty"`
	// Scope narrows what the role allows. "" is all of it, and the only value so far.
	Scope     string    `json:"scope,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	// ExpiresAt ends the key; nil is never. It is compared with the time of a command in Apply, and
	// with the node's clock in a view.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	// LastUsedAt is the last use that was noted, at most APIKeyUseStep and a few minutes late.
	LastUsedAt *time.Time `json:"last_used_at,omitempty"`
	// Disabled is set by api_key.disable and cleared by api_key.enable.
	Disabled  bool       `json:"disabled,omitempty"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
	// SuspendedAt is set when a restore brings the key back, because the key may have been revoked
	// since the backup. api_key.enable clears it.
	SuspendedAt *time.Time `json:"suspended_at,omitempty"`
}

// Role is what a key may do. A key without a known role may do nothing.
type Role string

// The roles.
const (
	// RoleUser acts for its user.
	RoleUser Role = "user"
	// RoleOperator also calls the operator routes (API.md, "Operators").
	RoleOperator Role = "operator"
)

// Known reports whether the role is one of the constants.
func (r Role) Known() bool { return r == RoleUser || r == RoleOperator }

// RoleOf returns the key's role, also for a key that was stored before VersionAccess.
func (k *APIKey) RoleOf() Role {
	switch {
	case k.Role != "":
		return k.Role
	case k.Operator:
		return RoleOperator
	}
	return RoleUser
}

// IsOperator reports whether the key may call the operator routes.
func (k *APIKey) IsOperator() bool { return k.RoleOf() == RoleOperator }

// Valid reports whether the key may be used at a time. Its user may still be disabled (View.Good).
func (k *APIKey) Valid(now time.Time) bool {
	return k.RevokedAt == nil && k.SuspendedAt == nil && !k.Disabled && (k.ExpiresAt == nil || now.Before(*k.ExpiresAt))
}

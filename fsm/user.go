package fsm

import "time"

// User owns settings, providers, conversations and sandboxes. A user exists from the first key that
// is issued in its name.
type User struct {
	// ID is the name that the operator chose: [a-z0-9][a-z0-9._-]{0,62}.
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"created_at"`
	// Policy overrides that of the sandboxes' templates; nil sets nothing.
	Policy *Policy `json:"policy,omitempty"`
	// Limits replace Installation.PerUser as a whole; a zero in them means no limit. With nil
	// Installation.PerUser applies.
	Limits *Limits `json:"limits,omitempty"`
	// DisabledAt is when user.disable locked the user out; nil when the user is not disabled.
	DisabledAt *time.Time `json:"disabled_at,omitempty"`
	// Models is what the user used models for, nil for nothing and below VersionModels.
	Models *UserModels `json:"models,omitempty"`
	// EventKey seals the bodies of the user's events. It is zero before the first one.
	EventKey SecretRef `json:"event_key,omitzero"`
}

// secretRefs implements referrer.
func (u *User) secretRefs() refSet { return refSet{u.EventKey} }

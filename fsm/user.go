package fsm

import "time"

// User owns settings, providers, conversations and sandboxes. A user begins
// to exist with the first key issued in its name.
type User struct {
	// ID is the name the operator gave: [a-z0-9][a-z0-9._-]{0,62}.
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"created_at"`
	// Policy overrides the sandboxes' specs'; nil sets nothing.
	Policy *Policy `json:"policy,omitempty"`
	// Limits take the place of Installation.PerUser as a whole, a zero in them
	// meaning no limit; nil leaves the user with those.
	Limits *Limits `json:"limits,omitempty"`
}

package wire

import "bivouac.dev/bivouac/fsm"

// APIKey is an API key in the operator API, without its value.
type APIKey struct {
	ID          int    `json:"id"`
	Lookup      string `json:"lookup"`
	User        string `json:"user"`
	Name        string `json:"name"`
	Role        string `json:"role"`
	Operator    bool   `json:"operator"`
	Scope       string `json:"scope"`
	CreatedAt   Time   `json:"created_at"`
	ExpiresAt   *Time  `json:"expires_at"`
	LastUsedAt  *Time  `json:"last_used_at"`
	Disabled    bool   `json:"disabled"`
	RevokedAt   *Time  `json:"revoked_at"`
	SuspendedAt *Time  `json:"suspended_at"`
}

// CreatedAPIKey is APIKey with the value, which only the creation returns.
type CreatedAPIKey struct {
	APIKey
	Key string `json:"key"`
}

// User is a user in the operator API: the user's own policy and limits, null where unset, and
// the present usage.
type User struct {
	ID        string `json:"id"`
	CreatedAt Time   `json:"created_at"`
	// DisabledAt is null for a user who is not disabled.
	DisabledAt *Time   `json:"disabled_at"`
	Policy     *Policy `json:"policy"`
	Limits     *Limits `json:"limits"`
	Usage      Usage   `json:"usage"`
}

// Policy is a policy: Go durations ("1h30m0s"), "never", or null for inherited.
type Policy struct {
	IdleTimeout       *string `json:"idle_timeout"`
	MaxRunning        *string `json:"max_running"`
	DeletePausedAfter *string `json:"delete_paused_after"`
}

// Limits are limits under the names that 429 responses use; 0 means no limit, and of bytes the
// default.
type Limits struct {
	Running         int `json:"running_sandboxes"`
	Total           int `json:"total_sandboxes"`
	StartsPerMinute int `json:"starts_per_minute"`
	CPU             int `json:"cpu"`
	Memory          int `json:"memory"`
	StateBytes      int `json:"state_bytes"`
	EventBytes      int `json:"event_bytes"`
}

// Usage is the present use of what Limits limits.
type Usage struct {
	Running int `json:"running_sandboxes"`
	Total   int `json:"total_sandboxes"`
	CPU     int `json:"cpu"`
	Memory  int `json:"memory"`
	State   int `json:"state_bytes"`
	Events  int `json:"event_bytes"`
}

// ModelUsage is what models were used for by a user or a conversation, or what one model was
// used for.
type ModelUsage struct {
	UserID         *string `json:"user_id"`
	ConversationID *string `json:"conversation_id"`
	Model          *string `json:"model"`
	Requests       int64   `json:"requests"`
	Errors         int64   `json:"errors"`
	InputTokens    int64   `json:"input_tokens"`
	OutputTokens   int64   `json:"output_tokens"`
	CachedTokens   int64   `json:"cached_tokens"`
	// Cost and CostToday are in US dollars. CostToday is of a user and null for all else.
	Cost      float64  `json:"cost"`
	CostToday *float64 `json:"cost_today"`
	// MeanSeconds is how long a request took, answer included.
	MeanSeconds float64 `json:"mean_seconds"`
}

// Dollars converts a cost of the state to US dollars.
func Dollars(cost int64) float64 { return float64(cost) / fsm.Dollar }

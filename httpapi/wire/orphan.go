package wire

import (
	"bivouac.dev/bivouac/cluster"
)

// Orphan is an orphan in the operator API.
type Orphan struct {
	Kind    string  `json:"kind"`
	Sandbox string  `json:"sandbox"`
	Reason  string  `json:"reason"`
	Birth   *string `json:"birth"`
	Since   Time    `json:"since"`
	// Owner is null where it is not known, and once that user is deleted. Client, Volume and Bytes are
	// those of what a lost client has, else null.
	Owner  *string `json:"owner"`
	Client *string `json:"client"`
	Volume *string `json:"volume"`
	Bytes  *int64  `json:"bytes"`
	// RemovableAt is when it is removed automatically; null for never.
	RemovableAt *Time `json:"removable_at"`
	// Delete is set when an operator has requested the removal.
	Delete bool `json:"delete"`
}

// RestoredSandbox is the sandbox that is made of what a lost client has.
type RestoredSandbox struct {
	Sandbox string `json:"sandbox"`
	Owner   string `json:"owner"`
}

// RestoreReport is the response of POST /api/v1/operator/restore.
type RestoreReport struct {
	cluster.Restored
	Differences *Differences `json:"differences,omitempty"`
}

// Differences lists where a restored state differs from what runs and what the secret store has.
type Differences struct {
	// Unknown are running sandboxes that the state does not have. Missing are sandboxes that the
	// state wants running and that have no job.
	Unknown []string `json:"jobs_without_sandbox"`
	Missing []string `json:"sandboxes_without_job"`
	// Secrets are versions that the state refers to and the secret store does not have.
	Secrets []string `json:"secrets_missing"`
	// Newer are entries with a later version than the state refers to, written after the state was
	// saved.
	Newer []string `json:"secrets_newer"`
	// Problems are the parts that could not be compared.
	Problems []string `json:"problems"`
}

package wire

import (
	"bivouac.dev/bivouac/fsm"
)

// Hold is a hold in the operator API.
type Hold struct {
	Index    uint64        `json:"index"`
	Since    Time          `json:"since"`
	Findings []fsm.Finding `json:"findings"`
	// More counts the findings beyond those listed.
	More int `json:"more"`
}

// Removal counts the automatic removals of one kind in the last hour. BrakedAt is when the
// limit last stopped further ones, null if it did not.
type Removal struct {
	Kind     string `json:"kind"`
	Removed  int    `json:"removed"`
	BrakedAt *Time  `json:"braked_at"`
	Limit    *int   `json:"limit"`
}

// HoldReport is the response of GET /api/v1/operator/hold.
type HoldReport struct {
	Hold     *Hold     `json:"hold"`
	Removals []Removal `json:"removals"`
	// AfterRelease is what the leader does after a release; null without a hold.
	AfterRelease *AfterRelease `json:"after_release"`
}

// AfterRelease is what a release leads to as far as the state shows. The lists hold sandbox ids.
type AfterRelease struct {
	// Adopt are the ranges of births that belong to this history after the release.
	Adopt []fsm.Adopted `json:"adopt"`
	// RemoveJobs are jobs without a sandbox, RemoveWorkspaces workspaces without one.
	RemoveJobs       []string          `json:"remove_jobs"`
	RemoveWorkspaces []OrphanWorkspace `json:"remove_workspaces"`
	Start            []string          `json:"start"`
	Stop             []string          `json:"stop"`
	Delete           []string          `json:"delete"`
}

// OrphanWorkspace is a workspace that a release lets the leader remove.
type OrphanWorkspace struct {
	Sandbox     string `json:"sandbox"`
	RemovableAt Time   `json:"removable_at"`
}

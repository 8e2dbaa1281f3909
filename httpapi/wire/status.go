package wire

import (
	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// Status is the response of GET /api/v1/operator/status: the cluster as this node sees it,
// and whether it can serve.
type Status struct {
	cluster.Status
	Ready  bool    `json:"ready"`
	Reason *string `json:"reason"`
	// Hold is null without a hold.
	Hold *Hold `json:"hold"`
	// Removals counts the leader's automatic removals of the last hour.
	Removals []Removal `json:"removals"`
	// Differs lists the settings in which this node's file differs from the cluster.
	Differs []string `json:"differs"`
	// Bytes is what users keep in the state.
	Bytes StateBytes `json:"state_bytes"`
	// SpecsWithoutIsolation are the ids of the specs whose sandboxes are not isolated from their
	// machine.
	SpecsWithoutIsolation []string `json:"specs_without_isolation"`
	// Drains are the Nomad clients that are being drained.
	Drains []DrainingClient `json:"drains"`
	// Sandboxes counts the sandboxes of the state by their own, DELETING ones included.
	Sandboxes map[string]int `json:"sandboxes"`
	// Backup records the backups that leaders made, zero without one.
	Backup fsm.Backup `json:"backup"`
	// Report is the node's own. It is null where it makes none.
	Report *cluster.Report `json:"report"`
}

// StateBytes is what users keep in the state, in bytes: all together with their limit, and the user
// who keeps most.
type StateBytes struct {
	Used        int `json:"used"`
	Limit       int `json:"limit"`
	LargestUser int `json:"largest_user"`
}

// DrainingClient is a Nomad client that is being drained.
type DrainingClient struct {
	Client string `json:"client"`
	Since  *Time  `json:"since"`
	DrainProgress
}

// Protocol is the response of GET and PUT /api/v1/operator/protocol.
type Protocol struct {
	// Version is the cluster's protocol version.
	Version int `json:"version"`
	// Newest is the newest that every member knows, null while one does not answer.
	Newest *int           `json:"newest"`
	Nodes  []ProtocolNode `json:"nodes"`
	// Brings are the versions above Version that this node's program knows.
	Brings []ProtocolVersion `json:"brings"`
}

// ProtocolNode is a member with the newest version that its program knows, null without an answer.
type ProtocolNode struct {
	Name         string  `json:"name"`
	KnownVersion *int    `json:"known_version"`
	Error        *string `json:"error"`
}

// ProtocolVersion says in words what a version brings.
type ProtocolVersion struct {
	Version int    `json:"version"`
	Brings  string `json:"brings"`
}

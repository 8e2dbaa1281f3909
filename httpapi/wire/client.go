package wire

// SandboxClient is a machine that runs sandboxes: one of Nomad's clients.
type SandboxClient struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Status is Nomad's: ready, down, disconnected, initializing, or "" for one that it has forgotten.
	Status string `json:"status"`
	// Eligible: Nomad places jobs there. It is false while Nomad itself drains the client.
	Eligible bool `json:"eligible"`
	// CPU is in MHz and Memory in MiB; what is free is 0 where the client takes no jobs.
	CPU        int64 `json:"cpu"`
	CPUFree    int64 `json:"cpu_free"`
	Memory     int64 `json:"memory"`
	MemoryFree int64 `json:"memory_free"`
	// Sandboxes are the ids of those whose workspace is there.
	Sandboxes []string `json:"-"`
}

// Client is a client in the operator API.
type Client struct {
	SandboxClient
	// Mark is draining or lost, null for neither, and Since when an operator said so.
	Mark  *string `json:"mark"`
	Since *Time   `json:"since"`
	DrainProgress
	// Workspaces counts the workspaces there, Running those whose sandbox runs, Moving those that are
	// moved away now, and WithoutCopy those of which there is no copy.
	Workspaces  int `json:"workspaces"`
	Running     int `json:"running"`
	Moving      int `json:"moving"`
	WithoutCopy int `json:"without_copy"`
}

// DrainProgress is how far the drain of a client is.
type DrainProgress struct {
	// Drain is first while one workspace is moved before the others, all while these follow, stopped when
	// it can't be done. It is null without a drain, and for one that began below protocol version 9.
	Drain *string `json:"drain"`
	// Stays are the sandboxes that could not be moved, and Failure why the last of them was not.
	Stays   []string `json:"stays"`
	Failure *string  `json:"failure"`
}

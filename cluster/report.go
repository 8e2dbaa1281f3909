package cluster

import "time"

// The names in Report.Services and Report.Disks.
const (
	ServiceNomad = "nomad"
	ServiceVault = "vault"
	DiskData     = "data"
	DiskBackup   = "backup"
)

// Report is what a node says of itself beyond Raft. Config.Report makes it; operators see it.
type Report struct {
	// Version is the program's.
	Version string `json:"version"`
	// Ready is false while the node can't serve writes; then Reason says why. The node itself sets
	// them.
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
	// Disks are the file systems of its directories.
	Disks        []Disk        `json:"disks"`
	Certificates []Certificate `json:"certificates"`
	// Services are Nomad and Vault as the node last found them; none with bivouac dev.
	Services []Service `json:"services"`
	// Differs lists the settings in which its file differs from the cluster.
	Differs []string `json:"differs"`
}

// Disk is the file system of a directory, in bytes.
type Disk struct {
	// Name is one of the Disk constants.
	Name string `json:"name"`
	// Free is what is left to the node, Size what there is. Both are 0 with an Error.
	Free  int64  `json:"free"`
	Size  int64  `json:"size"`
	Error string `json:"error,omitempty"`
}

// Certificate is one that the node uses.
type Certificate struct {
	// Name is that of its metric: "peer", "peer_ca" or "http".
	Name    string    `json:"name"`
	Expires time.Time `json:"expires"`
	// DaysLeft counts whole days, by the node's clock; it is negative after the end.
	DaysLeft int `json:"days_left"`
}

// Service is a server that the node calls.
type Service struct {
	// Name is one of the Service constants.
	Name string `json:"name"`
	// Reachable: it answered the last probe and can serve.
	Reachable bool `json:"reachable"`
	// Sealed is Vault's alone.
	Sealed bool `json:"sealed"`
	// Error says why it can't be used, though it may be reachable.
	Error string `json:"error,omitempty"`
}

// Report is this node's report, nil without Config.Report.
func (n *Node) Report() *Report {
	if n.cfg.Report == nil {
		return nil
	}
	r := n.cfg.Report()
	r.Ready = true
	if err := n.Ready(); err != nil {
		r.Ready, r.Reason = false, err.Error()
	}
	return &r
}

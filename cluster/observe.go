package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/requestid"
)

// callObserve is to the named node: observeRequest; observeResponse. It goes over the peer port
// because nodes know no other address of each other, and answers without a leader
// (ops/decisions/0055).
const callObserve = "observe"

// The kinds of observations.
const (
	ObserveLog     = "log"
	ObserveProfile = "profile"
	ObserveMetrics = "metrics"
	ObserveConfig  = "config"
)

// Observation asks a node about itself: its log, a profile, its metrics, its configuration.
type Observation struct {
	Kind string `json:"kind"`
	// Name is the profile's.
	Name string `json:"name,omitempty"`
	// Seconds is how long a profile is taken.
	Seconds int `json:"seconds,omitempty"`
	// Session names a follower of the log; the first call with it begins.
	Session string `json:"session,omitempty"`
	// Level and Format are those of the lines, of the first call.
	Level  string `json:"level,omitempty"`
	Format string `json:"format,omitempty"`
}

type observeRequest struct {
	To          string      `json:"to"`
	Observation Observation `json:"observation"`
}

// proven is what the operator's proof is for.
func (r observeRequest) proven() string {
	text, err := json.Marshal(r)
	if err != nil {
		return "" // texts and a number
	}
	return "observe\n" + string(text)
}

type observeResponse struct {
	Body  []byte     `json:"body,omitempty"`
	Error *fsm.Error `json:"error,omitempty"`
}

// Observe asks the node with the name, "" for this one, and returns Config.Observe's answer there.
// Another node is asked over its peer port, with a proof of the operator's key of ctx (AsOperator),
// which it checks with its own store. A name that is no member's is CodeNotFound.
func (n *Node) Observe(ctx context.Context, name string, o Observation) ([]byte, error) {
	if name == "" || name == n.cfg.NodeName {
		return n.observed(ctx, o)
	}
	ctx, leave, err := n.enter(ctx, peernet.MaxCallTimeout)
	if err != nil {
		return nil, errStopping()
	}
	defer leave()
	for _, s := range n.servers() {
		if peernet.NodeName(s.ID) != name {
			continue
		}
		r := observeRequest{To: name, Observation: o}
		body, err := withProvenCaller(ctx, r, r.proven())
		if err != nil {
			return nil, err
		}
		raw, err := n.network.Call(peernet.WithRequests(ctx, requestid.Of(ctx)), string(s.Address), callObserve, body)
		if err != nil {
			return nil, &fsm.Error{
				Code:       fsm.CodeTimeout,
				RetryAfter: retryAfter,
				Message:    fmt.Sprintf("asking %s: %v", name, err),
			}
		}
		var response observeResponse
		if err := json.Unmarshal(raw, &response); err != nil {
			return nil, err
		}
		if response.Error != nil {
			return nil, response.Error
		}
		return response.Body, nil
	}
	return nil, fsm.Errorf(fsm.CodeNotFound, "no member is named %q", name)
}

func (n *Node) observed(ctx context.Context, o Observation) ([]byte, error) {
	if n.cfg.Observe == nil {
		return nil, fsm.Errorf(fsm.CodeNotFound, "this node can't be observed")
	}
	return n.cfg.Observe(ctx, o)
}

// handleObserve answers callObserve. A node's certificate alone shows nothing of another node.
func (n *Node) handleObserve(ctx context.Context, r observeRequest) (observeResponse, error) {
	caller, _ := ctx.Value(callerKey{}).(provenCaller)
	age := n.clock().Sub(caller.Time)
	fresh := age < maxCommandAge && age > -maxCommandAge
	if r.To != n.cfg.NodeName || !fresh || !n.store.View().OperatorProves(caller.Lookup, caller.message(r.proven()),
		caller.Proof, n.clock()) {
		return observeResponse{Error: errNoOperator()}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, peernet.MaxCallTimeout-time.Second)
	defer cancel()
	body, err := n.observed(ctx, r.Observation)
	if err == nil && len(body) > peernet.MaxCallBytes/2 { // base64 in JSON
		err = fsm.Errorf(fsm.CodeLimit, "the answer has %d bytes, which is too much for the peer port: ask the node itself",
			len(body))
	}
	if err != nil {
		return observeResponse{Error: asError(err)}, nil
	}
	return observeResponse{Body: body}, nil
}

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
	// BackupInterval is the time between two backups, in seconds; 0 where the node makes none.
	BackupInterval float64 `json:"backup_interval_seconds"`
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
	// CredentialExpires is when what the node logs in with ends, null if never or not known. It is
	// Vault's alone.
	CredentialExpires *time.Time `json:"credential_expires"`
	// CredentialWarning is when it should have been replaced, null like CredentialExpires.
	CredentialWarning *time.Time `json:"credential_warning"`
}

// CredentialLate reports whether what the node logs in with should have been replaced.
func (s Service) CredentialLate(now time.Time) bool {
	return s.CredentialExpires != nil && s.CredentialWarning != nil && now.After(*s.CredentialWarning)
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

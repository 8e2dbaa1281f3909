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

// callObserve is to the named node: observeRequest; observeResponse.
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

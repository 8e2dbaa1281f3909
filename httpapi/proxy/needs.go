package proxy

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// Server is what the proxy needs of the API server. All fields are required.
type Server struct {
	Cluster Cluster
	// SandboxKey reads a sandbox's own key from the secret store.
	SandboxKey func(ctx context.Context, ref fsm.SecretRef) (string, error)
	// AskCluster reports whether the cluster may be asked about a key that this node does not know.
	// It limits the rate of the request's client and of all clients.
	AskCluster func(ctx context.Context) bool
	// Seen returns the scheme and host that the client used, ClientAddress the client's address.
	Seen          func(*http.Request) url.URL
	ClientAddress func(*http.Request) string
	// Info returns a request's entry in the access log, which the proxy fills in.
	Info func(context.Context) *RequestInfo
	// Admitted is called for every request with a good key, with what authorised it. It may refuse one
	// too many.
	Admitted func(ctx context.Context, by fsm.Credential) error
	// Origins returns the front ends that may show a sandbox's page in a frame. Without any, those on
	// this machine may.
	Origins func() []string
	// RequestTimeout limits a command.
	RequestTimeout time.Duration
	Logger         *slog.Logger
	Registerer     prometheus.Registerer
}

// Cluster reads and changes the replicated state.
type Cluster interface {
	View(ctx context.Context, c cluster.Consistency) (*fsm.View, error)
	Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error)
	Status() cluster.Status
}

// RequestInfo is a request's entry in the access log. Handlers fill it in; it is not safe for
// concurrent use.
type RequestInfo struct {
	// Address is the client\'s.
	Address string
	ID      string
	Route   string
	User    string
	// Sandbox is set for requests about one sandbox.
	Sandbox string
	// Task is the start task that the request made.
	Task string
	// Refused says why the request's key was refused, "" if it was not.
	Refused string
	Err     error
	// Client is the request's connection, nil if it is not counted.
	Client Client
	// Counted is set once the request counts for the rate limit.
	Counted bool
}

// Client is the connection of a client.
type Client interface {
	// Admit says that the request in progress has a good credential.
	Admit()
}

// Admit says that the request has a good credential, so that its connection gives way to no newcomer.
func (i *RequestInfo) Admit() {
	if i.Client != nil {
		i.Client.Admit()
	}
}

// Activity receives reports of traffic, so that a sandbox in use does not count as idle. Calls are
// frequent and concurrent and must not block.
type Activity interface {
	// Touched reports present traffic to or from a sandbox.
	Touched(sandboxID string)
	// Talked reports that a message was just delivered to an existing conversation in a sandbox.
	Talked(sandboxID, conversationID string)
}

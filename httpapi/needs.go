package httpapi

import (
	"context"
	"encoding/json"
	"io"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/request"
)

// Cluster reads and changes the replicated state. *cluster.Node implements it. Every method is safe
// for concurrent use and fails with an *fsm.Error.
type Cluster interface {
	request.Cluster
	// Status is the cluster as this node sees it.
	Status() cluster.Status
	// Ready returns nil when this node can serve writes and linearizable reads, ReadyStale when it
	// can serve stale ones.
	Ready() error
	ReadyStale() error
}

// Logs reads the logs of sandboxes' tasks. cmd adapts the runner.
type Logs interface {
	// Logs returns a part of what a sandbox's task wrote. Without a task, logs or an earlier run it
	// is CodeNotFound. The caller closes the reader.
	Logs(ctx context.Context, clusterID, sandboxID string, part LogPart) (io.ReadCloser, error)
}

// Events keeps and reads events of conversations. *cluster.Node implements it. A chain is one of a view of
// this node.
type Events interface {
	// AppendEvents keeps those events of a command that are new; nil means that all are on a majority.
	AppendEvents(ctx context.Context, cmd fsm.Command) (cluster.AppendedEvents, error)
	// ReadEvents calls fn with the events that a query asks for, until it returns false.
	ReadEvents(
		ctx context.Context, chain fsm.EventChain, q cluster.EventQuery, fn func(at uint64, stored []byte) bool,
	) error
	// FindEvents returns events by their ids, without those that are not there.
	FindEvents(ctx context.Context, chain fsm.EventChain, ids []string) (map[string][]byte, error)
}

// LogPart says which part of a task's output is read.
type LogPart struct {
	// Stream is "stdout" or "stderr".
	Stream string
	// Tail is where the part begins, in bytes before the end.
	Tail int64
	// Follow continues until the context or the task ends. Previous is the run before the newest
	// one.
	Follow, Previous bool
}

// Agents calls agent servers. scheduler/agent implements it.
type Agents interface {
	// States returns the state of each conversation that the agent server at baseURL knows. ids and the
	// result's keys are 32 hex characters. Unknown conversations are left out.
	States(ctx context.Context, baseURL, key string, ids []string) (map[string]AgentState, error)
	// SendMessage sends a message to a conversation. A response other than 2xx is an *AgentError
	// with its status.
	SendMessage(ctx context.Context, baseURL, key, conversationID string, msg AgentMessage) error
	// Call makes another call and returns the response's body. A response other than 2xx, and one that
	// is too large, is an *AgentError with its status.
	Call(ctx context.Context, baseURL, key string, q AgentRequest) ([]byte, error)
}

// AgentState is what an agent server says of a conversation below fsm.VersionEvents. The sandbox's user
// controls it.
type AgentState struct {
	// Status is the execution status (API.md, "Enumerations").
	Status string
	// Metrics is a MetricsSnapshot, nil for none.
	Metrics json.RawMessage
}

// AgentMessage is a message to an agent server.
type AgentMessage struct {
	fsm.Message
	// EventID is a UUID, "" for one of the agent server's choice. The built-in agent server stores a
	// message with an id once; OpenHands' ignores it.
	EventID string
}

// AgentRequest is a call of an agent server.
type AgentRequest struct {
	Method string
	// Path has the query, too.
	Path string
	// Body is JSON, nil for none.
	Body []byte
}

// AgentError is a failed call to an agent server.
type AgentError struct {
	// Status is the response's, 0 without a response.
	Status int
	// Detail is the server's own text, cut short. The sandbox's user controls it.
	Detail string
	// Cause is for the log.
	Cause error
}

// Error implements error.
func (e *AgentError) Error() string { return e.Cause.Error() }

// Unwrap returns the cause.
func (e *AgentError) Unwrap() error { return e.Cause }

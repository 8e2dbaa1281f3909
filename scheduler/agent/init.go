package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
)

// InitKeyHeader holds a dormant server's secret key in POST /api/init.
const InitKeyHeader = "X-Init-API-Key"

// States of a server in deferred mode.
const (
	StateDormant      = "dormant"
	StateInitializing = "initializing"
	StateReady        = "ready"
)

// InitState is the response of GET and of POST /api/init.
type InitState struct {
	State string `json:"state"`
	// Error is why the last initialisation failed; nil if it did not.
	Error *string `json:"error"`
}

// ErrNotDormant means that the server is already being or was initialised, perhaps by an earlier
// call whose response was lost. Prove shows whether it has the expected key. The error is also
// ErrRefused.
var ErrNotDormant = errors.New("the agent server is not dormant")

// ErrNotDeferred means that the server does not run in deferred mode. The error is also ErrRefused.
var ErrNotDeferred = errors.New("the agent server is not in deferred mode")

// InitRequest is the body of POST /api/init (PROTOCOL.md, "Warm members"). Empty members are
// omitted; the server then uses its environment. It holds secrets: build it for one call, never log
// or store it.
type InitRequest struct {
	// SessionAPIKeys are the keys that the server accepts afterwards; at least one.
	SessionAPIKeys []string `json:"session_api_keys,omitempty"`
	// SecretKey encrypts the conversations' data on disk. Empty means the key that the server was
	// started with.
	SecretKey         string `json:"secret_key,omitempty"`
	ConversationsPath string `json:"conversations_path,omitempty"`
	BashEventsDir     string `json:"bash_events_dir,omitempty"`
	// Webhooks receive the events (PROTOCOL.md, "Webhooks").
	Webhooks         []InitWebhook `json:"webhooks,omitempty"`
	WebURL           string        `json:"web_url,omitempty"`
	AllowCORSOrigins []string      `json:"allow_cors_origins,omitempty"`
	// MaxConcurrentRuns limits the conversations that run concurrently.
	MaxConcurrentRuns int               `json:"max_concurrent_runs,omitempty"`
	Env               map[string]string `json:"env,omitempty"`
	// BuiltIn is not sent: a server that does not prove that it has initKey is shown nothing, and is
	// ErrUnproven.
	BuiltIn bool `json:"-"`
}

// InitWebhook is one webhook of an InitRequest.
type InitWebhook struct {
	BaseURL string            `json:"base_url"`
	Headers map[string]string `json:"headers,omitempty"`
}

// Init initialises a dormant server, which is then ready and accepts the keys of req. initKey is
// the secret key that the server was started with. If the response is lost, the outcome is unknown;
// a retry returns ErrNotDormant if it succeeded. If initialisation fails, the error is
// ErrUnavailable and the server stays dormant. The scheduler calls Init after a claim.
func (c *Client) Init(ctx context.Context, baseURL, initKey string, req InitRequest) error {
	const op = "initialise"
	// The call shows two keys: a stranger must not receive them.
	known, err := c.challenge(ctx, baseURL, initKey)
	if err != nil {
		state, stateErr := c.InitState(ctx, baseURL)
		if errors.Is(err, ErrNotOurs) && stateErr == nil && state != StateDormant {
			return initError(&Error{Op: op, Kind: ErrRefused, Status: http.StatusBadRequest})
		}
		return err
	}
	if req.BuiltIn && !known {
		return unproven(op)
	}
	body, err := json.Marshal(req)
	if err != nil {
		return &Error{Op: op, Kind: ErrRefused, Detail: "the request can't be encoded"}
	}
	var out InitState
	err = c.call(ctx, c.cfg.CallTimeout, request{
		op: op, method: http.MethodPost, url: baseURL + "/api/init", key: initKey, keyHeader: InitKeyHeader, body: body,
	}, &out)
	if err == nil && out.State != StateReady {
		return &Error{Op: op, Kind: ErrBadAnswer, Detail: "the server is not ready after it was initialised"}
	}
	return initError(err)
}

// InitState returns a server's state, without a key. A server outside deferred mode is
// ErrNotDeferred.
func (c *Client) InitState(ctx context.Context, baseURL string) (string, error) {
	var out InitState
	r := request{op: "get init state", method: http.MethodGet, url: baseURL + "/api/init"}
	if err := c.call(ctx, c.cfg.ProbeTimeout, r, &out); err != nil {
		return "", initError(err)
	}
	switch out.State {
	case StateDormant, StateInitializing, StateReady:
		return out.State, nil
	}
	return "", &Error{Op: r.op, Kind: ErrBadAnswer, Detail: "the server names no state"}
}

// initError adds the specific error of /api/init.
func initError(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Status {
	case http.StatusBadRequest:
		return errors.Join(e, ErrNotDormant)
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return errors.Join(e, ErrNotDeferred)
	}
	return err
}

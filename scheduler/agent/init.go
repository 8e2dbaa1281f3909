package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
)

// InitKeyHeader carries a dormant server's secret key on POST /api/init.
const InitKeyHeader = "X-Init-API-Key"

// The states of a server in deferred mode.
const (
	StateDormant      = "dormant"
	StateInitializing = "initializing"
	StateReady        = "ready"
)

// ErrNotDormant: the server was initialised before, by an earlier call of
// ours whose answer was lost or by somebody else: Prove with the key that was
// given tells. It goes along with ErrRefused.
var ErrNotDormant = errors.New("the agent server is not dormant")

// ErrNotDeferred: the server does not run in deferred mode. It goes along with
// ErrRefused.
var ErrNotDeferred = errors.New("the agent server is not in deferred mode")

// InitRequest is the body of POST /api/init (api-contract.md C.2). Members that
// are empty are left out: the server then keeps what its environment says. It
// holds secrets: it is built for one call and never logged or kept.
type InitRequest struct {
	// SessionAPIKeys are the keys the server accepts from then on; one at
	// least.
	SessionAPIKeys []string `json:"session_api_keys,omitempty"`
	// SecretKey seals what conversations keep on disk; empty for the one the
	// server was started with.
	SecretKey         string `json:"secret_key,omitempty"`
	ConversationsPath string `json:"conversations_path,omitempty"`
	BashEventsDir     string `json:"bash_events_dir,omitempty"`
	// Webhooks are where events go (api-contract.md C.5).
	Webhooks         []InitWebhook `json:"webhooks,omitempty"`
	WebURL           string        `json:"web_url,omitempty"`
	AllowCORSOrigins []string      `json:"allow_cors_origins,omitempty"`
	// MaxConcurrentRuns bounds the conversations that run at a time.
	MaxConcurrentRuns int               `json:"max_concurrent_runs,omitempty"`
	Env               map[string]string `json:"env,omitempty"`
}

// InitWebhook is one webhook of an InitRequest.
type InitWebhook struct {
	BaseURL string            `json:"base_url"`
	Headers map[string]string `json:"headers,omitempty"`
}

// Init binds a dormant server: afterwards it is ready and accepts the keys of
// req. initKey is the secret key it was started with. An answer that is lost
// leaves it open whether it happened; asking again is then ErrNotDormant if it
// did. A server that failed is ErrUnavailable and dormant as before. The
// scheduler calls it after a claim.
func (c *Client) Init(ctx context.Context, baseURL, initKey string, req InitRequest) error {
	const op = "initialise"
	body, err := json.Marshal(req)
	if err != nil {
		return &Error{Op: op, Kind: ErrRefused, Detail: "the request can't be encoded"}
	}
	var out struct {
		State string `json:"state"`
	}
	err = c.call(ctx, c.cfg.CallTimeout, request{
		op: op, method: http.MethodPost, url: baseURL + "/api/init", key: initKey, keyHeader: InitKeyHeader, body: body,
	}, &out)
	if err == nil && out.State != StateReady {
		return &Error{Op: op, Kind: ErrBadAnswer, Detail: "the server is not ready after it was initialised"}
	}
	return initError(err)
}

// InitState asks a server for its state, without a key. A server that is not
// in deferred mode is ErrNotDeferred.
func (c *Client) InitState(ctx context.Context, baseURL string) (string, error) {
	var out struct {
		State string `json:"state"`
	}
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

// initError tells the refusals of /api/init apart.
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

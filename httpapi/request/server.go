package request

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/response"
)

// Server is what calls need of the API's server.
type Server struct {
	Cluster Cluster
	Secrets Secrets
	Log     *slog.Logger
	// RequestTimeout limits one request's work.
	RequestTimeout time.Duration
	// Answers bounds the large answers that are held at a time.
	Answers *limits.Budget
	// Read notes a read of the state.
	Read func(cluster.Consistency, error)

	// discards are the deletions of secrets in progress. Each has a deadline.
	discards sync.WaitGroup
}

// Wait waits for the deletions of secrets in progress.
func (s *Server) Wait() { s.discards.Wait() }

// Cluster reads and changes the replicated state.
type Cluster interface {
	// Propose returns once this node's own store has applied the command, or with the reason why
	// not. After CodeOutcomeUnknown the command may still apply.
	Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error)
	// View returns a read-only view. A stale one neither waits for a leader nor fails without one.
	View(ctx context.Context, c cluster.Consistency) (*fsm.View, error)
}

// Secrets stores secret values. cmd adapts package secrets. A sealed or unavailable store is an
// *fsm.Error with CodeSecretStore.
type Secrets interface {
	// Write stores a new version of the entry at path and returns a reference to it.
	Write(ctx context.Context, path string, data map[string]string) (fsm.SecretRef, error)
	// Read returns one version, which never changes. A version that no longer exists is
	// CodeNotFound.
	Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error)
	// Delete removes the entry with all its versions. A missing entry is no error.
	Delete(ctx context.Context, path string) error
}

type requestInfoKey struct{}

// InfoOf returns the request's entry in the access log. Without an access log it returns an
// unused one.
func InfoOf(ctx context.Context) *proxy.RequestInfo {
	if ex, ok := ctx.Value(requestInfoKey{}).(*proxy.RequestInfo); ok {
		return ex
	}
	return &proxy.RequestInfo{}
}

// WithInfo returns a context with the request's entry in the access log.
func WithInfo(ctx context.Context, ex *proxy.RequestInfo) context.Context {
	return context.WithValue(ctx, requestInfoKey{}, ex)
}

// CountedID returns a parameter of the path that counts up from 1, as answers write it. Another text
// names nothing: a 404.
func (c *Call) CountedID(parameter string) (int, error) {
	text := c.Params.ByName(parameter)
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || strconv.Itoa(n) != text {
		return 0, response.NotFound()
	}
	return n, nil
}

// KeyID is the id of the caller's key, 0 if the view does not have it.
func (c *Call) KeyID(v *fsm.View) int64 {
	if key := v.APIKeyByLookup(c.Caller.Credential.Lookup); key != nil {
		return int64(key.ID)
	}
	return 0
}

// noteMade puts what a command made into the request's line: their own lines have no request.
func (c *Call) noteMade(res fsm.Result) {
	ex := InfoOf(c.Request.Context())
	if res.Sandbox != nil {
		ex.Sandbox = res.Sandbox.ID
	}
	if res.StartTask != nil {
		ex.Task = res.StartTask.ID
	}
}

// ErrEmptyResult reports a command result that lacks its object.
func ErrEmptyResult(t fsm.CommandType) error {
	return fsm.Errorf(fsm.CodeInternal, "%s came back without its object", t)
}

// ErrBatch is the refusal of a batch of n things, of which a request may name MaxBatch.
func ErrBatch(what string, n int) *response.HTTPError {
	return response.Error(http.StatusBadRequest,
		fmt.Sprintf("Cannot request more than %d %s at once, got %d", MaxBatch, what, n))
}

// Operate allows an operator's act on what a user has, and logs it with the id of the key. object
// and owner are "" where it is about many.
func (c *Call) Operate(v *fsm.View, act, object, owner string) error {
	if !v.Active(fsm.VersionAccess) {
		return fsm.NeedsVersion("an operator's act on a sandbox or conversation", fsm.VersionAccess, v.ProtocolVersion())
	}
	c.acted = true
	c.server.Log.Info("operator acts for a user", "act", act, "key", c.KeyID(v), "operator", c.Caller.User,
		"object", object, "owner", owner, "request", InfoOf(c.Request.Context()).ID)
	return nil
}

// Acted reports whether Operate has logged the operator's act.
func (c *Call) Acted() bool { return c.acted }

package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"

	"golang.org/x/time/rate"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/response"
)

// Why a key was refused, as the log says it.
const (
	refusedUnknown = "unknown"
	refusedInvalid = "revoked or expired, or its user is disabled"
	refusedUser    = "not an operator's"
)

// logAct logs what an operator changed or tried to change, once it is done: err is its outcome.
// operate has logged acts for a user.
func (c *call) logAct(found *route, err error) {
	if found.access != operator || c.r.Method == http.MethodGet || c.acted || !c.who.operator {
		return
	}
	var objects []string
	for _, p := range c.params {
		objects = append(objects, strings.TrimPrefix(p.Value, "/"))
	}
	var key int64
	if v, failed := c.server.cluster.View(c.r.Context(), cluster.Stale); failed == nil {
		key = c.keyID(v)
	}
	ex := requestInfoOf(c.r.Context())
	attrs := []any{"request", ex.ID, "act", found.name, "key", key, "operator", c.who.user,
		"object", strings.Join(objects, " "), "address", ex.Address}
	if err != nil {
		attrs = append(attrs, "error", err)
	}
	c.server.log.Info("operator acts", attrs...)
}

// keyID is the id of the caller's key, 0 if the view does not have it.
func (c *call) keyID(v *fsm.View) int64 {
	if key := v.APIKeyByLookup(c.who.credential.Lookup); key != nil {
		return int64(key.ID)
	}
	return 0
}

// noteMade puts what a command made into the request's line: their own lines have no request.
func (c *call) noteMade(res fsm.Result) {
	ex := requestInfoOf(c.r.Context())
	if res.Sandbox != nil {
		ex.Sandbox = res.Sandbox.ID
	}
	if res.StartTask != nil {
		ex.Task = res.StartTask.ID
	}
}

// noteRefused records why the key of a request that is answered with err was refused, if it was.
func (c *call) noteRefused(ex *proxy.RequestInfo, err error) {
	if ex.Refused == "" && c.who.user != "" && response.FailureOf(err, response.FormatDetail,
		"").Status == http.StatusUnauthorized {
		ex.Refused = refusedInvalid
	}
}

// logRefused logs a refused key, at a bounded rate: anyone can send one.
func (s *Server) logRefused(ctx context.Context, ex *proxy.RequestInfo, route string) {
	if ex.Refused == "" {
		return
	}
	write, dropped := s.refused.sample()
	if !write {
		return
	}
	attrs := []slog.Attr{
		slog.String("request", ex.ID), slog.String("route", route), slog.String("reason", ex.Refused),
		slog.String("address", ex.Address),
	}
	if ex.User != "" {
		attrs = append(attrs, slog.String("user", ex.User))
	}
	if dropped > 0 {
		attrs = append(attrs, slog.Uint64("not_logged", dropped))
	}
	s.log.LogAttrs(ctx, slog.LevelWarn, "key refused", attrs...)
}

// newSampler allows failuresPerSecond lines.
func newSampler() *sampler {
	return &sampler{limiter: rate.NewLimiter(failuresPerSecond, failureBurst)}
}

// Limits on the log lines of failed requests, those of clients and those of the node apart.
const (
	failuresPerSecond = 10
	failureBurst      = 100
)

// failureLog samples the log lines of failed requests: anyone can send them, and each is a write to
// the disk.
type failureLog struct{ client, node *sampler }

// sampler bounds the rate of lines. dropped counts those since the last line that was written.
type sampler struct {
	limiter *rate.Limiter
	dropped atomic.Uint64
}

func newFailureLog() failureLog {
	return failureLog{client: newSampler(), node: newSampler()}
}

// sample reports whether a line is written, and how many were not since the last one.
func (f failureLog) sample(status int) (write bool, dropped uint64) {
	s := f.client
	if status >= http.StatusInternalServerError {
		s = f.node
	}
	return s.sample()
}

func (s *sampler) sample() (write bool, dropped uint64) {
	if !s.limiter.Allow() {
		s.dropped.Add(1)
		return false, 0
	}
	return true, s.dropped.Swap(0)
}

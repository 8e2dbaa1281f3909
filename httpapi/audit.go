package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"

	"golang.org/x/time/rate"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/llm"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// Why a key was refused, as the log says it.
const (
	refusedUnknown = "unknown"
	refusedInvalid = "revoked or expired, or its user is disabled"
	refusedUser    = "not an operator's"
	refusedOrigin  = "a session, by a page of another origin"
	refusedSession = "a session that has ended"
)

// logAct logs what an operator changed or tried to change, once it is done: err is its outcome.
// operate has logged acts for a user.
func (c *call) logAct(found *route, err error) {
	if found.access != operator || c.Request.Method == http.MethodGet || c.Acted() || !c.Caller.Operator {
		return
	}
	var objects []string
	for _, p := range c.Params {
		objects = append(objects, strings.TrimPrefix(p.Value, "/"))
	}
	var key int64
	if v, failed := c.server.cluster.View(c.Request.Context(), cluster.Stale); failed == nil {
		key = c.KeyID(v)
	}
	ex := request.InfoOf(c.Request.Context())
	attrs := []any{"request", ex.ID, "act", found.name, "key", key, "operator", c.Caller.User,
		"object", strings.Join(objects, " "), "address", ex.Address}
	if err != nil {
		attrs = append(attrs, "error", err)
	}
	c.server.log.Info("operator acts", attrs...)
}

// noteRefused records why the key of a request that is answered with err was refused, if it was.
func (c *call) noteRefused(ex *proxy.RequestInfo, err error) {
	if ex.Refused == "" && c.Caller.User != "" && response.FailureOf(err, response.FormatDetail,
		"").Status == http.StatusUnauthorized {
		ex.Refused = refusedInvalid
	}
}

// logRefused logs a refused key, at a bounded rate: anyone can send one.
func (s *Server) logRefused(ctx context.Context, ex *proxy.RequestInfo, route string) {
	if ex.Refused == "" {
		return
	}
	write, dropped := s.refused.sample(ex.User)
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

// Limits on the log lines of requests. The log leaves out lines above them and counts those.
const (
	failuresPerSecond = 10 // of clients, and as many of the node
	writesPerSecond   = 20 // to the API, and as many to sandboxes and models
	logBurst          = 100
	// Each user has lines beyond those, so that a busy user does not take the others' lines.
	userWritesPerSecond = 1
	userLogBurst        = 10
)

// requestLog samples the log lines of requests. Each line is a write to the disk that costs a tenth of
// a write of settings, and anyone can send requests that fail.
type requestLog struct {
	// client and node are for failures, writes for successful writes to the API, and passed for
	// requests to sandboxes and models.
	client, node, writes, passed *sampler
}

// sampler bounds the rate of lines. dropped counts the lines left out since the last one written.
type sampler struct {
	limiter *rate.Limiter
	// users bounds each user's lines beyond the limiter; nil is no line beyond it.
	users   *limits.PerKey[string]
	dropped atomic.Uint64
}

func newRequestLog() requestLog {
	writes := newSampler(writesPerSecond)
	writes.users = limits.NewPerKey[string](userWritesPerSecond, userLogBurst)
	return requestLog{
		client: newSampler(failuresPerSecond), node: newSampler(failuresPerSecond), writes: writes,
		passed: newSampler(writesPerSecond),
	}
}

func newSampler(perSecond rate.Limit) *sampler {
	return &sampler{limiter: rate.NewLimiter(perSecond, logBurst)}
}

// sample reports whether a request has a line, and how many had none since the last one. An
// operator's successful request always has one.
func (l requestLog) sample(status int, route, user string) (write bool, dropped uint64) {
	switch {
	case status >= http.StatusInternalServerError:
		return l.node.sample(user)
	case status >= http.StatusBadRequest:
		return l.client.sample(user)
	case strings.HasPrefix(route, pathOperator):
		return true, 0
	case status == http.StatusSwitchingProtocols, route == proxy.Path, route == llm.Path:
		return l.passed.sample(user)
	}
	return l.writes.sample(user)
}

func (s *sampler) sample(user string) (write bool, dropped uint64) {
	if !s.limiter.Allow() && (s.users == nil || !s.users.Allow(user)) {
		s.dropped.Add(1)
		return false, 0
	}
	return true, s.dropped.Swap(0)
}

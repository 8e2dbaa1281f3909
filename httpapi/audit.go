package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"

	lru "github.com/hashicorp/golang-lru/v2"
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
	write, dropped := s.refused.sample(nil)
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

// Limits on the log lines of requests. Above them lines are left out and counted.
const (
	failuresPerSecond = 10 // those of clients and those of the node apart
	writesPerSecond   = 20 // those to the API and those that are passed on apart
	logBurst          = 100
	// Each user has lines beside those of all, so that a busy one leaves the others theirs.
	userWritesPerSecond = 1
	userLogBurst        = 10
)

// requestLog samples the log lines of requests, each of which is a write to the disk: anyone can
// send requests that fail, and a line costs a tenth of a write.
type requestLog struct {
	// client and node are for failures, writes for successful writes to the API, and passed for what
	// goes on to a sandbox or a model.
	client, node, writes, passed *sampler
	users                        *lru.Cache[string, *rate.Limiter]
}

// sampler bounds the rate of lines. dropped counts those since the last line that was written.
type sampler struct {
	limiter *rate.Limiter
	dropped atomic.Uint64
}

func newRequestLog() requestLog {
	users, err := lru.New[string, *rate.Limiter](limits.MaxClients)
	if err != nil {
		panic(err) // the size is positive
	}
	return requestLog{
		client: newSampler(failuresPerSecond), node: newSampler(failuresPerSecond),
		writes: newSampler(writesPerSecond), passed: newSampler(writesPerSecond), users: users,
	}
}

func newSampler(perSecond rate.Limit) *sampler {
	return &sampler{limiter: rate.NewLimiter(perSecond, logBurst)}
}

// sample reports whether a request has a line, and how many had none since the last one. Each
// operator's request has one, unless it fails.
func (l requestLog) sample(status int, route, user string) (write bool, dropped uint64) {
	switch {
	case status >= http.StatusInternalServerError:
		return l.node.sample(nil)
	case status >= http.StatusBadRequest:
		return l.client.sample(nil)
	case strings.HasPrefix(route, pathOperator):
		return true, 0
	case status == http.StatusSwitchingProtocols, route == proxy.Path, route == llm.Path:
		return l.passed.sample(nil)
	}
	return l.writes.sample(func() bool { return l.ofUser(user).Allow() })
}

// ofUser returns the limiter of a user's own lines. Two requests that meet may both make one.
func (l requestLog) ofUser(user string) *rate.Limiter {
	own, ok := l.users.Get(user)
	if !ok {
		own = rate.NewLimiter(userWritesPerSecond, userLogBurst)
		l.users.Add(user, own)
	}
	return own
}

// sample takes a line of those of all, or else, where own is set, of the user's own.
func (s *sampler) sample(own func() bool) (write bool, dropped uint64) {
	if !s.limiter.Allow() && (own == nil || !own()) {
		s.dropped.Add(1)
		return false, 0
	}
	return true, s.dropped.Swap(0)
}

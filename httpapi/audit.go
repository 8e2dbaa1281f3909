package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"

	"golang.org/x/time/rate"

	"bivouac.dev/bivouac/cluster"
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
	if found.access != operator || c.Request.Method == http.MethodGet || c.Acted || !c.Caller.Operator {
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

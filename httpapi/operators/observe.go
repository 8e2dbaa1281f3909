package operators

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// maxProfileSeconds bounds a CPU profile: a peer call is shorter than 30 s.
const (
	defaultProfileSeconds = 5
	maxProfileSeconds     = 20
)

// followPause is the pause between two calls for a log's lines, so that a busy log comes in batches.
const followPause = 100 * time.Millisecond

// observe asks a node of the query about itself.
func (s *Server) observe(c *request.Call, ctx context.Context, node string, o cluster.Observation) ([]byte, error) {
	if s.cfg.Observer == nil {
		return nil, response.Error(http.StatusNotImplemented, "This node can't be observed")
	}
	by := cluster.Operator{UserID: c.Caller.User, Lookup: c.Caller.Credential.Lookup, Key: c.Caller.Key}
	return s.cfg.Observer.Observe(cluster.AsOperator(ctx, by), node, o)
}

// NodeLog handles GET /api/v1/operator/log: the lines of a node's log from now on.
func (s *Server) NodeLog(c *request.Call) (response.Response, error) {
	node := c.Query.Text("node", fsm.MaxName)
	o := cluster.Observation{
		Kind: cluster.ObserveLog, Session: uuid.NewString(),
		Level:  c.Query.Enum("level", "info", []string{"debug", "info", "warn", "error"}),
		Format: c.Query.Enum("format", "text", []string{"text", "json"}),
	}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if err := c.Confirm(); err != nil {
		return response.Response{}, err
	}
	first, err := s.observe(c, c.Ctx(), decode.OrZero(node), o)
	if err != nil {
		return response.Response{}, err
	}
	return response.Response{
		Status: http.StatusOK,
		Stream: func(w http.ResponseWriter) error { return s.followLog(c, w, decode.OrZero(node), o, first) },
	}, nil
}

// followLog writes lines until the client leaves, the node stops, or the key is no longer good.
func (s *Server) followLog(
	c *request.Call, w http.ResponseWriter, node string, o cluster.Observation, lines []byte,
) error {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{}) // a writer without deadlines has none to clear
	w.Header().Set("Content-Type", response.TypeText)
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	ctx := c.Request.Context()
	for {
		_ = rc.SetWriteDeadline(time.Now().Add(limits.ChunkTime)) // likewise
		if _, err := w.Write(lines); err != nil || rc.Flush() != nil {
			return nil // the client has left, or does not read
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followPause):
		}
		if s.Draining() {
			return nil
		}
		if _, err := c.ViewWith(cluster.Stale); err != nil {
			return nil //nolint:nilerr // the key is gone, and the client can't be told
		}
		var err error
		if lines, err = s.observe(c, ctx, node, o); err != nil && ctx.Err() == nil {
			return fmt.Errorf("following the log of %q: %w", node, err)
		}
	}
}

// NodeProfile handles GET /api/v1/operator/pprof/{profile}.
func (s *Server) NodeProfile(c *request.Call) (response.Response, error) {
	node := c.Query.Text("node", fsm.MaxName)
	seconds := c.Query.Integer("seconds", defaultProfileSeconds, 0, maxProfileSeconds)
	return s.observed(c, decode.OrZero(node),
		cluster.Observation{Kind: cluster.ObserveProfile, Name: c.Params.ByName("profile"), Seconds: int(seconds)})
}

// NodeDebug handles GET /api/v1/operator/debug/{what}: a node's metrics or configuration.
func (s *Server) NodeDebug(c *request.Call) (response.Response, error) {
	node, what := c.Query.Text("node", fsm.MaxName), c.Params.ByName("what")
	if what != cluster.ObserveMetrics && what != cluster.ObserveConfig {
		return response.Response{}, response.NotFound()
	}
	return s.observed(c, decode.OrZero(node), cluster.Observation{Kind: what})
}

// observed answers with what a node says, as it is.
func (s *Server) observed(c *request.Call, node string, o cluster.Observation) (response.Response, error) {
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if err := c.Confirm(); err != nil {
		return response.Response{}, err
	}
	body, err := s.observe(c, c.Ctx(), node, o)
	if err != nil {
		return response.Response{}, err
	}
	return response.Response{Status: http.StatusOK, Stream: func(w http.ResponseWriter) error {
		w.Header().Set("Content-Type", "application/octet-stream")
		_, err := w.Write(body)
		return err
	}}, nil
}

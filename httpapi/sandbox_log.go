package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// Bounds of a sandbox's logs, in bytes.
const (
	defaultTail = 64 << 10
	maxTail     = 1 << 20
	logChunk    = 32 << 10
)

// logGrace is how long a log is still followed once its sandbox was paused or
// deleted: what the task says last is the most interesting part.
const logGrace = 2 * time.Second

// logWriteTime bounds how long a client may leave a log unread.
const logWriteTime = time.Minute

// handleSandboxLogs handles GET /api/v1/sandboxes/{sandbox_id}/logs, an extension
// of ours: the end of what the sandbox's task wrote to stdout or stderr, and with
// follow what it writes from then on.
func (s *Server) handleSandboxLogs(c *call) (answer, error) {
	stream := c.query.enum("stream", "stdout", []string{"stdout", "stderr"})
	tail := c.query.integer("tail", defaultTail, -1, maxTail)
	follow := c.query.boolean("follow")
	if err := c.check(); err != nil {
		return answer{}, err
	}
	v, err := c.view()
	if err != nil {
		return answer{}, err
	}
	row := v.Sandbox(c.who.user, c.params.ByName("sandbox_id"))
	switch {
	case row == nil:
		return answer{}, errNotFound()
	case s.cfg.Logs == nil:
		return answer{}, refuse(http.StatusNotImplemented, "This installation can't read the logs of sandboxes")
	}
	exchangeOf(c.r.Context()).sandbox = row.ID
	// Beyond the time that one request has: a log is followed for hours.
	visit, err := s.visitLog(c.r.Context(), row.ID, follow)
	if err != nil {
		return answer{}, err
	}
	log, err := s.cfg.Logs.Logs(visit.ctx, v.ClusterID(), row.ID, stream, tail, follow)
	if err != nil {
		visit.end()
		return answer{}, notFoundAs(err, "The sandbox has no logs yet")
	}
	return answer{status: http.StatusOK, stream: func(w http.ResponseWriter) error {
		defer visit.end()
		defer log.Close()
		if follow {
			visit.user, visit.credential = c.who.user, c.who.credential
			go s.endWith(visit, row.ID)
		}
		return copyLog(visit.ctx, w, log)
	}}, nil
}

func (s *Server) visitLog(ctx context.Context, id string, follow bool) (*visit, error) {
	if follow {
		return s.door.streams.follow(ctx, id)
	}
	return s.door.streams.enroll(ctx), nil
}

// endWith ends a visit when the sandbox does not run any more, or is another's,
// or the key was revoked.
func (s *Server) endWith(visit *visit, id string) {
	for {
		v, err := s.cluster.View(visit.ctx, cluster.Stale)
		if err != nil {
			return
		}
		if !v.Good(visit.user, visit.credential) {
			visit.cancel(errRevoked())
			return
		}
		if row := v.SandboxAny(id); row == nil || row.UserID != visit.user || row.Desired != fsm.DesiredRunning {
			select {
			case <-time.After(logGrace):
				visit.cancel(errMoved())
			case <-visit.ctx.Done():
			}
			return
		}
		select {
		case <-v.Changed():
		case <-visit.ctx.Done():
			return
		}
	}
}

// copyLog sends what comes as it comes, however long that takes; a client that
// does not read for logWriteTime has gone.
func copyLog(ctx context.Context, w http.ResponseWriter, log io.ReadCloser) error {
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Time{}) // a writer without deadlines has none to clear
	_ = rc.SetReadDeadline(time.Time{})  // likewise
	w.Header().Set("Content-Type", typeText)
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	_ = rc.Flush() // one that can't has nothing to flush
	// A reader may be in the middle of a wait when the visit ends.
	stop := context.AfterFunc(ctx, func() { log.Close() })
	defer stop()
	chunk := make([]byte, logChunk)
	for {
		n, err := log.Read(chunk)
		if n > 0 {
			_ = rc.SetWriteDeadline(time.Now().Add(logWriteTime)) // a writer without deadlines waits
			if _, err := w.Write(chunk[:n]); err != nil || rc.Flush() != nil {
				return nil // the client went away, or does not read
			}
		}
		switch {
		case errors.Is(err, io.EOF), ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("reading a sandbox's log: %w", err)
		}
	}
}

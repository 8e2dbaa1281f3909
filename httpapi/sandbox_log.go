package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// Limits of a sandbox's logs, in bytes.
const (
	defaultTail = 64 << 10
	maxTail     = 1 << 20
	logChunk    = 32 << 10
)

// logGrace is how long a log is still followed after its sandbox was paused or deleted, to get the
// task's last lines.
const logGrace = 2 * time.Second

// The streams of a task. streamAll is both.
const (
	streamAll    = "all"
	streamStdout = "stdout"
	streamStderr = "stderr"
)

// The runs whose log can be read: each start of a sandbox is one.
const (
	runLast     = "last"
	runPrevious = "previous"
)

// logRequest is what a request for a log asks for.
type logRequest struct {
	stream string
	part   LogPart
}

// logRequest reads the query.
func (c *call) logRequest() (logRequest, error) {
	r := logRequest{stream: c.Query.Enum("stream", streamAll, []string{streamAll, streamStdout, streamStderr})}
	r.part.Tail = c.Query.Integer("tail", defaultTail, -1, maxTail)
	r.part.Follow = c.Query.Boolean("follow")
	r.part.Previous = c.Query.Enum("run", runLast, []string{runLast, runPrevious}) == runPrevious
	return r, c.Check()
}

// handleSandboxLogs handles GET /api/v1/sandboxes/{sandbox_id}/logs, which upstream does not have:
// the end of what the task wrote and, with follow, what it writes from then on.
func (s *Server) handleSandboxLogs(c *call) (response.Response, error) {
	wanted, err := c.logRequest()
	if err != nil {
		return response.Response{}, err
	}
	v, row, err := c.sandboxOfPath()
	if err != nil {
		return response.Response{}, err
	}
	return c.sandboxLog(v, row, wanted)
}

// sandboxLog streams a sandbox's log to whoever may read it.
func (c *call) sandboxLog(v *fsm.View, row *fsm.Sandbox, wanted logRequest) (response.Response, error) {
	s := c.server
	if s.cfg.Logs == nil {
		return response.Response{}, response.Error(http.StatusNotImplemented,
			"This installation can't read the logs of sandboxes")
	}
	request.InfoOf(c.Request.Context()).Sandbox = row.ID
	// RequestTimeout does not apply: a log may be followed for hours.
	session, err := s.proxy.OpenLog(c.Request.Context(), row.ID, wanted.part.Follow)
	if err != nil {
		return response.Response{}, err
	}
	log, err := s.openLog(session.Context(), v.ClusterID(), row.ID, wanted)
	if err != nil {
		session.End()
		missing := "The sandbox has no logs yet"
		if wanted.part.Previous {
			missing = "The logs of an earlier run of the sandbox are not kept"
		}
		return response.Response{}, response.NotFoundAs(err, missing)
	}
	return response.Response{Status: http.StatusOK, Stream: func(w http.ResponseWriter) error {
		defer session.End()
		defer log.Close()
		if wanted.part.Follow {
			go s.proxy.EndWith(session, row, c.Caller.User, c.Caller.Credential, logGrace)
		}
		return copyLog(session.Context(), w, log)
	}}, nil
}

// openLog opens the streams of a sandbox's log.
func (s *Server) openLog(ctx context.Context, cluster, sandbox string, wanted logRequest) (io.ReadCloser, error) {
	names := []string{wanted.stream}
	if wanted.stream == streamAll {
		names = []string{streamStdout, streamStderr}
	}
	var streams []taskStream
	for _, name := range names {
		part := wanted.part
		part.Stream = name
		log, err := s.cfg.Logs.Logs(ctx, cluster, sandbox, part)
		if err != nil {
			return nil, errors.Join(err, joinedStreams{streams: streams}.Close())
		}
		streams = append(streams, taskStream{name, log})
	}
	switch {
	case len(streams) == 1:
		return streams[0].log, nil
	case wanted.part.Follow:
		return followStreams(streams), nil
	}
	return joinStreams(streams)
}

// copyLog copies the log as it arrives. It ends when the client does not read for limits.ChunkTime.
func copyLog(ctx context.Context, w http.ResponseWriter, log io.ReadCloser) error {
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Time{}) // a writer without deadlines has none to clear
	_ = rc.SetReadDeadline(time.Time{})  // likewise
	w.Header().Set("Content-Type", response.TypeText)
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	_ = rc.Flush() // a writer that can't flush does not buffer
	// The read may be waiting when the session ends.
	stop := context.AfterFunc(ctx, func() { log.Close() })
	defer stop()
	chunk := make([]byte, logChunk)
	for {
		n, err := log.Read(chunk)
		if n > 0 {
			_ = rc.SetWriteDeadline(time.Now().Add(limits.ChunkTime)) // without deadlines the write just waits
			if _, err := w.Write(chunk[:n]); err != nil || rc.Flush() != nil {
				return nil // the client has left, or does not read
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

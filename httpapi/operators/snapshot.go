package operators

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/fsm/snapshotfile"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

const (
	typeTar = "application/x-tar"
	// snapshotRetryAfter is the Retry-After of a refused snapshot.
	snapshotRetryAfter = 10 * time.Second
)

// SnapshotSave handles GET /api/v1/operator/snapshot: the whole state at one index, as a file
// of package snapshotfile. It has its own time limit.
func (s *Server) SnapshotSave(c *request.Call) (response.Response, error) {
	states := s.cfg.Snapshots.States
	if states == nil {
		return response.Response{}, response.Error(http.StatusNotImplemented, "This installation gives out no snapshots")
	}
	select {
	case s.packing <- struct{}{}:
	default:
		const text = "This node is giving out other snapshots. Try again, or ask another node."
		return response.Response{}, &response.HTTPError{
			Status:     http.StatusServiceUnavailable,
			Text:       text,
			RetryAfter: snapshotRetryAfter,
		}
	}
	consistency := cluster.Linearizable
	if c.Stale() {
		consistency = cluster.Stale
	}
	if _, err := c.ViewWith(consistency); err != nil {
		<-s.packing
		return response.Response{}, err
	}
	snapshot, err := states.StateSnapshot(c.Ctx(), consistency)
	if err != nil {
		<-s.packing
		return response.Response{}, fmt.Errorf("reading the state: %w", err)
	}
	c.Index = snapshot.Index()
	return response.Response{Status: http.StatusOK, Stream: func(w http.ResponseWriter) error {
		defer func() { <-s.packing }()
		defer snapshot.Close()
		info := snapshotfile.Info{Created: c.Now, Reason: snapshotfile.ReasonSave, Version: s.cfg.Snapshots.Version,
			Node: s.Cluster.Status().Node, Stale: consistency == cluster.Stale}
		return s.sendSnapshot(w, c.Request, info, snapshot)
	}}, nil
}

// sendSnapshot packs the state and sends the file. An error before the first byte becomes an error
// response. A later one closes the connection, and the body is shorter than Content-Length.
func (s *Server) sendSnapshot(
	w http.ResponseWriter,
	r *http.Request,
	info snapshotfile.Info,
	snapshot *fsm.Snapshot,
) error {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{})  // a connection without deadlines has none to clear
	_ = rc.SetWriteDeadline(time.Time{}) // likewise
	scratch, err := raftstore.NewScratch(s.cfg.Snapshots.Dir)
	if err != nil {
		response.FailureOf(err, response.FormatDetail, "").Write(w)
		return err
	}
	defer scratch.Close()
	packed, err := snapshotfile.Pack(r.Context(), info, snapshot, scratch)
	if errors.Is(err, raftstore.ErrNoRoom) {
		const text = "The disk of this node has no room for the snapshot. Make room, or ask another node."
		err = &response.HTTPError{
			Status:     http.StatusServiceUnavailable,
			Text:       text,
			RetryAfter: snapshotRetryAfter,
			Cause:      err,
		}
	}
	if err != nil {
		response.FailureOf(err, response.FormatDetail, "").Write(w)
		return err
	}
	h := w.Header()
	h.Set("Content-Type", typeTar)
	h.Set("Content-Length", strconv.FormatInt(packed.Size(), 10))
	h.Set("Content-Disposition",
		fmt.Sprintf(`attachment; filename="bivouac-%s-%d.snap"`, info.Created.UTC().Format("20060102T150405Z"),
			snapshot.Index()))
	w.WriteHeader(http.StatusOK)
	paced := &pacedWriter{
		w:     w,
		rc:    rc,
		slack: s.cfg.Snapshots.Slack,
		rate:  s.cfg.Snapshots.BytesPerSecond,
		began: time.Now(),
	}
	if _, err := packed.WriteTo(paced); err != nil {
		return fmt.Errorf("sending the snapshot: %w", err)
	}
	return nil
}

// pacedWriter extends the write deadline with the bytes sent: a receiver slower than rate is cut
// off after slack.
type pacedWriter struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	slack time.Duration
	rate  int
	began time.Time
	sent  int64
}

// Write implements io.Writer.
func (p *pacedWriter) Write(b []byte) (int, error) {
	p.sent += int64(len(b))
	earned := time.Duration(float64(p.sent) / float64(p.rate) * float64(time.Second))
	_ = p.rc.SetWriteDeadline(p.began.Add(p.slack + earned)) // without deadlines the write just waits
	return p.w.Write(b)
}

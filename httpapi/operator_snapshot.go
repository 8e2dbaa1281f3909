package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/fsm/snapshotfile"
)

// SnapshotConfig is how the whole state is given out.
type SnapshotConfig struct {
	// States reads the state; nil when this installation gives out none.
	States States
	// Restorer replaces the state; nil when this installation restores none.
	Restorer Restorer
	// Surroundings compares what was restored with the world; nil compares nothing.
	Surroundings Surroundings
	// MaxUpload bounds a file that is restored, in bytes.
	MaxUpload int64
	// Dir holds a file for as long as it is sent, compressed; "" is the system's
	// directory for temporary files.
	Dir string
	// Version is this program's, for the file's manifest.
	Version string
	// AtATime bounds how many are on their way out; further ones are answered
	// 503.
	AtATime int
	// Slack and BytesPerSecond bound how slowly one may be received: so much time
	// in all, and the time that its length takes at that rate.
	Slack          time.Duration
	BytesPerSecond int
}

// defaultSnapshots gives the values the documentation promises.
func defaultSnapshots() SnapshotConfig {
	return SnapshotConfig{MaxUpload: 16 << 30, AtATime: 2, Slack: time.Minute, BytesPerSecond: 64 << 10}
}

// validate names the first field that can't be right.
func (c SnapshotConfig) validate() error {
	if c.MaxUpload < 1 {
		return fmt.Errorf("Snapshots.MaxUpload (%d) must be positive", c.MaxUpload)
	}
	if c.AtATime < 1 || c.Slack <= 0 || c.BytesPerSecond < 1 {
		return fmt.Errorf("Snapshots.AtATime (%d), Slack (%s) and BytesPerSecond (%d) must be positive", c.AtATime, c.Slack, c.BytesPerSecond)
	}
	return nil
}

const (
	typeTar = "application/x-tar"
	// snapshotRetryAfter is what a client is told while others get theirs.
	snapshotRetryAfter = 10 * time.Second
)

// handleSnapshotSave handles GET /api/v1/operator/snapshot: the whole state at
// one index, as a file of package snapshotfile. Its time is its own, not that of
// other requests.
func (s *Server) handleSnapshotSave(c *call) (answer, error) {
	states := s.cfg.Snapshots.States
	if states == nil {
		return answer{}, refuse(http.StatusNotImplemented, "This installation gives out no snapshots")
	}
	select {
	case s.packing <- struct{}{}:
	default:
		const text = "This node is giving out other snapshots. Try again, or ask another node."
		return answer{}, &refusal{status: http.StatusServiceUnavailable, text: text, retryAfter: snapshotRetryAfter}
	}
	consistency := cluster.Linearizable
	if c.stale() {
		consistency = cluster.Stale
	}
	if _, err := c.viewWith(consistency); err != nil {
		<-s.packing
		return answer{}, err
	}
	snapshot, err := states.StateSnapshot(c.ctx(), consistency)
	if err != nil {
		<-s.packing
		return answer{}, fmt.Errorf("reading the state: %w", err)
	}
	c.index = snapshot.Index()
	return answer{status: http.StatusOK, stream: func(w http.ResponseWriter) error {
		defer func() { <-s.packing }()
		info := snapshotfile.Info{Created: c.now, Reason: snapshotfile.ReasonSave, Version: s.cfg.Snapshots.Version,
			Node: s.cluster.Status().Node, Stale: consistency == cluster.Stale}
		return s.sendSnapshot(w, c.r, info, snapshot)
	}}, nil
}

// sendSnapshot packs the state and sends the file. What fails before the first
// byte is answered like any other failure; later the connection is closed, and
// the client gets less than it was promised.
func (s *Server) sendSnapshot(w http.ResponseWriter, r *http.Request, info snapshotfile.Info, snapshot *fsm.Snapshot) error {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{})  // one without deadlines has none to clear
	_ = rc.SetWriteDeadline(time.Time{}) // likewise
	scratch, err := cluster.NewScratch(s.cfg.Snapshots.Dir)
	if err != nil {
		failureOf(err, shapeDetail, "").write(w)
		return err
	}
	defer scratch.Close()
	packed, err := snapshotfile.Pack(r.Context(), info, snapshot, scratch)
	if errors.Is(err, cluster.ErrNoRoom) {
		const text = "The disk of this node has no room for the snapshot. Make room, or ask another node."
		err = &refusal{status: http.StatusServiceUnavailable, text: text, retryAfter: snapshotRetryAfter, cause: err}
	}
	if err != nil {
		failureOf(err, shapeDetail, "").write(w)
		return err
	}
	h := w.Header()
	h.Set("Content-Type", typeTar)
	h.Set("Content-Length", strconv.FormatInt(packed.Size(), 10))
	h.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="bivouac-%s-%d.snap"`, info.Created.UTC().Format("20060102T150405Z"), snapshot.Index()))
	w.WriteHeader(http.StatusOK)
	paced := &pacedWriter{w: w, rc: rc, slack: s.cfg.Snapshots.Slack, rate: s.cfg.Snapshots.BytesPerSecond, began: time.Now()}
	if _, err := packed.WriteTo(paced); err != nil {
		return fmt.Errorf("sending the snapshot: %w", err)
	}
	return nil
}

// pacedWriter gives a receiver as much time as its rate allows for what it was
// sent: a long answer passes, a receiver that hardly reads does not keep it open.
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
	_ = p.rc.SetWriteDeadline(p.began.Add(p.slack + earned)) // a writer without deadlines waits
	return p.w.Write(b)
}

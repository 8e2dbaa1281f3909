package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"bivouac.dev/bivouac/cluster"
)

// The answers to the question what becomes of the API keys in a backup: those
// that were revoked since come back with it.
const (
	restoreKeysKeep    = "keep"
	restoreKeysSuspend = "suspend"
)

// handleSnapshotRestore handles POST /api/v1/operator/restore: the body is a file
// of package snapshotfile, whose state replaces the cluster's. keys=keep|suspend
// must be given; the caller's own key stays valid. force restores over a state
// that is lost by it. The body's length and time are its own, not those of other
// requests.
func (s *Server) handleSnapshotRestore(c *call) (answer, error) {
	restorer := s.cfg.Snapshots.Restorer
	if restorer == nil {
		return answer{}, refuse(http.StatusNotImplemented, "This installation restores no snapshots")
	}
	keys, _ := c.query.last("keys")
	if keys != restoreKeysKeep && keys != restoreKeysSuspend {
		c.errs.value([]string{"query", "keys"}, "must be keep or suspend: keys that were revoked since the backup come back with it", echo(keys, true))
	}
	if err := c.check(); err != nil {
		return answer{}, err
	}
	options := cluster.RestoreOptions{SuspendKeys: keys == restoreKeysSuspend, Force: c.flag("force")}
	if err := c.confirm(); err != nil {
		return answer{}, err
	}
	scratch, err := cluster.NewScratch(s.cfg.Snapshots.Dir)
	if err != nil {
		return answer{}, err
	}
	defer scratch.Close()
	if err := s.receiveSnapshot(c, scratch); err != nil {
		return answer{}, err
	}
	// The file may have been long on its way.
	v, err := c.viewWith(cluster.Linearizable)
	if err != nil {
		return answer{}, err
	}
	options.KeepKey = v.APIKeyByLookup(c.who.credential.Lookup)
	done, err := restorer.Restore(c.r.Context(), scratch, options)
	if err != nil {
		return answer{}, fmt.Errorf("restoring: %w", err)
	}
	c.index = done.Index
	report := restoreReport{Restored: done}
	if around := s.cfg.Snapshots.Surroundings; around != nil {
		if v, err := s.cluster.View(c.r.Context(), cluster.Stale); err == nil {
			ctx, cancel := context.WithTimeout(c.r.Context(), differencesTimeout)
			defer cancel()
			d := around.Differences(ctx, v)
			report.Differences = &d
		}
	}
	return ok(report)
}

// differencesTimeout bounds the comparison of what was restored with the world.
const differencesTimeout = 30 * time.Second

// restoreReport is the answer of POST /api/v1/operator/restore.
type restoreReport struct {
	cluster.Restored
	Differences *Differences `json:"differences,omitempty"`
}

// Differences says where a state that was restored and the world are not the same.
type Differences struct {
	// Unknown are sandboxes that run and that the state does not know, Missing
	// those that the state wants running and that have no job.
	Unknown []string `json:"jobs_without_sandbox"`
	Missing []string `json:"sandboxes_without_job"`
	// Secrets are versions that the state refers to and the secret store lacks.
	Secrets []string `json:"secrets_missing"`
	// Newer are entries that have a later version than the state refers to: what
	// was written after the state was saved.
	Newer []string `json:"secrets_newer"`
	// Problems says what could not be looked at.
	Problems []string `json:"problems"`
}

// flag reads a query parameter that is on when it is there and not off.
func (c *call) flag(name string) bool {
	s, sent := c.query.last(name)
	off, fault := toBool(s)
	return sent && (s == "" || fault == nil && off)
}

// receiveSnapshot keeps the body, which may be long and slow within bounds.
func (s *Server) receiveSnapshot(c *call, scratch io.Writer) error {
	limit := s.cfg.Snapshots.MaxUpload
	tooLarge := refuse(http.StatusRequestEntityTooLarge, fmt.Sprintf("The file is larger than %d bytes (limits { snapshot_size })", limit))
	if c.r.ContentLength > limit {
		return tooLarge
	}
	rc := http.NewResponseController(c.writer)
	paced := &pacedReader{
		r: http.MaxBytesReader(c.writer, c.r.Body, limit), rc: rc, slack: s.cfg.Snapshots.Slack,
		rate: s.cfg.Snapshots.BytesPerSecond, began: time.Now(),
	}
	_, err := io.Copy(scratch, paced)
	_ = rc.SetReadDeadline(time.Time{})  // one without deadlines has none to clear
	_ = rc.SetWriteDeadline(time.Time{}) // likewise
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return tooLarge
	case errors.Is(err, cluster.ErrNoRoom):
		const text = "The disk of this node has no room for the file. Make room."
		return &refusal{status: http.StatusInsufficientStorage, text: text, cause: err}
	case err != nil:
		return &refusal{status: http.StatusBadRequest, text: "Request body could not be read", cause: err}
	}
	return nil
}

// pacedReader gives a sender as much time as its rate allows for what it has
// sent.
type pacedReader struct {
	r     io.Reader
	rc    *http.ResponseController
	slack time.Duration
	rate  int
	began time.Time
	got   int64
}

// Read implements io.Reader.
func (p *pacedReader) Read(b []byte) (int, error) {
	earned := time.Duration(float64(p.got) / float64(p.rate) * float64(time.Second))
	until := p.began.Add(p.slack + earned)
	_ = p.rc.SetReadDeadline(until) // a reader without deadlines waits
	_ = p.rc.SetWriteDeadline(until.Add(p.slack))
	n, err := p.r.Read(b)
	p.got += int64(n)
	return n, err
}

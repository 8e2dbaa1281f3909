package operators

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// What a restore does with the file's API keys: keys that were revoked since the backup are valid
// again.
const (
	restoreKeysKeep    = "keep"
	restoreKeysSuspend = "suspend"
)

// SnapshotRestore handles POST /api/v1/operator/restore. The body is a file of package
// snapshotfile; its state replaces the cluster's. keys=keep|suspend is required; the caller's own
// key stays valid. A cluster that has a state refuses, because the restore would lose it, unless
// force is set. The body has its own limits of size and time.
func (s *Server) SnapshotRestore(c *request.Call) (response.Response, error) {
	restorer := s.cfg.Snapshots.Restorer
	if restorer == nil {
		return response.Response{}, response.Error(http.StatusNotImplemented, "This installation restores no snapshots")
	}
	keys, _ := c.Query.Last("keys")
	options := cluster.RestoreOptions{SuspendKeys: keys == restoreKeysSuspend, Force: isOn(c, "force")}
	if keys != restoreKeysKeep && keys != restoreKeysSuspend {
		c.Problems.Value([]string{"query", "keys"},
			"must be keep or suspend: keys that were revoked since the backup come back with it", decode.Echo(keys, true))
	}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if err := c.Confirm(); err != nil {
		return response.Response{}, err
	}
	scratch, err := raftstore.NewScratch(s.cfg.Snapshots.Dir)
	if err != nil {
		return response.Response{}, err
	}
	defer scratch.Close()
	if err := s.receiveSnapshot(c, scratch); err != nil {
		return response.Response{}, err
	}
	// The upload may have taken long, so the key is checked again.
	v, err := c.ViewWith(cluster.Linearizable)
	if err != nil {
		return response.Response{}, err
	}
	options.KeepKey = v.APIKeyByLookup(c.Caller.Credential.Lookup)
	done, err := restorer.Restore(c.Request.Context(), scratch, options)
	if err != nil {
		return response.Response{}, fmt.Errorf("restoring: %w", err)
	}
	c.Index = done.Index
	report := wire.RestoreReport{Restored: done}
	if around := s.cfg.Snapshots.Surroundings; around != nil {
		if v, err := s.Cluster.View(c.Request.Context(), cluster.Stale); err == nil {
			ctx, cancel := context.WithTimeout(c.Request.Context(), differencesTimeout)
			defer cancel()
			d := around.Differences(ctx, v)
			report.Differences = &d
		}
	}
	return response.OK(report)
}

// differencesTimeout limits the comparison after a restore.
const differencesTimeout = 30 * time.Second

// isOn reads a query parameter that is on if it is empty or true.
func isOn(c *request.Call, name string) bool {
	s, sent := c.Query.Last(name)
	off, fault := decode.ToBool(s)
	return sent && (s == "" || fault == nil && off)
}

// receiveSnapshot writes the body to scratch, within the limits of size and rate.
func (s *Server) receiveSnapshot(c *request.Call, scratch io.Writer) error {
	limit := s.MaxUpload()
	tooLarge := response.Error(http.StatusRequestEntityTooLarge,
		fmt.Sprintf("The file is larger than %d bytes (limits { snapshot_size })", limit))
	if c.Request.ContentLength > limit {
		return tooLarge
	}
	rc := http.NewResponseController(c.Writer)
	paced := &pacedReader{
		r: http.MaxBytesReader(c.Writer, c.Request.Body, limit), rc: rc, slack: s.cfg.Snapshots.Slack,
		rate: s.cfg.Snapshots.BytesPerSecond, began: time.Now(),
	}
	_, err := io.Copy(scratch, paced)
	_ = rc.SetReadDeadline(time.Time{})  // a connection without deadlines has none to clear
	_ = rc.SetWriteDeadline(time.Time{}) // likewise
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return tooLarge
	case errors.Is(err, raftstore.ErrNoRoom):
		const text = "The disk of this node has no room for the file. Make room."
		return &response.HTTPError{Status: http.StatusInsufficientStorage, Text: text, Cause: err}
	case err != nil:
		return &response.HTTPError{Status: http.StatusBadRequest, Text: "Request body could not be read", Cause: err}
	}
	return nil
}

// pacedReader extends the read deadline with the bytes received: a sender slower than rate is cut
// off after slack.
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
	_ = p.rc.SetReadDeadline(until) // without deadlines the read just waits
	_ = p.rc.SetWriteDeadline(until.Add(p.slack))
	n, err := p.r.Read(b)
	p.got += int64(n)
	return n, err
}

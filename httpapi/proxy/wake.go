package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/singleflight"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/response"
)

// staleAfter is how long after the last contact with a leader this node's own view is still used.
// Later, a placement in it may belong to another sandbox.
const staleAfter = 5 * time.Second

// Ready returns nil when this node can serve new connections: it had a leader staleAfter ago or
// later, so that it knows who may pass.
func (d *Proxy) Ready() error {
	if time.Since(d.server.Cluster.Status().LastContact) > staleAfter {
		return errors.New("no leader is known")
	}
	return nil
}

// View returns this node's own view or, after staleAfter without a leader, a linearizable one.
func (d *Proxy) View(ctx context.Context) (*fsm.View, error) {
	if time.Since(d.server.Cluster.Status().LastContact) > staleAfter {
		return d.server.Cluster.View(ctx, cluster.Linearizable)
	}
	return d.server.Cluster.View(ctx, cluster.Stale)
}

// servingSandbox is a sandbox that serves.
type servingSandbox struct {
	row *fsm.Sandbox
	// index is the log index of the view with the row.
	index uint64
	// woken is set if the sandbox was paused and this request woke it.
	woken bool
}

// serving waits for a starting sandbox to serve, for Config.StartWait at most. With wake it resumes
// a paused one. Its error becomes the response.
func (d *Proxy) serving(ctx context.Context, g grant, wake bool) (servingSandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.StartWait)
	defer cancel()
	granted, woken := g.row, false
	for {
		v, err := d.View(ctx)
		if err != nil {
			return servingSandbox{}, err
		}
		row := v.SandboxAny(granted.ID)
		if !IsOwned(row) || row.UserID != granted.UserID || row.KeyHash != granted.KeyHash {
			return servingSandbox{}, response.Unauthorized()
		}
		if !v.Good(row.UserID, g.credential, time.Now()) {
			return servingSandbox{}, fsm.Errorf(fsm.CodeUnauthorized, "the key was revoked while the sandbox was waited for")
		}
		if row.Desired == fsm.DesiredRunning && IsServing(row) {
			return servingSandbox{row: row, index: v.Index(), woken: woken}, nil
		}
		switch {
		case row.Desired == fsm.DesiredRunning && (row.State() == fsm.SandboxStarting || row.State() == fsm.SandboxRunning):
		case row.Desired == fsm.DesiredPaused && !wake:
			return servingSandbox{}, d.errPaused(row)
		case row.Desired == fsm.DesiredPaused && row.State() == fsm.SandboxPaused && !woken:
			if err := d.wake(ctx, row, g.credential); err != nil {
				return servingSandbox{}, err
			}
			woken = true
			continue
		default:
			return servingSandbox{}, errNotServing(row)
		}
		select {
		case <-v.Changed():
		case <-ctx.Done():
			return servingSandbox{}, errNotServing(row)
		}
	}
}

// errNotServing tells an authorised client why a sandbox does not respond.
func errNotServing(row *fsm.Sandbox) *response.HTTPError {
	e := &response.HTTPError{Status: http.StatusServiceUnavailable, RetryAfter: 5 * time.Second}
	switch state := row.State(); {
	case row.Desired == fsm.DesiredPaused && state != fsm.SandboxPaused:
		e.Text, e.RetryAfter = "The sandbox is being paused.", 2*time.Second
	case state == fsm.SandboxError || state == fsm.SandboxMissing:
		e.Text, e.RetryAfter = fmt.Sprintf("The sandbox does not run: it is %s.", state), 30*time.Second
	case state == fsm.SandboxPaused && row.Desired == fsm.DesiredRunning:
		// The detail says why it does not run.
		e.Text, e.RetryAfter = fmt.Sprintf("The sandbox is paused: %s.", row.Status.Detail), 30*time.Second
	default:
		e.Text = "The sandbox is starting. Try again."
	}
	return e
}

// wakes merges concurrent resumes of a sandbox.
type wakes struct{ group singleflight.Group }

// wake resumes a paused sandbox on behalf of its owner. Concurrent requests with the same key share
// one command, which outlives each of them.
func (d *Proxy) wake(ctx context.Context, row *fsm.Sandbox, by fsm.Credential) error {
	done := d.wakes.group.DoChan(row.ID+" "+by.Lookup, func() (any, error) {
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.server.RequestTimeout)
		defer cancel()
		cmd := fsm.NewCommand(uuid.NewString(), time.Now(), row.UserID, &fsm.SandboxResumeBody{ID: row.ID})
		cmd.Credential = by
		_, err := d.server.Cluster.Propose(own, cmd)
		d.metrics.wake(err)
		if err == nil {
			d.server.Logger.Info("sandbox woken by traffic", "sandbox", row.ID, "user", row.UserID)
		}
		return nil, err
	})
	select {
	case res := <-done:
		if res.Err != nil {
			return fmt.Errorf("waking the sandbox: %w", res.Err)
		}
		return nil
	case <-ctx.Done():
		return errNotServing(row)
	}
}

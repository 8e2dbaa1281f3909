package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/singleflight"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// staleAfter is how long this node may not have heard from a leader and still
// go by its own store: what it believes of a placement may by then be another
// sandbox's.
const staleAfter = 5 * time.Second

// view gives the picture the door goes by: this node's own, unless it may be
// cut off.
func (d *door) view(ctx context.Context) (*fsm.View, error) {
	if time.Since(d.server.cluster.Status().LastContact) > staleAfter {
		return d.server.cluster.View(ctx, cluster.Linearizable)
	}
	return d.server.cluster.View(ctx, cluster.Stale)
}

// servingSandbox is a sandbox that serves.
type servingSandbox struct {
	row *fsm.Sandbox
	// index is the log index that the row was seen at.
	index uint64
	// woken is set when it was paused and this request woke it.
	woken bool
}

// serving waits until a sandbox that starts serves, at most for
// DoorConfig.StartWait. With wake it resumes one that is paused. Its error is the
// answer.
func (d *door) serving(ctx context.Context, g grant, wake bool) (servingSandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.StartWait)
	defer cancel()
	granted, woken := g.row, false
	for {
		v, err := d.view(ctx)
		if err != nil {
			return servingSandbox{}, err
		}
		row := v.SandboxAny(granted.ID)
		if !isOwned(row) || row.UserID != granted.UserID || row.KeyHash != granted.KeyHash {
			return servingSandbox{}, errUnauthorized()
		}
		if !v.Good(row.UserID, g.credential) {
			return servingSandbox{}, fsm.Errorf(fsm.CodeUnauthorized, "the key was revoked while the sandbox was waited for")
		}
		if row.Desired == fsm.DesiredRunning && isServing(row) {
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

// errNotServing says to one who may know it why a sandbox does not answer.
func errNotServing(row *fsm.Sandbox) *refusal {
	e := &refusal{status: http.StatusServiceUnavailable, retryAfter: 5 * time.Second}
	switch state := row.State(); {
	case row.Desired == fsm.DesiredPaused && state != fsm.SandboxPaused:
		e.text, e.retryAfter = "The sandbox is being paused.", 2*time.Second
	case state == fsm.SandboxError || state == fsm.SandboxMissing:
		e.text, e.retryAfter = fmt.Sprintf("The sandbox does not run: it is %s.", state), 30*time.Second
	default:
		e.text = "The sandbox is starting. Try again."
	}
	return e
}

// wakes shares one resume among the requests that come for a paused sandbox.
type wakes struct{ group singleflight.Group }

// wake resumes a paused sandbox on behalf of its owner. Requests that come at
// the same time with the same key share one command, which ends with none of them.
func (d *door) wake(ctx context.Context, row *fsm.Sandbox, by fsm.Credential) error {
	done := d.wakes.group.DoChan(row.ID+" "+by.Lookup, func() (any, error) {
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.server.cfg.RequestTimeout)
		defer cancel()
		cmd := fsm.NewCommand(uuid.NewString(), time.Now(), row.UserID, &fsm.SandboxResumeBody{ID: row.ID})
		cmd.Credential = by
		_, err := d.server.cluster.Propose(own, cmd)
		d.metrics.wake(err)
		if err == nil {
			d.server.log.Info("sandbox woken by traffic", "sandbox", row.ID, "user", row.UserID)
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

package proxy

import (
	"context"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// Load counts what is open on one node.
type Load struct {
	// Sessions are the open requests and streams, Sandboxes the sandboxes that they go to.
	Sessions, Sandboxes int
	// Unauthenticated are the WebSockets that have not sent a key yet.
	Unauthenticated int
}

// Load returns the present load.
func (d *Proxy) Load() Load {
	s := d.sessions
	s.mu.Lock()
	defer s.mu.Unlock()
	return Load{Sessions: len(s.open), Sandboxes: len(s.watches), Unauthenticated: d.sockets.unauthenticated.Open()}
}

// Drain ends event streams and the agent servers' WebSockets, the latter with 1012, so that their
// clients reconnect to another node, and accepts no new streams. Other upgraded connections, whose
// protocol is not known, and requests continue. It may be called again.
func (d *Proxy) Drain() { d.sessions.drain() }

// Await waits until no session is open, or ctx ends. Call Drain first.
func (d *Proxy) Await(ctx context.Context) {
	select {
	case <-d.sessions.done:
	case <-ctx.Done():
	}
}

// Stop ends every session, counts the upgraded connections among them as cut, and waits for them
// until ctx ends. Call Drain first.
func (d *Proxy) Stop(ctx context.Context) error {
	cut, err := d.sessions.stop(ctx)
	d.metrics.cut.Add(float64(cut))
	if cut > 0 {
		d.server.Logger.Warn("upgraded connections to sandboxes were cut: they did not end before http { drain_timeout }",
			"count", cut)
	}
	return err
}

// OpenLog starts a session that reads a sandbox's log. With follow it counts against
// Config.MaxFollowers and ends when the node drains. The caller must call End.
func (d *Proxy) OpenLog(ctx context.Context, id string, follow bool) (*Session, error) {
	if follow {
		return d.sessions.follow(ctx, id)
	}
	return d.sessions.enroll(ctx), nil
}

// Context returns the session's context. It ends with the session.
func (v *Session) Context() context.Context { return v.ctx }

// End ends the session.
func (v *Session) End() { v.end() }

// EndWith waits for a reason to end a session, ends it and returns. The reasons are a key that is no
// longer good, a node without a leader and, after grace, a sandbox that no longer should run or has
// another owner.
func (d *Proxy) EndWith(v *Session, of *fsm.Sandbox, user string, by fsm.Credential, grace time.Duration) {
	again := time.NewTicker(recheckInterval)
	defer again.Stop()
	for {
		if d.sessions.isStale() {
			v.cancel(errStale())
			return
		}
		now, err := d.server.Cluster.View(v.ctx, cluster.Stale)
		if err != nil {
			return
		}
		if !now.Good(user, by, time.Now()) {
			v.cancel(errRevoked())
			return
		}
		if row := now.SandboxAny(of.ID); row == nil || row.UserID != of.UserID || row.Desired != fsm.DesiredRunning {
			select {
			case <-time.After(grace):
				v.cancel(errMoved())
			case <-v.ctx.Done():
			}
			return
		}
		select {
		case <-now.Changed():
		case <-again.C:
		case <-v.ctx.Done():
			return
		}
	}
}

// Serving waits for a sandbox to serve, for Config.StartWait at most, and returns its present row.
// With wake it resumes a paused sandbox with the request's credential.
func (d *Proxy) Serving(ctx context.Context, row *fsm.Sandbox, by fsm.Credential, wake bool) (*fsm.Sandbox, error) {
	up, err := d.serving(ctx, grant{row: row, credential: by}, wake)
	return up.row, err
}

package scheduler

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/fault"
)

// move gives the sandbox a workspace on another client, filled from the one it has or from its copy.
// The state says first that a move is tried, and at the end which volume counts, each only if no
// other try came in between. Until the end the sandbox keeps the workspace that it has.
func (c *carriers) move(ctx context.Context, sb *fsm.Sandbox, from, mark string) (err error) {
	begin := time.Now()
	log := c.log.With("sandbox", sb.ID, "address", from, "reason", mark)
	defer func() {
		if err != nil && ctx.Err() == nil && !c.gone(sb.ID, err) {
			c.s.metrics.carry.moves.WithLabelValues(mark, "failed").Inc()
			log.Warn("moving a workspace failed", "error", err)
			c.l.moveFailed(sb.ID, err)
			c.drainFailed(ctx, sb.ID, from, err)
		}
	}()
	job, now, others, err := c.jobFor(ctx, sb)
	if err != nil {
		return err
	}
	fault.At("before", "begin move")
	if _, err := c.s.cluster.Propose(ctx,
		command(&fsm.SandboxMoveBody{ID: sb.ID, Attempt: sb.Moves, From: from})); err != nil {
		return err
	}
	avoid := []string{from}
	// What an earlier try left. It was listed before this try began, so it is no later one's. What
	// can't be removed, as on a client that was lost, is no way there.
	for _, w := range others {
		if c.keepsLost(sb, w) {
			continue
		}
		if err := c.s.runner.RemoveWorkspace(ctx, w); err != nil {
			log.Debug("removing a workspace of an earlier try failed", "peer", w.NodeID, "error", err)
			avoid = append(avoid, w.NodeID)
		}
	}
	for _, m := range c.s.store.View().ClientMarks() {
		avoid = append(avoid, m.ID)
	}
	next, err := c.carrier.NewWorkspace(ctx, job, avoid)
	if err != nil {
		return err
	}
	home := fsm.Home{Volume: next.ID, Client: next.NodeID, Lost: mark == fsm.ClientLost}
	fault.At("before", "fill workspace")
	if home.CopyAt, err = c.fill(ctx, sb, job, now, next, mark); err != nil {
		return err
	}
	fault.At("before", "end move")
	body := &fsm.SandboxMovedBody{ID: sb.ID, Attempt: sb.Moves + 1, Home: home}
	if home.Lost && c.s.store.View().Active(fsm.VersionRoom) {
		body.Left = now.ID
	}
	if _, err := c.s.cluster.Propose(ctx, command(body)); err != nil {
		return err
	}
	fault.At("after", "end move")
	c.l.moveFailed(sb.ID, nil)
	c.moveTried(sb.ID)
	c.s.metrics.carry.moves.WithLabelValues(mark, "ok").Inc()
	if home.Lost {
		log.Warn("workspace restored from its copy on another client (bivouac runbook client-lost)", "duration",
			time.Since(begin))
	} else {
		log.Info("workspace moved to another client", "duration", time.Since(begin))
	}
	return nil
}

// fill fills the new workspace. It returns the time of the copy that it came from, zero for none.
func (c *carriers) fill(
	ctx context.Context,
	sb *fsm.Sandbox,
	job Job,
	now, next Workspace,
	mark string,
) (time.Time, error) {
	source := func(ctx context.Context, out io.Writer) error {
		return c.carrier.Export(ctx, job, now, strings.NewReader(""), out)
	}
	var at time.Time
	switch {
	case !ran(sb.Status):
		return at, nil // nothing was ever written
	case mark == fsm.ClientLost:
		if sb.Copy == nil || c.s.cfg.Copies == nil {
			return at, errors.New("there is no copy of the workspace that this node could read: " +
				"see workspaces { backup } of its configuration")
		}
		at = sb.Copy.At
		source = func(ctx context.Context, out io.Writer) error {
			err := c.s.cfg.Copies.Load(ctx, c.clusterID, sb.ID, *sb.Copy, out)
			if c.damage.note(sb.ID, *sb.Copy, true, err) {
				c.due(sb.ID)
			}
			return err
		}
	case now.ID == "":
		return at, errors.New("the workspace is gone from its client")
	}
	return at, c.pour(ctx, job, next, source)
}

// pour fills the workspace from a stream.
func (c *carriers) pour(
	ctx context.Context,
	job Job,
	next Workspace,
	source func(context.Context, io.Writer) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := source(ctx, out)
		_ = out.CloseWithError(err)
		done <- err
	}()
	err := c.carrier.Import(ctx, job, next, in)
	_ = in.CloseWithError(errors.Join(err, io.ErrClosedPipe))
	if err != nil {
		cancel()
	}
	if first := <-done; first != nil && (err == nil || !errors.Is(first, context.Canceled) &&
		!errors.Is(first, io.ErrClosedPipe)) {
		err = first // what the other end says is the cause
	}
	return err
}

// leftByLoss reports whether the workspace is what a lost client still has. It may be the only holder
// of what was written after the copy, so it stays until the sandbox is deleted.
func leftByLoss(sb *fsm.Sandbox, w Workspace) bool {
	return sb.Home != nil && sb.Home.Lost && w.NodeID == sb.Home.From
}

// giveUp ends a move whose client is no longer drained, or not of this sandbox: it keeps what it has.
// What the tries made goes; no other try has begun since they were listed.
func (c *carriers) giveUp(ctx context.Context, sb *fsm.Sandbox) error {
	c.moveTried(sb.ID)
	c.l.moveFailed(sb.ID, nil)
	_, now, others, err := c.jobFor(ctx, sb)
	if _, failed := c.s.cluster.Propose(ctx,
		command(&fsm.SandboxMoveBody{ID: sb.ID, Attempt: sb.Moves, End: true})); failed != nil {
		return failed
	}
	if err != nil || now.ID == "" {
		return nil // the sandbox's next move, or its end, removes them
	}
	for _, w := range others {
		if c.keepsLost(sb, w) {
			continue
		}
		if err := c.s.runner.RemoveWorkspace(ctx, w); err != nil && ctx.Err() == nil {
			c.log.Warn("removing what a move that was given up has made failed", "sandbox", sb.ID, "address", w.NodeID,
				"error", err)
		}
	}
	return nil
}

// dropFormer removes the workspaces that the sandbox had before it moved. It runs from the new one,
// and its marker was there. One on a client that is away stays until the sandbox is deleted.
func (c *carriers) dropFormer(ctx context.Context, sb *fsm.Sandbox) error {
	_, now, others, err := c.jobFor(ctx, sb)
	if err != nil {
		return err
	}
	if now.ID == sb.Home.Volume {
		for _, w := range slices.Backward(others) {
			if c.keepsLost(sb, w) {
				continue
			}
			if err := c.s.runner.RemoveWorkspace(ctx, w); err != nil && ctx.Err() == nil {
				c.log.Warn("removing the workspace that a sandbox had before it moved failed", "sandbox", sb.ID, "address",
					w.NodeID, "error", err)
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped[sb.Home.Volume] = true
	return nil
}

func (c *carriers) wasDropped(volume string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped[volume]
}

// moveFailed notes why the last try of a move failed, for the sandbox's status.
func (l *loop) moveFailed(id string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.trackLocked(id)
	if t.moveFailure = ""; err != nil {
		t.moveFailure = err.Error()
	}
	l.queue.add(id)
}

package scheduler

import (
	"context"
	"errors"
	"maps"
	"slices"

	"bivouac.dev/bivouac/fsm"
)

// drainTries is how often a move from a drained client fails before the sandbox is left there.
const drainTries = 3

// drains reports whether the drain of a client takes the sandbox off it now. A member of a warm pool is
// replaced and not moved, so it need not wait for the first.
func drains(v *fsm.View, client string, sb *fsm.Sandbox) bool {
	m := v.MarkOf(client)
	return m.Drains(sb.ID) || sb.Member() && m.Mark == fsm.ClientDraining && m.Drain != fsm.DrainStopped
}

// chooseFirst chooses the sandbox that is moved before the others, for each drain that has none which
// can be: a paused one where there is one, because that disturbs nobody. One in ERROR comes last.
func (c *carriers) chooseFirst(ctx context.Context, v *fsm.View) {
	for _, m := range v.ClientMarks() {
		if m.Drain != fsm.DrainFirst || m.First != "" && c.canBeFirst(v, v.SandboxAny(m.First), m.ID, true) {
			continue
		}
		var first *fsm.Sandbox
		for _, id := range slices.Sorted(maps.Keys(c.at[m.ID])) {
			sb := v.SandboxAny(id)
			if c.canBeFirst(v, sb, m.ID, false) && (first == nil || byDisturbance(sb) < byDisturbance(first)) {
				first = sb
			}
		}
		if first == nil {
			continue
		}
		body := &fsm.ClientDrainBody{ID: m.ID, Since: m.Since, First: first.ID}
		if _, err := c.s.cluster.Propose(ctx, command(body)); err != nil && ctx.Err() == nil {
			c.log.Debug("choosing the first sandbox of a drain failed", "sandbox", first.ID, "error", err)
		}
	}
}

// drainsGoOn reports whether the drain of any client has something to do.
func drainsGoOn(v *fsm.View) bool { return slices.ContainsFunc(v.ClientMarks(), goesOn) }

func goesOn(m fsm.ClientMark) bool { return m.Drain == fsm.DrainFirst || m.Drain == fsm.DrainAll }

// byDisturbance orders the sandboxes with which a drain can begin.
func byDisturbance(sb *fsm.Sandbox) int {
	return slices.Index([]fsm.SandboxState{fsm.SandboxPaused, fsm.SandboxRunning, fsm.SandboxError}, sb.State())
}

// leaveErrors ends the drains of clients on which nothing is left but sandboxes in ERROR that have no
// workspace which could be moved: each stays, with the reason.
func (c *carriers) leaveErrors(ctx context.Context, v *fsm.View) {
	for _, m := range v.ClientMarks() {
		if !goesOn(m) {
			continue
		}
		var stays *fsm.Sandbox
		others := false
		for id := range c.at[m.ID] {
			sb, o := v.SandboxAny(id), c.l.observedOf(id)
			if sb == nil {
				continue
			}
			none := sb.State() == fsm.SandboxError && sb.Home == nil && o.Home == "" // no workspace
			if sb.Desired == fsm.DesiredDeleted || homeOf(sb, o) != m.ID || none || slices.Contains(m.Stays, sb.ID) {
				continue
			}
			if sb.State() != fsm.SandboxError || movableInError(sb) || sb.Move != nil {
				others = true
				break
			}
			stays = sb
		}
		if others || stays == nil {
			continue
		}
		detail := "the sandbox " + stays.ID + " is in ERROR and has no workspace that could be " +
			"moved; resume or delete it: " + stays.Status.Detail
		body := &fsm.ClientDrainBody{
			ID: m.ID, Since: m.Since, Sandbox: stays.ID, Failure: clipped(fsm.SandboxStatus{Detail: detail}).Detail,
		}
		if _, err := c.s.cluster.Propose(ctx, command(body)); err != nil && ctx.Err() == nil {
			c.log.Debug("noting a sandbox that a drain leaves failed", "sandbox", stays.ID, "error", err)
		}
	}
}

// canBeFirst reports whether the drain of a client can begin with the sandbox, or go on with it.
func (c *carriers) canBeFirst(v *fsm.View, sb *fsm.Sandbox, client string, chosen bool) bool {
	if sb == nil || sb.Member() || sb.Desired == fsm.DesiredDeleted || v.Held(sb) ||
		homeOf(sb, c.l.observedOf(sb.ID)) != client {
		return false
	}
	switch sb.State() {
	case fsm.SandboxPaused:
		return sb.Status.Workspace != ""
	case fsm.SandboxRunning:
		return true
	case fsm.SandboxStarting:
		return chosen
	case fsm.SandboxError:
		return movableInError(sb)
	case fsm.SandboxMissing:
	}
	return false
}

// drainFailed notes that a workspace could not be moved from a drained client, when trying again has no
// sense: the state then leaves the sandbox there, or stops the drain.
func (c *carriers) drainFailed(ctx context.Context, id, from string, why error) {
	m := c.s.store.View().MarkOf(from)
	if !m.Drains(id) || m.Drain == "" {
		return
	}
	c.mu.Lock()
	c.moveTries[id]++
	tries := c.moveTries[id]
	c.mu.Unlock()
	if tries < drainTries && !errors.As(why, new(*Denied)) {
		return
	}
	detail := clipped(fsm.SandboxStatus{
		Detail: "the workspace of sandbox " + id + " can't be moved: " + why.Error(),
	}).Detail
	body := &fsm.ClientDrainBody{ID: from, Since: m.Since, Sandbox: id, Failure: detail}
	if _, err := c.s.cluster.Propose(ctx, command(body)); err != nil {
		return // the next try says it
	}
	c.moveTried(id)
	c.log.Warn("a drain leaves a sandbox where it is, and what it paused is resumed (bivouac runbook drain)", "sandbox",
		id, "address", from, "error", why)
}

// moveTried forgets the tries of a move.
func (c *carriers) moveTried(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.moveTries, id)
}

package nomad

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// tryTime bounds a trial of a move: an operator's request waits for it.
const tryTime = 20 * time.Second

// TryMove finds out whether the workspaces of sandboxes could be moved off a client now: whether clients
// that are none of avoid have room for what runs, and whether jobs as those that carry workspaces start
// there and beside the workspaces, and take commands. It leaves nothing. Every node may call it.
func (r *Runner) TryMove(ctx context.Context, from string, avoid []string, sandboxes []*fsm.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	if err := r.refreshCapacity(ctx, 0); err != nil {
		return err
	}
	avoid = append(slices.Clone(avoid), from)
	if err := r.roomFor(avoid, sandboxes); err != nil {
		return err
	}
	var g errgroup.Group
	tried := map[string]bool{}
	for _, sb := range sandboxes {
		// What starts the job depends on the driver alone, unless the image is the sandbox's own.
		kind := string(sb.Template.Driver) + " " + sb.Template.Image
		if r.cfg.CarryImage != "" || sb.Template.Driver == fsm.DriverRawExec {
			kind = string(sb.Template.Driver)
		}
		if tried[kind] || len(tried) >= maxTries {
			continue
		}
		tried[kind] = true
		job := scheduler.Job{SandboxID: "trial", Template: sb.Template}
		for _, client := range []string{from, r.roomiestBut(job, avoid)} {
			g.Go(func() error { return r.tryCarrier(ctx, job, client) })
		}
	}
	return g.Wait()
}

// maxTries bounds the kinds of jobs that one trial starts.
const maxTries = 4

// tryCarrier starts a job as those that carry workspaces on a client, without a workspace, and runs a
// command in it that does nothing.
func (r *Runner) tryCarrier(ctx context.Context, job scheduler.Job, client string) error {
	spec, command, err := r.carrySpec(job, workspace{NodeID: client}, true)
	if err != nil {
		return err
	}
	defer r.endCarrier(ctx, *spec.ID)
	alloc, err := r.runCarrier(ctx, spec)
	if err != nil {
		return fmt.Errorf("on the Nomad client %s: %w", client, err)
	}
	if err := r.exec(ctx, job.Template.Driver, alloc, append(command, "workspace", "wait", "0s"), strings.NewReader(""),
		io.Discard); err != nil {
		return fmt.Errorf("on the Nomad client %s: %w", client, err)
	}
	return nil
}

// roomFor reports whether the sandboxes fit on the clients that are none of avoid: those that should run
// all together, and each other one alone, because a paused one takes no room once it has moved.
func (r *Runner) roomFor(avoid []string, sandboxes []*fsm.Sandbox) error {
	r.capacity.mu.Lock()
	defer r.capacity.mu.Unlock()
	free := make([]clientCapacity, 0, len(r.capacity.list))
	for _, c := range r.capacity.list {
		if !slices.Contains(avoid, c.id) {
			free = append(free, *c)
		}
	}
	order := slices.SortedFunc(slices.Values(sandboxes), func(a, b *fsm.Sandbox) int { // the largest first
		return cmp.Or(cmp.Compare(b.Template.Memory, a.Template.Memory), cmp.Compare(b.Template.CPU, a.Template.CPU))
	})
	without, first := 0, ""
	for _, sb := range order {
		job := scheduler.Job{Template: sb.Template}
		best := -1
		for i := range free {
			if c := &free[i]; r.suits(c, sb.Template) && c.leftFor(job) >= 0 &&
				(best < 0 || c.leftFor(job) > free[best].leftFor(job)) {
				best = i
			}
		}
		switch {
		case best < 0:
			without++
			first = cmp.Or(first, sb.ID)
		case sb.Desired == fsm.DesiredRunning:
			free[best].free = free[best].free.minus(needs(sb.Template))
		}
	}
	if without > 0 {
		return &scheduler.Failure{Reason: fsm.ReasonNoCapacity, Detail: fmt.Sprintf(
			"the other Nomad clients have no room for %d of %d sandboxes (sandbox %s is the largest of them): add a client, "+
				"or pause or delete sandboxes", without, len(sandboxes), first)}
	}
	return nil
}

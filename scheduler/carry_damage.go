package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/archive"
)

// checkEvery is how often each copy is looked at.
const checkEvery = 24 * time.Hour

// damage has the copies that can't be restored, as far as this term has found.
type damage struct {
	gauge prometheus.Gauge
	mu    sync.Mutex
	// copies has the damaged ones by sandbox.
	copies map[string]damagedCopy
}

// damagedCopy is a copy's id. A check, which reads no content, can't take back what a restore has found.
type damagedCopy struct {
	id   string
	read bool
}

func newDamage(gauge prometheus.Gauge) *damage {
	gauge.Set(0)
	return &damage{gauge: gauge, copies: map[string]damagedCopy{}}
}

// note keeps what checking a copy, or reading it all, ended with. It reports whether the copy is damaged.
func (d *damage) note(sandbox string, c fsm.Copy, read bool, err error) bool {
	if errors.Is(err, context.Canceled) {
		return false // the term ended: it says nothing of the copy
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	was, known := d.copies[sandbox]
	worse := known && was.read && was.id == c.ID
	damaged := errors.Is(err, archive.ErrDamaged)
	switch {
	case damaged:
		d.copies[sandbox] = damagedCopy{id: c.ID, read: read || worse}
	case err == nil && (read || !worse):
		delete(d.copies, sandbox)
	}
	d.gauge.Set(float64(len(d.copies)))
	return damaged
}

// end forgets a sandbox: it has another copy, or is deleted.
func (d *damage) end(sandbox string) { d.note(sandbox, fsm.Copy{}, true, nil) }

// sandboxes lists those whose copy is damaged.
func (d *damage) sandboxes() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.copies))
}

// stop shows no damage: the next leader counts it anew.
func (d *damage) stop() { d.gauge.Set(0) }

// has reports whether the newest copy of the sandbox is damaged.
func (d *damage) has(sb *fsm.Sandbox) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return sb.Copy != nil && d.copies[sb.ID].id == sb.Copy.ID
}

// checkAll looks at every copy once in checkEvery, until ctx ends: objects may go without anybody
// copying or restoring. A paused workspace with a damaged copy is copied again.
func (c *carriers) checkAll(ctx context.Context) {
	checked := map[string]time.Time{}
	for {
		if err := c.checkOnce(ctx, checked); err != nil && ctx.Err() == nil {
			c.log.Warn("looking at the copies of workspaces failed", "error", err)
		}
		if !sleep(ctx, c.s.cfg.CollectInterval) {
			return
		}
	}
}

// maxFailedChecks is how many looks in a row may fail before the store is taken to be away.
const maxFailedChecks = 3

func (c *carriers) checkOnce(ctx context.Context, checked map[string]time.Time) error {
	var failed error
	ready, inRow := false, 0
	for _, id := range c.unchecked(checked) {
		sb := c.s.store.View().SandboxAny(id)
		if !checkable(sb) {
			continue
		}
		cp := *sb.Copy
		err := c.s.cfg.Copies.Check(ctx, c.clusterID, id, cp)
		if now := c.s.store.View().SandboxAny(id); !checkable(now) || now.Copy.ID != cp.ID {
			continue // a newer copy may have replaced it
		}
		if !ready && errors.Is(err, archive.ErrDamaged) {
			if err := c.s.cfg.Copies.Ready(ctx, c.clusterID); err != nil {
				return err
			}
			ready = true
		}
		if c.damage.note(id, cp, false, err) {
			// Lines with the same "error" are written once a minute, and each names another sandbox.
			c.log.Warn("the copy of a workspace can't be restored (bivouac runbook copies)", "sandbox", id, "reason", err)
			c.due(id)
		} else if err != nil {
			failed = fmt.Errorf("sandbox %s: %w", id, err)
			if inRow++; inRow == maxFailedChecks {
				return failed
			}
			continue
		}
		inRow = 0
		checked[id] = time.Now()
	}
	return failed
}

// mayBegin returns an error for the first copy of a sandbox into a store that has none of the copies in
// the state. It would make an unmounted directory look like the store.
func (c *carriers) mayBegin(ctx context.Context, sb *fsm.Sandbox) error {
	if sb.Copy != nil {
		return nil // what it builds on is looked for
	}
	err := c.s.cfg.Copies.Ready(ctx, c.clusterID)
	if err == nil {
		return nil
	}
	for other := range c.s.store.View().AllSandboxes() {
		if checkable(other) {
			return err
		}
	}
	return nil // it is the first of all
}

func checkable(sb *fsm.Sandbox) bool {
	return sb != nil && sb.Copy != nil && sb.Desired != fsm.DesiredDeleted
}

// unchecked forgets what is gone, and returns the sandboxes to look at: in any order, so that those of
// which it always fails don't keep the others from their turn.
func (c *carriers) unchecked(checked map[string]time.Time) (ids []string) {
	v := c.s.store.View()
	maps.DeleteFunc(checked, func(id string, _ time.Time) bool { return v.SandboxAny(id) == nil })
	for _, id := range c.damage.sandboxes() { // a restore finds damage before the first look
		if v.SandboxAny(id) == nil {
			c.damage.end(id)
		}
	}
	for sb := range v.AllSandboxes() {
		if checkable(sb) && time.Since(checked[sb.ID]) >= checkEvery {
			ids = append(ids, sb.ID)
		}
	}
	rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	return ids
}

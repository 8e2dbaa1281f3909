package scheduler

import (
	"context"
	"errors"
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
	// copies has the ids of copies by sandbox.
	copies map[string]string
}

func newDamage(gauge prometheus.Gauge) *damage {
	gauge.Set(0)
	return &damage{gauge: gauge, copies: map[string]string{}}
}

// note keeps what reading or checking a copy ended with. It reports whether the copy is damaged.
func (d *damage) note(sandbox string, c fsm.Copy, err error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	damaged := errors.Is(err, archive.ErrDamaged)
	switch {
	case damaged:
		d.copies[sandbox] = c.ID
	case err == nil:
		delete(d.copies, sandbox)
	}
	d.gauge.Set(float64(len(d.copies)))
	return damaged
}

// end forgets a sandbox: it has another copy, or is deleted.
func (d *damage) end(sandbox string) { d.note(sandbox, fsm.Copy{}, nil) }

// has reports whether the newest copy of the sandbox is damaged.
func (d *damage) has(sb *fsm.Sandbox) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return sb.Copy != nil && d.copies[sb.ID] == sb.Copy.ID
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

func (c *carriers) checkOnce(ctx context.Context, checked map[string]time.Time) error {
	v := c.s.store.View()
	for id := range checked {
		if v.SandboxAny(id) == nil {
			delete(checked, id)
			c.damage.end(id)
		}
	}
	for sb := range v.AllSandboxes() {
		if sb.Copy == nil || sb.Desired == fsm.DesiredDeleted || time.Since(checked[sb.ID]) < checkEvery {
			continue
		}
		cp := *sb.Copy
		err := c.s.cfg.Copies.Check(ctx, c.clusterID, sb.ID, cp)
		if now := c.s.store.View().SandboxAny(sb.ID); now == nil || now.Copy == nil || now.Copy.ID != cp.ID {
			continue // a newer copy may have replaced it
		}
		if c.damage.note(sb.ID, cp, err) {
			c.log.Warn("the copy of a workspace can't be restored (bivouac runbook copies)", "sandbox", sb.ID, "error", err)
			c.due(sb.ID)
		} else if err != nil {
			return err
		}
		checked[sb.ID] = time.Now()
	}
	return nil
}

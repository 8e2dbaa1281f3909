package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/fault"
)

// pools keeps the warm pools at the size their specs ask for, for one term. It
// only adds and drops rows; the loop starts and removes what they stand for.
type pools struct {
	s       *Scheduler
	log     *slog.Logger
	retries map[string]*poolRetry
}

// poolRetry holds a spec's pool back after a member failed, so that a spec that
// can't work does not keep the cluster busy.
type poolRetry struct {
	backoff   *backoff.ExponentialBackOff
	failed    time.Time
	notBefore time.Time
	// short is since when the pool has had too few members; zero when it has
	// them.
	short time.Time
}

// poolPause is from a change to the look at the pools: the start that has just
// claimed a member goes before the one that takes its place. poolYield bounds
// how long a pool that is short lets claims go before its new members.
const (
	poolPause = 100 * time.Millisecond
	poolYield = 2 * time.Second
)

func newPools(s *Scheduler, log *slog.Logger) *pools {
	return &pools{s: s, log: log, retries: map[string]*poolRetry{}}
}

// run tends the pools until ctx ends.
func (p *pools) run(ctx context.Context) error {
	for {
		v := p.s.store.View()
		next := p.round(ctx, v)
		if !awaitChange(ctx, v, next) || !sleep(ctx, poolPause) {
			return nil
		}
	}
}

// awaitChange waits until the store is no longer as in v, or for the time at,
// unless that is zero; false when ctx ended.
func awaitChange(ctx context.Context, v *fsm.View, at time.Time) bool {
	var due <-chan time.Time
	if !at.IsZero() {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-due:
	case <-v.Changed():
	}
	return true
}

// round looks at every pool once, and says when to look again although nothing
// changed; zero for never.
func (p *pools) round(ctx context.Context, v *fsm.View) (next time.Time) {
	if v.Hold() != nil {
		return time.Time{}
	}
	members := map[string][]*fsm.Sandbox{}
	for _, m := range v.PoolMembers("") {
		members[m.Pool] = append(members[m.Pool], m)
	}
	for _, spec := range v.Specs() {
		if spec.Pool > 0 || len(members[spec.ID]) > 0 {
			if at := p.tend(ctx, v, spec, members[spec.ID]); !at.IsZero() && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
		delete(members, spec.ID)
	}
	for _, left := range members {
		for _, m := range left {
			p.drop(ctx, m, "its spec is gone")
		}
	}
	return next
}

// tend makes one pool what its spec asks for, and says when to try again what
// could not be done now.
func (p *pools) tend(ctx context.Context, v *fsm.View, spec *fsm.Spec, members []*fsm.Sandbox) time.Time {
	r, now, hash := p.retry(spec.ID), time.Now(), spec.Template.Hash()
	var good []*fsm.Sandbox
	begun := 0
	for _, m := range members {
		switch state := memberState(m, hash); state {
		case memberOutdated:
			p.drop(ctx, m, "its spec changed")
		case memberFailed:
			p.log.Warn("a member of a warm pool failed", "sandbox", m.ID, "reason", m.Status.Reason, "error", m.Status.Detail)
			p.drop(ctx, m, "it failed: "+m.Status.Reason)
			r.fail(now)
		case memberReady:
			if m.Status.Since.After(r.failed) {
				r.backoff.Reset()
				r.notBefore = time.Time{}
			}
			good = append(good, m)
		default:
			begun++
			good = append(good, m)
		}
	}
	if len(good) > spec.Pool {
		// Those that are not ready yet go first, then the newest.
		slices.SortFunc(good, func(a, b *fsm.Sandbox) int {
			return cmp.Or(cmp.Compare(memberState(b, hash), memberState(a, hash)), a.CreatedAt.Compare(b.CreatedAt))
		})
		for _, m := range good[spec.Pool:] {
			p.drop(ctx, m, "the pool is smaller now")
		}
	}
	missing := spec.Pool - len(good)
	if at := r.yield(v, missing > 0, now); !at.IsZero() {
		return at
	}
	for ; missing > 0 && begun < p.s.cfg.PoolStarts; missing-- {
		if now.Before(r.notBefore) {
			return r.notBefore
		}
		if err := p.add(ctx, spec); err != nil {
			if ctx.Err() == nil && fsm.CodeOf(err) != fsm.CodeConflict {
				p.log.Warn("a warm pool could not be filled", "reason", spec.ID, "error", err)
			}
			r.fail(now)
			return r.notBefore
		}
		begun++
	}
	return time.Time{}
}

func (p *pools) retry(spec string) *poolRetry {
	r := p.retries[spec]
	if r == nil {
		r = &poolRetry{backoff: newBackoff(p.s.cfg.PoolBackoffMin, p.s.cfg.PoolBackoffMax)}
		p.retries[spec] = r
	}
	return r
}

// yield says until when the new members of a pool that is short wait for starts
// that have claimed one, zero for not at all: they would take the machines'
// time from them.
func (r *poolRetry) yield(v *fsm.View, short bool, now time.Time) time.Time {
	switch {
	case !short:
		r.short = time.Time{}
		return time.Time{}
	case r.short.IsZero():
		r.short = now
	}
	if now.Sub(r.short) >= poolYield {
		return time.Time{}
	}
	for sb := range v.AllSandboxes() {
		claim := sb.Claimed && sb.CreatedAt.Equal(sb.DesiredAt)
		if age := now.Sub(sb.DesiredAt); claim && (age < poolPause || age < poolYield && sb.State() == fsm.SandboxStarting) {
			return now.Add(poolPause)
		}
	}
	return time.Time{}
}

func (r *poolRetry) fail(now time.Time) {
	r.failed = now
	r.notBefore = now.Add(r.backoff.NextBackOff())
}

// add brings one more member into the pool. What authorises its deferred
// initialisation is written first, and the key that its owner will have: a
// claim then waits for no secret store.
func (p *pools) add(ctx context.Context, spec *fsm.Spec) error {
	ctx, cancel := context.WithTimeout(ctx, p.s.cfg.CallTimeout)
	defer cancel()
	body := &fsm.PoolAddBody{ID: base62(16), SpecID: spec.ID}
	if err := p.write(ctx, body); err != nil {
		return err
	}
	fault.At("before", "pool add")
	_, err := p.s.cluster.Propose(ctx, command(body))
	switch fsm.CodeOf(err) {
	case fsm.CodeConflict, fsm.CodeLimit, fsm.CodeNotFound, fsm.CodeInvalid, fsm.CodeNoLeader, fsm.CodeTimeout:
		// Refused for certain, or never sent, as at the end of a term. Anything
		// else may yet apply, and what is left then unreferenced is the collector's.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), poolYield)
		defer cancel()
		for _, path := range []string{body.InitRef.Path, body.KeyRef.Path} {
			if err := p.s.secrets.Delete(ctx, path); err != nil {
				p.log.Info("the secret of a member that was not added is left to the collector", "error", err)
			}
		}
	}
	return err
}

// write stores the secrets of a new member.
func (p *pools) write(ctx context.Context, body *fsm.PoolAddBody) error {
	fault.At("before", "write init key")
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		secret := base62(32)
		ref, err := p.s.secrets.Write(ctx, initPath(body.ID), map[string]string{sealKeyMember: secret})
		body.InitRef, body.InitHash = ref, hashed(secret)
		return err
	})
	g.Go(func() (err error) {
		body.KeyRef, body.KeyHash, err = writeKey(ctx, p.s.secrets, body.ID)
		return err
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("storing what a warm sandbox is initialised with: %w", err)
	}
	return nil
}

// drop takes a member out of its pool; one that was claimed meanwhile stays.
func (p *pools) drop(ctx context.Context, m *fsm.Sandbox, why string) {
	fault.At("before", "pool drop")
	res, err := p.s.cluster.Propose(ctx, command(&fsm.PoolDropBody{ID: m.ID, Reason: why}))
	switch {
	case err != nil:
		if ctx.Err() == nil {
			p.log.Warn("a member could not be taken out of its warm pool", "sandbox", m.ID, "error", err)
		}
	case res.Sandbox != nil:
		p.log.Info("member taken out of its warm pool", "sandbox", m.ID, "reason", why)
	}
}

// The states of a pool's member, the better ones higher.
type memberStage int

const (
	memberFailed memberStage = iota
	memberOutdated
	memberStarting
	memberReady
)

func (s memberStage) String() string {
	switch s {
	case memberFailed:
		return "failed"
	case memberOutdated:
		return "outdated"
	case memberReady:
		return "ready"
	}
	return "starting"
}

// memberState tells what a member is worth; hash is its spec's as of now.
func memberState(m *fsm.Sandbox, hash string) memberStage {
	switch {
	case m.TemplateHash != hash, m.WarmKeyRef.IsZero():
		return memberOutdated
	case m.State() == fsm.SandboxRunning:
		return memberReady
	case m.State() == fsm.SandboxError:
		return memberFailed
	}
	return memberStarting
}

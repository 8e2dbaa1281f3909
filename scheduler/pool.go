package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/access"
	"bivouac.dev/bivouac/scheduler/fault"
)

// pools keeps the warm pools at the size that their specs request, for one term. It only adds and
// drops rows; the loop starts and removes their jobs.
type pools struct {
	s       *Scheduler
	log     *slog.Logger
	retries map[string]*poolRetry
	// claims are sandboxes that were claimed in the last moments, as far as the view last has them.
	claims map[string]bool
	last   *fsm.View
}

// poolRetry delays a spec's pool after a member failed, so that a spec that can't work does not
// keep the cluster busy.
type poolRetry struct {
	backoff   *backoff.ExponentialBackOff
	failed    time.Time
	notBefore time.Time
	// short is the time since which the pool has too few members; zero when it has enough.
	short time.Time
}

// poolPause is the pause between a change and the next round: the start that has just claimed a
// member goes before the member's replacement. poolYield bounds how long a pool that is short
// waits for claims.
const (
	poolPause = 100 * time.Millisecond
	poolYield = 2 * time.Second
)

func newPools(s *Scheduler, log *slog.Logger) *pools {
	return &pools{s: s, log: log, retries: map[string]*poolRetry{}, claims: map[string]bool{}}
}

// run maintains the pools until ctx ends.
func (p *pools) run(ctx context.Context) error {
	for {
		v := p.s.store.View()
		next := p.round(ctx, v)
		if !awaitChange(ctx, v, next, nil) || !sleep(ctx, poolPause) {
			return nil
		}
	}
}

// round checks every pool once, and returns when to check again without a change; zero for never.
func (p *pools) round(ctx context.Context, v *fsm.View) (next time.Time) {
	p.follow(v)
	if v.Hold() != nil {
		return time.Time{}
	}
	members := map[string][]*fsm.Sandbox{}
	for _, m := range v.PoolMembers("") {
		members[m.Pool] = append(members[m.Pool], m)
	}
	for _, spec := range v.Specs() {
		if spec.Pool > 0 || len(members[spec.ID]) > 0 {
			if at := p.maintain(ctx, v, spec, members[spec.ID]); !at.IsZero() && (next.IsZero() || at.Before(next)) {
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

// maintain adds and drops members of one pool until it has the requested size, and returns when to
// retry what could not be done now.
func (p *pools) maintain(ctx context.Context, v *fsm.View, spec *fsm.Spec, members []*fsm.Sandbox) time.Time {
	r, now, hash := p.retry(spec.ID), time.Now(), spec.Template.Hash()
	var good []*fsm.Sandbox
	begun := 0
	for _, m := range members {
		switch state := memberState(m, hash); state {
		case memberOutdated:
			p.drop(ctx, m, "its spec changed")
		case memberDrained:
			p.drop(ctx, m, "its Nomad client is drained")
		case memberFailed:
			p.log.Warn("warm pool member failed", "sandbox", m.ID, "reason", m.Status.Reason, "error", m.Status.Detail)
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
	if at := p.yield(v, r, missing > 0, now); !at.IsZero() {
		return at
	}
	for ; missing > 0 && begun < p.s.cfg.PoolStarts; missing-- {
		if now.Before(r.notBefore) {
			return r.notBefore
		}
		if err := p.add(ctx, spec); err != nil {
			if ctx.Err() == nil && fsm.CodeOf(err) != fsm.CodeConflict {
				p.log.Warn("filling a warm pool failed", "spec", spec.ID, "error", err)
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

// yield returns until when the new members of a pool that is short wait for starts that have
// claimed one, because both need the clients' CPU. It is zero for no wait.
func (p *pools) yield(v *fsm.View, r *poolRetry, short bool, now time.Time) time.Time {
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
	for id := range p.claims {
		sb := v.SandboxAny(id)
		if claimedAt(sb, now) && (now.Sub(sb.DesiredAt) < poolPause || sb.State() == fsm.SandboxStarting) {
			return now.Add(poolPause)
		}
	}
	return time.Time{}
}

// claimedAt reports whether the sandbox was claimed within poolYield before now.
func claimedAt(sb *fsm.Sandbox, now time.Time) bool {
	return sb != nil && sb.Claimed && sb.CreatedAt.Equal(sb.DesiredAt) && now.Sub(sb.DesiredAt) < poolYield
}

// follow notes the claims that the view changed, and forgets those that nothing waits for any more.
func (p *pools) follow(v *fsm.View) {
	c, now := v.ChangesSince(p.last), time.Now()
	p.last = v
	maps.DeleteFunc(p.claims, func(id string, _ bool) bool { return !claimedAt(v.SandboxAny(id), now) })
	for _, id := range c.Sandboxes {
		if claimedAt(v.SandboxAny(id), now) {
			p.claims[id] = true
		}
	}
	if !c.All {
		return
	}
	for sb := range v.AllSandboxes() {
		if claimedAt(sb, now) {
			p.claims[sb.ID] = true
		}
	}
}

func (r *poolRetry) fail(now time.Time) {
	r.failed = now
	r.notBefore = now.Add(r.backoff.NextBackOff())
}

// add adds one member to the pool. It first writes the secret for its deferred initialisation and
// the key of its later owner, so that a claim does not wait for the secret store.
func (p *pools) add(ctx context.Context, spec *fsm.Spec) error {
	ctx, cancel := context.WithTimeout(ctx, p.s.cfg.CallTimeout)
	defer cancel()
	body := &fsm.PoolAddBody{ID: access.Base62(16), SpecID: spec.ID}
	if err := p.write(ctx, body); err != nil {
		return err
	}
	fault.At("before", "pool add")
	_, err := p.s.cluster.Propose(ctx, command(body))
	switch fsm.CodeOf(err) {
	case fsm.CodeConflict, fsm.CodeLimit, fsm.CodeNotFound, fsm.CodeInvalid, fsm.CodeNoLeader, fsm.CodeTimeout:
		// These errors mean refused or never sent, as at the end of a term. After any other the
		// command may still apply; an unreferenced secret is then left to the collector.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), poolYield)
		defer cancel()
		for _, path := range []string{body.InitRef.Path, body.KeyRef.Path} {
			if err := p.s.secrets.Delete(ctx, path); err != nil {
				p.log.Info("deleting the secret of a member that was not added failed, the collector destroys it", "error", err)
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
		secret := access.Base62(32)
		ref, err := p.s.secrets.Write(ctx, fsm.SandboxInitPath(body.ID), map[string]string{fsm.MemberSecretKey: secret})
		body.InitRef, body.InitHash = ref, access.Hash(secret)
		return err
	})
	g.Go(func() (err error) {
		body.KeyRef, body.KeyHash, err = access.WriteKeys(ctx, p.s.secrets, body.ID)
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
			p.log.Warn("removing a member from its warm pool failed", "sandbox", m.ID, "error", err)
		}
	case res.Sandbox != nil:
		p.log.Info("member removed from its warm pool", "sandbox", m.ID, "reason", why)
	}
}

// The stages of a pool's member, the better ones higher.
type memberStage int

const (
	memberFailed memberStage = iota
	memberDrained
	memberOutdated
	memberStarting
	memberReady
)

func (s memberStage) String() string {
	switch s {
	case memberFailed, memberDrained:
		return "failed"
	case memberOutdated:
		return "outdated"
	case memberReady:
		return "ready"
	}
	return "starting"
}

// memberState returns a member's stage; hash is that of its spec's present template.
func memberState(m *fsm.Sandbox, hash string) memberStage {
	switch {
	case m.TemplateHash != hash, m.WarmKeyRef.IsZero():
		return memberOutdated
	case m.State() == fsm.SandboxPaused, m.Status.Reason == fsm.ReasonClient:
		return memberDrained
	case m.State() == fsm.SandboxRunning:
		return memberReady
	case m.State() == fsm.SandboxError:
		return memberFailed
	}
	return memberStarting
}

package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

// past is what really happened, whatever a restored state says.
type past struct {
	*world
	rng *rand.Rand
	ids []string
	// deleted was acknowledged to users, or left to an operator at a release.
	deleted, let map[string]bool
	saved        [][]byte
	rollbacks    int
}

// Random histories in which the state goes back to an older one at random points. Nothing is
// stopped, purged or deleted unless a user or an operator knows of it, before and after the
// release of the holds that follow.
func TestHold_RandomRollbacks_DestroyNothing(t *testing.T) {
	t.Parallel()
	const seeds = 12
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inWorld(t, options(), func(w *world) {
				p := &past{world: w, rng: rand.New(rand.NewPCG(seed, 9)), deleted: map[string]bool{}, let: map[string]bool{}}
				w.step()
				w.cfg.SecretMarks = nomadtest.NewNomad(t, options(), w.secrets, nil) // another store
				w.lead()
				w.secrets.Birth = func() fsm.Birth { return w.view().Birth() }
				w.until("the first mark", 5*time.Second, func() bool { return w.view().Marked(fsm.StoreNomad) })
				w.nomad.Before(p.judgeStop)
				for range 40 {
					p.act()
					p.check()
				}
				if p.rollbacks == 0 {
					t.Log("this history was never rolled back")
				}
				w.nomad.Before(nil)
			})
		})
	}
}

// judgeStop fails the test when a job is stopped that its user wants, or that no user or operator
// has decided about.
func (p *past) judgeStop(call string, j scheduler.Job) error {
	if call != "stop" {
		return nil
	}
	v := p.view()
	switch sb := v.SandboxAny(j.SandboxID); {
	case sb == nil && !p.let[j.SandboxID] && !p.deleted[j.SandboxID]:
		p.Errorf("the job of sandbox %s was stopped: it has no row, and nobody decided so", j.SandboxID)
	case sb != nil && v.Held(sb):
		p.Errorf("the job of sandbox %s was stopped under a hold", j.SandboxID)
	}
	return nil
}

// act does one random thing, as users, operators and disks do.
func (p *past) act() {
	switch p.rng.IntN(12) {
	case 0, 1, 2:
		id := fmt.Sprintf("s%d", len(p.ids))
		p.ids = append(p.ids, id)
		p.create(id)
	case 3, 4:
		p.ask(func(sb *fsm.Sandbox) fsm.Body { return &fsm.SandboxPauseBody{ID: sb.ID} })
	case 5:
		p.ask(func(sb *fsm.Sandbox) fsm.Body { return &fsm.SandboxResumeBody{ID: sb.ID} })
	case 6:
		p.ask(func(sb *fsm.Sandbox) fsm.Body {
			p.deleted[sb.ID] = true
			p.nomad.Declare(sb.ID)
			return &fsm.SandboxDeleteBody{ID: sb.ID}
		})
	case 7:
		p.saved = append(p.saved, p.cluster.Save())
	case 8:
		p.step()
		p.cluster.NextTerm()
		p.lead()
	case 9, 10:
		if len(p.saved) > 0 {
			p.rollbacks++
			p.rolledBack(p.saved[p.rng.IntN(len(p.saved))])
		}
	default:
		p.letGo()
	}
	p.elapse([]time.Duration{50 * time.Millisecond, 2 * time.Second, time.Minute, 20 * time.Minute}[p.rng.IntN(4)])
}

// ask makes a user's request for a random sandbox.
func (p *past) ask(body func(*fsm.Sandbox) fsm.Body) {
	var list []*fsm.Sandbox
	for sb := range p.view().AllSandboxes() {
		if sb.Desired != fsm.DesiredDeleted {
			list = append(list, sb)
		}
	}
	if len(list) > 0 {
		p.cluster.Must(body(list[p.rng.IntN(len(list))]), "u1")
	}
}

// letGo makes an operator release the hold, with all that is listed as strangers by then.
func (p *past) letGo() {
	if p.view().Hold() == nil {
		return
	}
	p.elapse(time.Minute)
	for id := range p.orphansOf(p.view()) {
		p.let[id] = true
		p.nomad.Declare(id)
	}
	p.release()
	p.saved = nil // older histories can't lead any more
}

// orphansOf returns the sandboxes without a row in the state.
func (p *past) orphansOf(v *fsm.View) map[string]bool {
	set := map[string]bool{}
	for _, id := range p.ids {
		if v.SandboxAny(id) == nil {
			set[id] = true
		}
	}
	return set
}

// check checks that everything that was made and not deleted exists.
func (p *past) check() {
	p.Helper()
	if h := p.view().Hold(); h != nil {
		for _, f := range h.Findings {
			if f.Kind == fsm.FindingMarkBehind {
				p.Errorf("no store went back, and the hold says so: %+v", f)
			}
		}
	}
	for _, id := range p.ids {
		if p.deleted[id] || p.let[id] {
			continue
		}
		if path := fsm.SandboxKeyPath(id); !p.secrets.Has(path) || p.secrets.Deleted(path, 1) {
			p.Errorf("the key of sandbox %s is gone", id)
		}
	}
}

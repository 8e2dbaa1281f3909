package eventfetch

import (
	"context"
	"maps"
	"slices"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/access"
)

const (
	// lookPause is the pause between two looks at which sandboxes run. askPause is that between two
	// fetches of one, webhookPause where its server sends to one node alone. failPause is that after a
	// failed one, twice as long after each further one, and askPause at most.
	lookPause    = 5 * time.Second
	askPause     = 10 * time.Minute
	webhookPause = time.Minute
	failPause    = time.Minute
	// fetchTime bounds the fetch of one sandbox, atOnce how many there are.
	fetchTime = 5 * time.Minute
	atOnce    = 8
)

// asked is what is known of a sandbox: in which allocation it was asked, when it is next, and how many
// fetches have failed since one that did not.
type asked struct {
	alloc string
	due   time.Time
	under bool
	fails int
}

// Run fetches the events of every sandbox that runs: after its start, when a term begins, and then every
// ten minutes. It ends with ctx.
func (f *Fetcher) Run(ctx context.Context) error {
	known := map[string]*asked{}
	ended := make(chan result)
	under := 0
	defer func() {
		for ; under > 0; under-- {
			<-ended
		}
	}()
	ticker := time.NewTicker(lookPause)
	defer ticker.Stop()
	due := f.due(known)
	for {
		for ; len(due) > 0 && under < atOnce; due = due[1:] {
			sb := due[0]
			known[sb.ID].under = true
			under++
			go func() {
				err := f.fetchOf(ctx, sb, access.AgentURL(sb.Status.Placement))
				ended <- result{sb, err}
			}()
		}
		select {
		case <-ctx.Done():
			return nil
		case r := <-ended:
			under--
			f.note(ctx, known, r)
		case <-ticker.C:
			due = f.due(known) // all rows are read for it
		}
	}
}

// result is the end of one sandbox's fetch.
type result struct {
	sandbox *fsm.Sandbox
	err     error
}

// note says when a sandbox is asked next.
func (f *Fetcher) note(ctx context.Context, known map[string]*asked, r result) {
	a := known[r.sandbox.ID]
	if a == nil || a.alloc != r.sandbox.Status.Placement.AllocID {
		return
	}
	a.under = false
	if r.err == nil || ctx.Err() != nil {
		a.fails, a.due = 0, time.Now().Add(askPause)
		if r.sandbox.Template.IsUpstream() {
			a.due = time.Now().Add(webhookPause)
		}
		return
	}
	a.due = time.Now().Add(min(failPause<<min(a.fails, 10), askPause))
	a.fails++
	f.log.Warn("events can't be fetched from their agent server; it is tried again", "sandbox", r.sandbox.ID,
		"error", r.err)
}

// due returns the sandboxes that are to be asked now, the one that waits longest first, and forgets those
// that run no longer.
func (f *Fetcher) due(known map[string]*asked) (list []*fsm.Sandbox) {
	v, now := f.store.View(), time.Now()
	if !v.Active(fsm.VersionEvents) {
		return nil
	}
	running := map[string]bool{}
	for sb := range v.AllSandboxes() {
		if sb.Desired != fsm.DesiredRunning || sb.Status.State != fsm.SandboxRunning || sb.Status.Placement == nil ||
			sb.KeyRef.IsZero() || sb.Template.Readiness == fsm.ReadinessAllocation {
			continue
		}
		running[sb.ID] = true
		a := known[sb.ID]
		if a == nil || a.alloc != sb.Status.Placement.AllocID {
			a = &asked{alloc: sb.Status.Placement.AllocID}
			known[sb.ID] = a
		}
		if !a.under && !a.due.After(now) {
			list = append(list, sb)
		}
	}
	maps.DeleteFunc(known, func(id string, _ *asked) bool { return !running[id] })
	slices.SortStableFunc(list, func(a, b *fsm.Sandbox) int { return known[a.ID].due.Compare(known[b.ID].due) })
	return list
}

// fetchOf fetches with the sandbox's present key.
func (f *Fetcher) fetchOf(ctx context.Context, sb *fsm.Sandbox, url string) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	if url == "" || !f.talks(sb) {
		return nil
	}
	entry, err := f.secrets.Read(ctx, sb.AgentKey())
	if err != nil {
		return err
	}
	return f.Fetch(ctx, sb, url, entry[fsm.MemberKey])
}

// talks reports whether a sandbox has conversations.
func (f *Fetcher) talks(sb *fsm.Sandbox) bool {
	for range f.store.View().SandboxConversations(sb.ID) {
		return true
	}
	return false
}

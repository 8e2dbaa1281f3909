package nomad

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// How often the allocations of purged jobs are asked for: less and less, because
// a client that is away may hold them for hours. Some are asked for in one call.
const (
	purgedInterval = 250 * time.Millisecond
	purgedPause    = 30 * time.Second
	purgedAtOnce   = 50
)

// purgedJob is since when a job is gone, and when its allocations are asked for.
type purgedJob struct{ since, next time.Time }

// await has the allocations of a job that is gone asked for, if any is live.
func (p *picture) await(id string) {
	if now := time.Now(); p.live(id) {
		p.purged[id] = &purgedJob{since: now, next: now}
	}
}

// due names the purged jobs whose allocations are to be asked for.
func (p *picture) due(now time.Time) []string {
	var ids []string
	for id, j := range p.purged {
		if !now.Before(j.next) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(p.purged[a].next.Compare(p.purged[b].next), cmp.Compare(a, b)) })
	return ids[:min(len(ids), purgedAtOnce)]
}

// purgedAnswer is what Nomad has, as of index, of the jobs.
type purgedAnswer struct {
	jobs   []string
	allocs []*allocFacts
	index  uint64
	err    error
}

// askPurged asks for the allocations of purged jobs.
func (r *Runner) askPurged(ctx context.Context, jobs []string) purgedAnswer {
	a := purgedAnswer{jobs: jobs}
	var filter []string
	for _, id := range jobs {
		filter = append(filter, fmt.Sprintf("JobID == %q", id))
	}
	a.err = r.call(ctx, "list purged job's allocations", func(ctx context.Context) error {
		q := query(ctx)
		q.Filter = strings.Join(filter, " or ")
		meta, err := r.client.Raw().Query("/v1/allocations?resources=true&task_states=true", &a.allocs, q)
		if err == nil {
			a.index = meta.LastIndex
		}
		return err
	})
	for _, alloc := range a.allocs {
		r.see(alloc)
	}
	return a
}

// answered takes an answer and names the jobs that it is news of. What could not
// be asked is asked the next time.
func (p *picture) answered(a purgedAnswer, now time.Time) (touched []string) {
	of := map[string][]*allocFacts{}
	for _, alloc := range a.allocs {
		of[alloc.JobID] = append(of[alloc.JobID], alloc)
	}
	for _, id := range a.jobs {
		j := p.purged[id]
		if j == nil {
			continue
		}
		if a.err == nil {
			p.replaceAllocs(id, of[id], a.index)
			touched = append(touched, id)
		}
		j.next = now.Add(min(max(now.Sub(j.since)/4, purgedInterval), purgedPause))
	}
	return touched
}

// replaceAllocs takes a listing of a purged job's allocations, as of index.
func (p *picture) replaceAllocs(id string, allocs []*allocFacts, index uint64) {
	for known, a := range p.allocs[id] {
		if a.ModifyIndex <= index && !slices.ContainsFunc(allocs, func(b *allocFacts) bool { return b.ID == known }) {
			delete(p.allocs[id], known)
		}
	}
	for _, a := range allocs {
		p.addAlloc(a)
	}
	if p.live(id) {
		return
	}
	delete(p.purged, id)
	if p.jobs[id] == nil {
		delete(p.allocs, id)
	}
}

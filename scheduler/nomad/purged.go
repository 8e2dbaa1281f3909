package nomad

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// How often the allocations of purged jobs are read: less and less often, because a client that
// is away may hold them for hours. One call reads those of several jobs.
const (
	purgedInterval = 250 * time.Millisecond
	purgedPause    = 30 * time.Second
	purgedAtOnce   = 50
)

// purgedJob has when a job was found gone, and when its allocations are read next.
type purgedJob struct{ since, next time.Time }

// await schedules a read of the allocations of a job that is gone, if any is live.
func (ob *observation) await(id string) {
	if now := time.Now(); ob.live(id) {
		ob.purged[id] = &purgedJob{since: now, next: now}
	}
}

// awaitGone does that for all jobs that a listing shows to be gone.
func (ob *observation) awaitGone() {
	for id := range ob.allocs {
		if ob.jobs[id] == nil && ob.purged[id] == nil {
			ob.await(id)
		}
	}
}

// due returns the purged jobs whose allocations are to be read now.
func (ob *observation) due(now time.Time) []string {
	var ids []string
	for id, j := range ob.purged {
		if !now.Before(j.next) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids,
		func(a, b string) int { return cmp.Or(ob.purged[a].next.Compare(ob.purged[b].next), cmp.Compare(a, b)) })
	return ids[:min(len(ids), purgedAtOnce)]
}

// purgedAnswer is what Nomad has of the jobs, as of index.
type purgedAnswer struct {
	jobs   []string
	allocs []*allocFacts
	index  uint64
	err    error
}

// askPurged reads the allocations of purged jobs.
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

// answered stores an answer and returns the jobs that it affects. A failed read is repeated
// later.
func (ob *observation) answered(a purgedAnswer, now time.Time) (touched []string) {
	of := map[string][]*allocFacts{}
	for _, alloc := range a.allocs {
		of[alloc.JobID] = append(of[alloc.JobID], alloc)
	}
	for _, id := range a.jobs {
		j := ob.purged[id]
		if j == nil {
			continue
		}
		if a.err == nil {
			ob.replaceAllocs(id, of[id], a.index)
			touched = append(touched, id)
		}
		j.next = now.Add(min(max(now.Sub(j.since)/4, purgedInterval), purgedPause))
	}
	return touched
}

// replaceAllocs stores a listing of a purged job's allocations, as of index.
func (ob *observation) replaceAllocs(id string, allocs []*allocFacts, index uint64) {
	for known, a := range ob.allocs[id] {
		if a.ModifyIndex <= index && !slices.ContainsFunc(allocs, func(b *allocFacts) bool { return b.ID == known }) {
			ob.drop(known, index)
			delete(ob.allocs[id], known)
		}
	}
	for _, a := range allocs {
		ob.addAlloc(a)
	}
	if ob.live(id) {
		return
	}
	delete(ob.purged, id)
	if ob.jobs[id] == nil {
		delete(ob.allocs, id)
	}
}

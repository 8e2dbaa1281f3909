package nomad

import (
	"maps"
	"slices"
	"strings"
	"time"

	"bivouac.dev/bivouac/scheduler"
)

// picture is what Nomad has, of jobs called like ours, put together from a
// listing and the events after it.
type picture struct {
	// index is where the listing began.
	index  uint64
	jobs   map[string]*jobFacts
	allocs map[string]map[string]*allocFacts
	evals  map[string]*evalFacts
	// purged knows jobs that went away while allocations of theirs were live.
	// Nomad's stream says nothing more of those (1.11), so they are asked for.
	purged map[string]*purgedJob
	// doubtful is until when allocations of a job may yet turn out to be taken.
	doubtful map[string]time.Time
}

func newPicture() *picture {
	return &picture{
		jobs: map[string]*jobFacts{}, allocs: map[string]map[string]*allocFacts{}, evals: map[string]*evalFacts{},
		purged: map[string]*purgedJob{}, doubtful: map[string]time.Time{},
	}
}

// ids names every job that is there or has allocations left.
func (p *picture) ids() []string {
	set := maps.Clone(p.jobs)
	for id := range p.allocs {
		set[id] = nil
	}
	return slices.Sorted(maps.Keys(set))
}

func (p *picture) observe(clusterID, id string) scheduler.Observed {
	var evals []*evalFacts
	if e := p.evals[id]; e != nil {
		evals = append(evals, e)
	}
	return observe(clusterID, strings.TrimPrefix(id, jobPrefix), p.jobs[id], slices.Collect(maps.Values(p.allocs[id])), evals, time.Now())
}

// newest is the id of the job's newest allocation, "" for none.
func (p *picture) newest(id string) string {
	var newest *allocFacts
	for _, a := range p.allocs[id] {
		if newest == nil || a.CreateIndex > newest.CreateIndex {
			newest = a
		}
	}
	if newest == nil {
		return ""
	}
	return newest.ID
}

// addAlloc takes an allocation unless a newer state of it is known. Of those
// that have ended only the newest is of interest.
func (p *picture) addAlloc(a *allocFacts) bool {
	if !strings.HasPrefix(a.JobID, jobPrefix) {
		return false
	}
	of := p.allocs[a.JobID]
	if of == nil {
		of = map[string]*allocFacts{}
		p.allocs[a.JobID] = of
	}
	if old := of[a.ID]; old != nil {
		if old.ModifyIndex > a.ModifyIndex {
			return false
		}
		if a.JobVersion == nil {
			a.JobVersion = old.JobVersion
		}
	}
	of[a.ID] = a
	if a.untaken() {
		p.doubtful[a.JobID] = a.sighted.Add(neverTaken)
	}
	newest := a
	for _, other := range of {
		if other.CreateIndex > newest.CreateIndex {
			newest = other
		}
	}
	for id, other := range of {
		if other != newest && !other.live(time.Now()) {
			delete(of, id)
		}
	}
	if p.jobs[a.JobID] == nil && !newest.live(time.Now()) {
		delete(p.allocs, a.JobID)
	}
	return true
}

// settled names the jobs of whose allocations there is no doubt any more.
func (p *picture) settled(now time.Time) (jobs []string) {
	for id, at := range p.doubtful {
		if !now.Before(at) {
			delete(p.doubtful, id)
			jobs = append(jobs, id)
		}
	}
	return jobs
}

// addEval keeps the newest evaluation that failed to place something.
func (p *picture) addEval(e *evalFacts) bool {
	if !strings.HasPrefix(e.JobID, jobPrefix) || len(e.FailedTGAllocs) == 0 {
		return false
	}
	if old := p.evals[e.JobID]; old != nil && old.ModifyIndex > e.ModifyIndex {
		return false
	}
	p.evals[e.JobID] = e
	return true
}

// addJob takes a job unless a newer state of it is known.
func (p *picture) addJob(j *jobFacts, deleted bool) bool {
	if !strings.HasPrefix(j.ID, jobPrefix) {
		return false
	}
	if old := p.jobs[j.ID]; old != nil && old.ModifyIndex > j.ModifyIndex {
		return false
	}
	if deleted {
		delete(p.jobs, j.ID)
		delete(p.evals, j.ID)
		p.await(j.ID)
		return true
	}
	delete(p.purged, j.ID)
	p.jobs[j.ID] = j
	return true
}

// frame is one line of the event stream; an empty one is a heartbeat.
type frame struct {
	Index  uint64
	Events []struct {
		Index   uint64
		Payload struct {
			Job        *jobFacts
			Deleted    bool
			Allocation *allocFacts
			Evaluation *evalFacts
		}
	}
}

// mayFollowGap reports whether something may have happened between a listing and
// the stream's first frame that the stream does not tell. Nomad keeps its last
// events only (event_buffer_size), and begins silently with the nearest it has.
func (f *frame) mayFollowGap(listed uint64) bool {
	return len(f.Events) == 0 || f.Index > listed
}

// merge takes a later listing and names the jobs that it is news of. What the
// stream said since stands.
func (p *picture) merge(later *picture) []string {
	touched := map[string]bool{}
	for id, j := range later.jobs {
		if old := p.jobs[id]; (old == nil || old.ModifyIndex != j.ModifyIndex) && p.addJob(j, false) {
			touched[id] = true
		}
	}
	for id, j := range p.jobs {
		if later.jobs[id] == nil && j.ModifyIndex <= later.index {
			touched[id] = p.addJob(&jobFacts{ID: id, ModifyIndex: later.index}, true)
		}
	}
	for job, of := range p.allocs {
		for id, a := range of {
			if later.allocs[job][id] == nil && a.ModifyIndex <= later.index {
				delete(of, id)
				touched[job] = true
			}
		}
	}
	for job, of := range later.allocs {
		for id, a := range of {
			if old := p.allocs[job][id]; (old == nil || old.ModifyIndex != a.ModifyIndex) && p.addAlloc(a) {
				touched[job] = true
			}
		}
	}
	for job, e := range later.evals {
		if old := p.evals[job]; (old == nil || old.ModifyIndex != e.ModifyIndex) && p.addEval(e) {
			touched[job] = true
		}
	}
	return slices.Sorted(maps.Keys(touched))
}

// take applies a frame and names the jobs it touched.
func (p *picture) take(f *frame) []string {
	touched := map[string]bool{}
	for _, e := range f.Events {
		switch pl := e.Payload; {
		case pl.Job != nil:
			if pl.Deleted {
				// The payload is the job as it was before.
				pl.Job.ModifyIndex = max(pl.Job.ModifyIndex, e.Index)
			}
			touched[pl.Job.ID] = p.addJob(pl.Job, pl.Deleted) || touched[pl.Job.ID]
		case pl.Allocation != nil:
			touched[pl.Allocation.JobID] = p.addAlloc(pl.Allocation) || touched[pl.Allocation.JobID]
		case pl.Evaluation != nil:
			touched[pl.Evaluation.JobID] = p.addEval(pl.Evaluation) || touched[pl.Evaluation.JobID]
		}
	}
	maps.DeleteFunc(touched, func(_ string, yes bool) bool { return !yes })
	return slices.Sorted(maps.Keys(touched))
}

// live reports whether an allocation of the job is live.
func (p *picture) live(id string) bool {
	for _, a := range p.allocs[id] {
		if a.live(time.Now()) {
			return true
		}
	}
	return false
}

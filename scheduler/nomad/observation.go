package nomad

import (
	"maps"
	"slices"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"bivouac.dev/bivouac/scheduler"
)

// observation is what Nomad has of jobs named like ours, from a listing and the events after it.
type observation struct {
	// index is where the listing began.
	index  uint64
	jobs   map[string]*jobFacts
	allocs map[string]map[string]*allocFacts
	evals  map[string]*evalFacts
	// purged has jobs that went away while allocations of theirs were live. Nomad's stream has no
	// more events of those (1.11), so they are read separately.
	purged map[string]*purgedJob
	// nodes has Nomad's clients by id, and homes the clients of volumes.
	nodes map[string]*nodeFacts
	homes *lru.Cache[string, string]
	// dropped has the index at which jobs and allocations were dropped, by id, while a later
	// listing is read that may still show them.
	dropped map[string]uint64
	// doubtful is until when a client may still report an allocation of the job that was stopped.
	doubtful map[string]time.Time
}

func newObservation() *observation {
	return &observation{
		jobs: map[string]*jobFacts{}, allocs: map[string]map[string]*allocFacts{}, evals: map[string]*evalFacts{},
		purged: map[string]*purgedJob{}, doubtful: map[string]time.Time{}, nodes: map[string]*nodeFacts{},
	}
}

// ids returns every job that exists or has allocations left.
func (ob *observation) ids() []string {
	set := maps.Clone(ob.jobs)
	for id := range ob.allocs {
		set[id] = nil
	}
	return slices.Sorted(maps.Keys(set))
}

func (ob *observation) observe(clusterID, id string) scheduler.Observed {
	var evals []*evalFacts
	if e := ob.evals[id]; e != nil {
		evals = append(evals, e)
	}
	o := observe(clusterID, strings.TrimPrefix(id, jobPrefix), ob.jobs[id], slices.Collect(maps.Values(ob.allocs[id])),
		evals, time.Now())
	ob.addClient(&o, ob.home(id))
	return o
}

// newest is the id of the job's newest allocation, "" for none.
func (ob *observation) newest(id string) string {
	var newest *allocFacts
	for _, a := range ob.allocs[id] {
		if newest == nil || a.CreateIndex > newest.CreateIndex {
			newest = a
		}
	}
	if newest == nil {
		return ""
	}
	return newest.ID
}

// addAlloc stores an allocation unless a newer state of it is known. Of those that have ended it
// keeps only the newest.
func (ob *observation) addAlloc(a *allocFacts) bool {
	if !strings.HasPrefix(a.JobID, jobPrefix) {
		return false
	}
	of := ob.allocs[a.JobID]
	if of == nil {
		of = map[string]*allocFacts{}
		ob.allocs[a.JobID] = of
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
		ob.doubtful[a.JobID] = a.sighted.Add(neverTaken)
	}
	newest := a
	for _, other := range of {
		if other.CreateIndex > newest.CreateIndex {
			newest = other
		}
	}
	for id, other := range of {
		if other != newest && !other.live(time.Now()) {
			ob.drop(id, other.ModifyIndex)
			delete(of, id)
		}
	}
	if ob.jobs[a.JobID] == nil && !ob.live(a.JobID) {
		ob.drop(newest.ID, newest.ModifyIndex)
		delete(ob.allocs, a.JobID)
	}
	return true
}

// expectMerge prepares for the merge of a listing that is read from now on.
func (ob *observation) expectMerge() { ob.dropped = map[string]uint64{} }

// drop notes that a job or an allocation is dropped at an index.
func (ob *observation) drop(id string, index uint64) {
	if ob.dropped != nil {
		ob.dropped[id] = index
	}
}

// outdated reports whether a listing's job or allocation was dropped since.
func (ob *observation) outdated(id string, index uint64) bool {
	at, ok := ob.dropped[id]
	return ok && index <= at
}

// settled returns the jobs whose stopped allocations now count as never started.
func (ob *observation) settled(now time.Time) (jobs []string) {
	for id, at := range ob.doubtful {
		if !now.Before(at) {
			delete(ob.doubtful, id)
			jobs = append(jobs, id)
		}
	}
	return jobs
}

// addEval keeps the newest evaluation that failed to place something.
func (ob *observation) addEval(e *evalFacts) bool {
	if !strings.HasPrefix(e.JobID, jobPrefix) || len(e.FailedTGAllocs) == 0 {
		return false
	}
	if old := ob.evals[e.JobID]; old != nil && old.ModifyIndex > e.ModifyIndex {
		return false
	}
	ob.evals[e.JobID] = e
	return true
}

// addJob stores a job unless a newer state of it is known.
func (ob *observation) addJob(j *jobFacts, deleted bool) bool {
	if !strings.HasPrefix(j.ID, jobPrefix) {
		return false
	}
	if old := ob.jobs[j.ID]; old != nil && old.ModifyIndex > j.ModifyIndex {
		return false
	}
	if deleted {
		ob.drop(j.ID, j.ModifyIndex)
		delete(ob.jobs, j.ID)
		delete(ob.evals, j.ID)
		ob.await(j.ID)
		return true
	}
	delete(ob.purged, j.ID)
	ob.jobs[j.ID] = j
	return true
}

// frame is one line of the event stream; an empty one is a heartbeat.
type frame struct {
	Index  uint64
	Events []struct {
		Index   uint64
		Type    string
		Payload struct {
			Node       *nodeFacts
			Job        *jobFacts
			Deleted    bool
			Allocation *allocFacts
			Evaluation *evalFacts
		}
	}
}

// mayFollowGap reports whether the stream may lack events between a listing and its first frame.
// Nomad keeps only its last events (event_buffer_size), and begins silently with the nearest one.
func (f *frame) mayFollowGap(listed uint64) bool {
	return len(f.Events) == 0 || f.Index > listed
}

// merge stores the listing that expectMerge announced and returns the jobs that it affects. Newer
// events from the stream stay.
func (ob *observation) merge(later *observation) []string {
	touched := map[string]bool{}
	for id, j := range later.jobs {
		if old := ob.jobs[id]; (old == nil || old.ModifyIndex != j.ModifyIndex) && !ob.outdated(id, j.ModifyIndex) &&
			ob.addJob(j, false) {
			touched[id] = true
		}
	}
	for id, j := range ob.jobs {
		if later.jobs[id] == nil && j.ModifyIndex <= later.index {
			touched[id] = ob.addJob(&jobFacts{ID: id, ModifyIndex: later.index}, true)
		}
	}
	for job, of := range ob.allocs {
		for id, a := range of {
			if later.allocs[job][id] == nil && a.ModifyIndex <= later.index {
				delete(of, id)
				touched[job] = true
			}
		}
	}
	for job, of := range later.allocs {
		for id, a := range of {
			if old := ob.allocs[job][id]; (old == nil || old.ModifyIndex != a.ModifyIndex) && !ob.outdated(id, a.ModifyIndex) &&
				ob.addAlloc(a) {
				touched[job] = true
			}
		}
	}
	for job, e := range later.evals {
		if old := ob.evals[job]; (old == nil || old.ModifyIndex != e.ModifyIndex) && ob.addEval(e) {
			touched[job] = true
		}
	}
	for _, job := range ob.mergeNodes(later) {
		touched[job] = true
	}
	ob.awaitGone()
	ob.dropped = nil
	return slices.Sorted(maps.Keys(touched))
}

// take applies a frame and returns the jobs it affects.
func (ob *observation) take(f *frame) []string {
	touched := map[string]bool{}
	for _, e := range f.Events {
		switch pl := e.Payload; {
		case pl.Job != nil:
			if pl.Deleted {
				// The payload is the job as it was before.
				pl.Job.ModifyIndex = max(pl.Job.ModifyIndex, e.Index)
			}
			touched[pl.Job.ID] = ob.addJob(pl.Job, pl.Deleted) || touched[pl.Job.ID]
		case pl.Node != nil:
			pl.Node.ModifyIndex = max(pl.Node.ModifyIndex, e.Index)
			for _, job := range ob.addNode(pl.Node, e.Type == nodeGone) {
				touched[job] = true
			}
		case pl.Allocation != nil:
			touched[pl.Allocation.JobID] = ob.addAlloc(pl.Allocation) || touched[pl.Allocation.JobID]
		case pl.Evaluation != nil:
			touched[pl.Evaluation.JobID] = ob.addEval(pl.Evaluation) || touched[pl.Evaluation.JobID]
		}
	}
	maps.DeleteFunc(touched, func(_ string, yes bool) bool { return !yes })
	return slices.Sorted(maps.Keys(touched))
}

// live reports whether an allocation of the job is live.
func (ob *observation) live(id string) bool {
	for _, a := range ob.allocs[id] {
		if a.live(time.Now()) {
			return true
		}
	}
	return false
}

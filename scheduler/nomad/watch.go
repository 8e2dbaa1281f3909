package nomad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// streamSilence is how long the event stream may say nothing at all: Nomad
// sends a heartbeat every ten seconds.
const streamSilence = 35 * time.Second

// picture is what Nomad has, of jobs called like ours, put together from a
// listing and the events after it.
type picture struct {
	// index is where the listing began.
	index  uint64
	jobs   map[string]*jobFacts
	allocs map[string]map[string]*allocFacts
	evals  map[string]*evalFacts
	// purged names jobs that went away while allocations of theirs were live.
	// Nomad's stream says nothing more of those (1.11), so they are asked for.
	purged map[string]bool
}

func newPicture() *picture {
	return &picture{
		jobs: map[string]*jobFacts{}, allocs: map[string]map[string]*allocFacts{}, evals: map[string]*evalFacts{},
		purged: map[string]bool{},
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
		p.purged[j.ID] = p.live(j.ID)
		return true
	}
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

// Watch implements scheduler.Runner. It lists first, so that every event finds
// the job it is about, and streams from where the listing began.
func (r *Runner) Watch(ctx context.Context, clusterID string, fn func(scheduler.Observed)) error {
	p, err := r.listing(ctx)
	if err != nil {
		return stopQuietly(ctx, err)
	}
	tell := func(ids []string) {
		for _, id := range ids {
			fn(r.explain(ctx, p.observe(clusterID, id), p.newest(id)))
		}
	}
	for id := range p.allocs {
		p.purged[id] = p.jobs[id] == nil
	}
	tell(p.ids())
	frames, ended := make(chan *frame), make(chan error, 1)
	go func() {
		ended <- r.stream(ctx, p.index, func(f *frame) {
			select {
			case frames <- f:
			case <-ctx.Done():
			}
		})
	}()
	tick := time.NewTicker(purgedInterval)
	defer tick.Stop()
	for {
		select {
		case f := <-frames:
			for _, e := range f.Events {
				if a := e.Payload.Allocation; a != nil {
					r.see(a)
				}
			}
			tell(p.take(f))
		case <-tick.C:
			tell(r.askPurged(ctx, p))
		case err := <-ended:
			return stopQuietly(ctx, err)
		}
	}
}

// purgedInterval is how often the allocations of purged jobs are asked for.
const purgedInterval = 250 * time.Millisecond

// askPurged brings the allocations of purged jobs up to date and names the jobs
// it asked for. What can't be asked now is asked the next time.
func (r *Runner) askPurged(ctx context.Context, p *picture) (asked []string) {
	for id, waits := range p.purged {
		if !waits {
			delete(p.purged, id)
			continue
		}
		var allocs []*allocFacts
		var index uint64
		err := r.call(ctx, "list purged job's allocations", func(ctx context.Context) error {
			q := query(ctx)
			q.Filter = fmt.Sprintf("JobID == %q", id)
			meta, err := r.client.Raw().Query("/v1/allocations?resources=true&task_states=true", &allocs, q)
			if err == nil {
				index = meta.LastIndex
			}
			return err
		})
		if err != nil {
			return asked
		}
		p.replaceAllocs(id, allocs, index)
		asked = append(asked, id)
	}
	return asked
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
	p.purged[id] = p.live(id)
	if p.jobs[id] == nil && !p.purged[id] {
		delete(p.allocs, id)
	}
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

// stream reads the event stream from index on until it breaks or ctx ends.
func (r *Runner) stream(ctx context.Context, index uint64, fn func(*frame)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(streamSilence, func() { cancel(errors.New("no heartbeat")) })
	defer silence.Stop()
	endpoint := fmt.Sprintf("/v1/event/stream?topic=Job&topic=Allocation&topic=Evaluation&index=%d", index)
	body, err := r.client.Raw().Response(endpoint, query(ctx))
	if err != nil {
		return mapError("open event stream", err)
	}
	defer body.Close()
	dec := json.NewDecoder(body)
	for {
		var f frame
		if err := dec.Decode(&f); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			if errors.Is(err, io.EOF) {
				err = errors.New("Nomad closed it")
			}
			return fsm.Errorf(fsm.CodeScheduler, "Nomad's event stream broke: %v", err)
		}
		silence.Reset(streamSilence)
		fn(&f)
	}
}

// stopQuietly turns the error of a call cut off by its caller into nil.
func stopQuietly(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

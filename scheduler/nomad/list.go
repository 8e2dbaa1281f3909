package nomad

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/scheduler"
)

// ourJobs filters what belongs to jobs that are named like ours.
const (
	ourJobs      = `JobID matches "^sandbox-"`
	blockedEvals = ourJobs + ` and Status == "blocked"`
)

// List implements scheduler.Runner. It reads jobs before allocations, so a job shown as stopped
// comes with every allocation it ever made.
func (r *Runner) List(ctx context.Context, clusterID string) ([]scheduler.Observed, error) {
	p, err := r.listing(ctx)
	if err != nil {
		return nil, err
	}
	stubs, err := r.volumeStubs(ctx, jobPrefix)
	if err != nil {
		return nil, err
	}
	var list []scheduler.Observed
	for _, id := range p.ids() {
		o, _ := r.explained(p.observe(clusterID, id), p.newest(id))
		list = append(list, o)
	}
	for _, s := range stubs {
		if p.jobs[jobOf(s.Name)] != nil {
			continue
		}
		v, err := r.knownVolume(ctx, s.ID)
		if err != nil {
			return nil, err
		}
		if v.cluster == clusterID {
			o := p.observe(clusterID, jobOf(s.Name))
			o.Workspace, o.WorkspaceID, o.NodeID, o.Birth = true, s.ID, v.workspace.NodeID, v.birth
			p.addClient(&o, v.workspace.NodeID)
			list = append(list, o)
		}
	}
	return list, nil
}

// listing reads jobs, allocations, blocked evaluations and clients.
func (r *Runner) listing(ctx context.Context) (*observation, error) {
	p := newObservation()
	p.homes = r.homes
	jobs, index, err := r.jobs.read(ctx, r.tableIndex("list jobs", "/v1/jobs"), r.listJobs)
	if err != nil {
		return nil, err
	}
	p.index = index
	for _, j := range jobs {
		p.jobs[j.ID] = j
	}
	allocs, _, err := r.allocs.read(ctx, r.tableIndex("list allocations", "/v1/allocations"), r.listAllocs)
	if err != nil {
		return nil, err
	}
	for _, a := range allocs {
		p.addAlloc(a)
	}
	var evals []*evalFacts
	if _, err := r.read(ctx, "list evaluations", "/v1/evaluations", blockedEvals, &evals); err != nil {
		return nil, err
	}
	for _, e := range evals {
		p.addEval(e)
	}
	if p.nodes, err = r.listNodes(ctx); err != nil {
		return nil, err
	}
	return p, r.findClients(ctx, p)
}

func (r *Runner) listJobs(ctx context.Context) (jobs []*jobFacts, index uint64, err error) {
	err = r.call(ctx, "list jobs", func(ctx context.Context) error {
		q := query(ctx)
		q.Prefix = jobPrefix
		stubs, meta, err := r.client.Jobs().ListOptions(&api.JobListOptions{Fields: &api.JobListFields{Meta: true}}, q)
		if err != nil {
			return err
		}
		index = meta.LastIndex
		for _, s := range stubs {
			jobs = append(jobs, &jobFacts{
				ID: s.ID, Meta: s.Meta, Stop: s.Stop, Priority: s.Priority, JobModifyIndex: s.JobModifyIndex,
				ModifyIndex: s.ModifyIndex,
			})
		}
		return nil
	})
	return jobs, index, err
}

// fewAllocs is how many allocations a listing reads by name, and not all.
const fewAllocs = 32

// listAllocs reads the allocations of our jobs. Most of an allocation's data, and of the work for
// both sides, are its resources and task events. They are read only of those that have changed since
// they were last read.
func (r *Runner) listAllocs(ctx context.Context) ([]*allocFacts, uint64, error) {
	var allocs []*allocFacts
	index, err := r.read(ctx, "list allocations", "/v1/allocations?task_states=false", ourJobs, &allocs)
	if err != nil {
		return nil, 0, err
	}
	r.seen.Resize(max(leastSeen, 2*len(allocs)))
	var unknown []string
	for _, a := range allocs {
		if known, ok := r.seen.Get(a.ID); !ok || known.ModifyIndex != a.ModifyIndex {
			unknown = append(unknown, fmt.Sprintf("ID == %q", a.ID))
		}
	}
	if len(unknown) > fewAllocs {
		allocs, err := r.listWholeAllocs(ctx, ourJobs)
		return allocs, index, err
	}
	whole := map[string]*allocFacts{}
	if len(unknown) > 0 {
		read, err := r.listWholeAllocs(ctx, ourJobs+" and ("+strings.Join(unknown, " or ")+")")
		if err != nil {
			return nil, 0, err
		}
		for _, a := range read {
			whole[a.ID] = a
		}
	}
	list := allocs[:0]
	for _, a := range allocs {
		if w := whole[a.ID]; w != nil {
			list = append(list, w)
		} else if known, ok := r.seen.Get(a.ID); ok { // else it was collected meanwhile
			own := *known
			own.JobVersion = a.JobVersion
			list = append(list, &own)
		}
	}
	return list, index, nil
}

func (r *Runner) listWholeAllocs(ctx context.Context, filter string) ([]*allocFacts, error) {
	var allocs []*allocFacts
	if _, err := r.read(ctx, "list whole allocations", "/v1/allocations?resources=true&task_states=true", filter,
		&allocs); err != nil {
		return nil, err
	}
	for _, a := range allocs {
		r.see(a)
	}
	return allocs, nil
}

// see caches an allocation of ours for the next listing, with the time since which it is as it
// is. Only listings have the job's version, so it is not kept.
func (r *Runner) see(a *allocFacts) {
	if !strings.HasPrefix(a.JobID, jobPrefix) {
		return
	}
	a.sighted = time.Now()
	if known, ok := r.seen.Get(a.ID); ok {
		if known.untaken() {
			a.sighted = known.sighted
		}
		if known.ModifyIndex > a.ModifyIndex {
			return
		}
	}
	own := *a
	r.seen.Add(a.ID, &own)
}

// read queries a list into out, and returns its index.
func (r *Runner) read(ctx context.Context, op, endpoint, filter string, out any) (index uint64, err error) {
	err = r.call(ctx, op, func(ctx context.Context) error {
		q := query(ctx)
		q.Filter = filter
		meta, err := r.client.Raw().Query(endpoint, out, q)
		if err == nil {
			index = meta.LastIndex
		}
		return err
	})
	return index, err
}

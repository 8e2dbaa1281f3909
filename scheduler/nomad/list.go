package nomad

import (
	"context"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/scheduler"
)

// ourJobs filters what belongs to jobs that are named like ours.
const ourJobs = `JobID matches "^sandbox-"`

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
		if p.jobs[s.Name] != nil {
			continue
		}
		v, err := r.knownVolume(ctx, s.ID)
		if err != nil {
			return nil, err
		}
		if v.cluster == clusterID {
			o := p.observe(clusterID, s.Name)
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
	err := r.call(ctx, "list jobs", func(ctx context.Context) error {
		q := query(ctx)
		q.Prefix = jobPrefix
		stubs, meta, err := r.client.Jobs().ListOptions(&api.JobListOptions{Fields: &api.JobListFields{Meta: true}}, q)
		if err != nil {
			return err
		}
		p.index = meta.LastIndex
		for _, s := range stubs {
			p.jobs[s.ID] = &jobFacts{
				ID: s.ID, Meta: s.Meta, Stop: s.Stop, Priority: s.Priority, JobModifyIndex: s.JobModifyIndex,
				ModifyIndex: s.ModifyIndex,
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	allocs, err := r.listAllocs(ctx)
	if err != nil {
		return nil, err
	}
	for _, a := range allocs {
		p.addAlloc(a)
	}
	var evals []*evalFacts
	if err := r.read(ctx, "list evaluations", "/v1/evaluations", &evals); err != nil {
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

// listAllocs reads the allocations of our jobs. Most of an allocation's data, and of the work for
// both sides, are its resources and task events. They are read only when an allocation has
// changed since it was last read.
func (r *Runner) listAllocs(ctx context.Context) ([]*allocFacts, error) {
	var allocs []*allocFacts
	if err := r.read(ctx, "list allocations", "/v1/allocations?task_states=false", &allocs); err != nil {
		return nil, err
	}
	for i, a := range allocs {
		known, ok := r.seen.Get(a.ID)
		if !ok || known.ModifyIndex != a.ModifyIndex {
			return r.listWholeAllocs(ctx)
		}
		whole := *known
		whole.JobVersion = a.JobVersion
		allocs[i] = &whole
	}
	return allocs, nil
}

func (r *Runner) listWholeAllocs(ctx context.Context) ([]*allocFacts, error) {
	var allocs []*allocFacts
	if err := r.read(ctx, "list whole allocations", "/v1/allocations?resources=true&task_states=true",
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

// read queries a list of what belongs to our jobs into out.
func (r *Runner) read(ctx context.Context, op, endpoint string, out any) error {
	return r.call(ctx, op, func(ctx context.Context) error {
		q := query(ctx)
		q.Filter = ourJobs
		if strings.HasPrefix(endpoint, "/v1/evaluations") {
			q.Filter += ` and Status == "blocked"`
		}
		_, err := r.client.Raw().Query(endpoint, out, q)
		return err
	})
}

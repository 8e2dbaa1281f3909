package nomad

import (
	"context"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/scheduler"
)

// Clients lists Nomad's clients of the sandboxes' pool by id, with the sandboxes of the cluster whose
// volume each has. A client that Nomad has forgotten and that still has volumes is listed with no
// status. Every node may call it.
func (r *Runner) Clients(ctx context.Context, clusterID string) ([]scheduler.Client, error) {
	stubs, err := r.clientStubs(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.refreshCapacity(ctx, capacityAge); err != nil {
		return nil, err
	}
	byID := map[string]*scheduler.Client{}
	for _, s := range stubs {
		pool := r.cfg.NodePool
		if pool == "" {
			pool = api.NodePoolDefault
		}
		if pool != api.NodePoolAll && s.NodePool != pool {
			continue
		}
		byID[s.ID] = &scheduler.Client{
			ID: s.ID, Name: s.Name, Status: s.Status, Eligible: s.SchedulingEligibility == api.NodeSchedulingEligible && !s.Drain,
		}
	}
	for _, c := range r.capacities() {
		if one := byID[c.ID]; one != nil {
			one.CPU, one.CPUFree, one.Memory, one.MemoryFree = c.CPU, c.CPUFree, c.Memory, c.MemoryFree
		}
	}
	volumes, err := r.volumeStubs(ctx, jobPrefix)
	if err != nil {
		return nil, err
	}
	for _, s := range volumes {
		v, err := r.knownVolume(ctx, s.ID)
		if err != nil {
			return nil, err
		}
		if v.cluster != clusterID {
			continue
		}
		if byID[s.NodeID] == nil {
			byID[s.NodeID] = &scheduler.Client{ID: s.NodeID}
		}
		byID[s.NodeID].Sandboxes = append(byID[s.NodeID].Sandboxes, strings.TrimPrefix(s.Name, jobPrefix))
	}
	list := make([]scheduler.Client, 0, len(byID))
	for _, c := range byID {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b scheduler.Client) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

func (r *Runner) clientStubs(ctx context.Context) (stubs []*api.NodeListStub, err error) {
	err = r.call(ctx, opListClients, func(ctx context.Context) error {
		var err error
		stubs, _, err = r.client.Nodes().List(query(ctx))
		return err
	})
	return stubs, err
}

// capacities returns what is known of the clients that take jobs. Choices that Nomad does not show
// yet count as used.
func (r *Runner) capacities() []scheduler.Client {
	r.capacity.mu.Lock()
	defer r.capacity.mu.Unlock()
	list := make([]scheduler.Client, len(r.capacity.list))
	for i, c := range r.capacity.list {
		list[i] = scheduler.Client{ID: c.id, CPU: c.total.cpu, CPUFree: max(c.free.cpu, 0), Memory: c.total.memory, MemoryFree: max(c.free.memory, 0)}
	}
	return list
}

package nomad

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

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
	capacities, err := r.usedCapacities(ctx)
	if err != nil {
		return nil, err
	}
	byID := map[string]*scheduler.Client{}
	for _, s := range stubs {
		pool := cmp.Or(r.cfg.NodePool, api.NodePoolDefault)
		if pool != api.NodePoolAll && s.NodePool != pool {
			continue
		}
		byID[s.ID] = &scheduler.Client{
			ID: s.ID, Name: s.Name, Status: s.Status, Eligible: s.SchedulingEligibility == api.NodeSchedulingEligible &&
				!s.Drain,
		}
	}
	for id, c := range capacities {
		if one := byID[id]; one != nil {
			one.CPU, one.CPUFree, one.Memory, one.MemoryFree = c.total.cpu, c.free.cpu, c.total.memory, c.free.memory
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
		byID[s.NodeID].Sandboxes = append(byID[s.NodeID].Sandboxes, strings.TrimPrefix(jobOf(s.Name), jobPrefix))
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

// Capacity implements scheduler.CapacityReader.
func (r *Runner) Capacity(ctx context.Context) (sum scheduler.Capacity, err error) {
	clients, err := r.usedCapacities(ctx)
	for _, c := range clients {
		if r.takes(c) {
			sum.Clients++
			sum.CPU, sum.CPUFree = sum.CPU+c.total.cpu, sum.CPUFree+c.free.cpu
			sum.Memory, sum.MemoryFree = sum.Memory+c.total.memory, sum.MemoryFree+c.free.memory
		}
	}
	return sum, err
}

// usedCapacities returns the clients that take jobs, by id, with what is free on each. Choices that
// Nomad does not show yet count as used.
func (r *Runner) usedCapacities(ctx context.Context) (map[string]*clientCapacity, error) {
	clients, _, placed, err := r.clientCapacities(ctx, true)
	if err != nil {
		return nil, err
	}
	r.capacity.mu.Lock()
	defer r.capacity.mu.Unlock()
	for job, b := range r.capacity.reserved {
		if c := clients[b.client]; c != nil && !slices.Contains(placed, job) && time.Since(b.at) <= reservationAge {
			c.reserve(b)
		}
	}
	for _, c := range clients {
		c.free = load{max(c.free.cpu, 0), max(c.free.memory, 0)}
	}
	return clients, nil
}

package nomad

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// nodeGone is Nomad's event for a client that was removed.
const nodeGone = "NodeDeregistration"

// nodeLeft is the status of a client that Nomad no longer knows.
const nodeLeft = "no longer known to Nomad"

// nodeFacts has the fields used of a Nomad client; its JSON is Nomad's.
type nodeFacts struct {
	ID   string
	Name string
	// Listings have Drain, events DrainStrategy.
	Drain                 bool
	DrainStrategy         *struct{}
	SchedulingEligibility string
	Status                string
	ModifyIndex           uint64
}

// state returns the client's state and its description. Draining and closed come before away,
// because a client that was drained is then switched off.
func (n *nodeFacts) state() (scheduler.ClientState, string) {
	switch {
	case n.Drain || n.DrainStrategy != nil:
		return scheduler.ClientDraining, "its Nomad client " + n.Name + " is drained"
	case n.SchedulingEligibility == api.NodeSchedulingIneligible:
		return scheduler.ClientClosed, "its Nomad client " + n.Name + " takes no jobs (it is ineligible)"
	case n.Status != api.NodeStatusReady:
		return scheduler.ClientAwayNow, fmt.Sprintf("its Nomad client %s is away (%s)", n.Name, n.Status)
	}
	return "", ""
}

// listNodes reads the clients.
func (r *Runner) listNodes(ctx context.Context) (map[string]*nodeFacts, error) {
	nodes := map[string]*nodeFacts{}
	err := r.call(ctx, opListClients, func(ctx context.Context) error {
		stubs, _, err := r.client.Nodes().List(query(ctx))
		for _, s := range stubs {
			nodes[s.ID] = &nodeFacts{
				ID: s.ID, Name: s.Name, Drain: s.Drain, SchedulingEligibility: s.SchedulingEligibility,
				Status: s.Status, ModifyIndex: s.ModifyIndex,
			}
		}
		return err
	})
	return nodes, err
}

// findClients makes the client of every job's workspace known. A leader that did not make the
// volumes itself lists them once.
func (r *Runner) findClients(ctx context.Context, p *observation) error {
	for _, j := range p.jobs {
		if volume := j.Meta[metaVolume]; volume != "" && !r.homes.Contains(volume) {
			stubs, err := r.volumeStubs(ctx, jobPrefix)
			r.homes.Resize(max(leastSeen, 2*len(stubs)))
			for _, s := range stubs {
				r.homes.Add(s.ID, s.NodeID)
			}
			return err
		}
	}
	return nil
}

// home returns the client that has the workspace of a job, "" when it is not known.
func (ob *observation) home(id string) string {
	if j := ob.jobs[id]; j != nil && ob.homes != nil {
		if node, ok := ob.homes.Get(j.Meta[metaVolume]); ok {
			return node
		}
	}
	if a := ob.allocs[id][ob.newest(id)]; a != nil {
		return a.NodeID
	}
	return ""
}

// addClient sets in o the state of the client that has the workspace. The allocation's status
// comes first: a client that does not respond can't stop anything.
func (ob *observation) addClient(o *scheduler.Observed, home string) {
	if !o.Foreign {
		o.Home = home
	}
	n := ob.nodes[home]
	if o.Foreign || home == "" || len(ob.nodes) == 0 {
		return
	}
	if n == nil {
		n = &nodeFacts{Name: home, Status: nodeLeft}
	}
	state, words := n.state()
	if o.Client == scheduler.ClientAwayNow {
		o.ClientDetail = "its Nomad client " + n.Name + " is away"
	} else {
		o.Client, o.ClientDetail = state, words
	}
	if w := o.Waiting; w != nil && w.Reason == fsm.ReasonNoCapacity && words != "" {
		w.Detail = words + ", and its workspace is there"
	}
}

// addNode stores a client unless a newer state of it is known, and returns the jobs that it
// affects.
func (ob *observation) addNode(n *nodeFacts, gone bool) []string {
	old := ob.nodes[n.ID]
	if old != nil && old.ModifyIndex > n.ModifyIndex {
		return nil
	}
	if gone {
		n.Status = nodeLeft
	}
	ob.nodes[n.ID] = n
	if old != nil {
		was, _ := old.state()
		if is, _ := n.state(); was == is {
			return nil
		}
	}
	var jobs []string
	for _, id := range ob.ids() {
		if ob.home(id) == n.ID {
			jobs = append(jobs, id)
		}
	}
	return jobs
}

// mergeNodes stores the clients of a later listing and returns the jobs that they affect.
func (ob *observation) mergeNodes(later *observation) (jobs []string) {
	for _, n := range later.nodes {
		jobs = append(jobs, ob.addNode(n, false)...)
	}
	for _, id := range slices.Sorted(maps.Keys(ob.nodes)) {
		if n := ob.nodes[id]; later.nodes[id] == nil && n.ModifyIndex <= later.index {
			lost := *n
			lost.ModifyIndex = later.index
			jobs = append(jobs, ob.addNode(&lost, true)...)
		}
	}
	return jobs
}

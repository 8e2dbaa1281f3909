package nomadtest

import (
	"context"
	"fmt"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

type watcher struct {
	cluster string
	events  chan scheduler.Observed
	broken  chan error
}

var (
	_ scheduler.Backend = (*Nomad)(nil)
	_ scheduler.Agents  = (*Nomad)(nil)
)

// List implements scheduler.Runner.
func (n *Nomad) List(ctx context.Context, clusterID string) ([]scheduler.Observed, error) {
	if err := n.enter(ctx, "list", scheduler.Job{}); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	ids := map[string]bool{}
	for id := range n.jobs {
		ids[id] = true
	}
	for id := range n.allocs {
		if n.live(id) > 0 {
			ids[id] = true
		}
	}
	for id, v := range n.volumes {
		ids[id] = ids[id] || v.cluster == clusterID
	}
	var list []scheduler.Observed
	for id, yes := range ids {
		if yes {
			list = append(list, n.observe(clusterID, id))
		}
	}
	return list, nil
}

// Watch implements scheduler.Runner.
func (n *Nomad) Watch(ctx context.Context, clusterID string, fn func(scheduler.Observed)) error {
	if err := n.enter(ctx, "watch", scheduler.Job{}); err != nil {
		return err
	}
	w := &watcher{cluster: clusterID, events: make(chan scheduler.Observed, 4096), broken: make(chan error, 1)}
	n.mu.Lock()
	n.watchers[w] = true
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.watchers, w)
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-w.broken:
			return err
		case o := <-w.events:
			fn(o)
		}
	}
}

// observe returns what an observer sees of one job.
func (n *Nomad) observe(clusterID, id string) scheduler.Observed {
	o := scheduler.Observed{SandboxID: id}
	j := n.jobs[id]
	if j != nil && j.cluster != clusterID {
		o.Foreign = true
		return o
	}
	o.Live = n.live(id)
	if list := n.allocs[id]; len(list) > 0 && n.cut[list[len(list)-1].client] {
		o.Client = scheduler.ClientAwayNow
	} else if state := n.clients[n.clientOf(id)]; state != "" {
		o.Client, o.ClientDetail = state, fmt.Sprintf("its client %s is %s", n.clientOf(id), state)
	}
	if j == nil {
		if v := n.volumes[id]; v != nil && v.cluster == clusterID {
			o.Workspace, o.WorkspaceID, o.NodeID, o.Birth = true, v.id, n.clientOf(id), v.birth
		}
		return o
	}
	o.Exists, o.Stopped, o.ModifyIndex, o.Birth = true, j.stopped, j.modifyIndex, j.birth
	o.Rotations = j.rotations
	if j.stopped {
		return o
	}
	o.Failure, o.Waiting, o.Spare = j.failure, j.waiting, j.spare
	for _, a := range n.allocs[id] {
		if a.live && !a.stopping {
			o.Version = a.version
			o.Placement, o.Up = a.placement(), true
		}
	}
	return o
}

func (a *alloc) placement() *fsm.Placement {
	return &fsm.Placement{
		AllocID: a.id, NodeID: a.client, Address: "10.0.0.1", Ports: map[string]int{fsm.PortAgentServer: a.port},
		Workspace: "/workspace",
	}
}

// emit sends an event about the job to the watchers, as Fault decides.
func (n *Nomad) emit(id string) {
	for w := range n.watchers {
		o := n.observe(w.cluster, id)
		if o.Workspace {
			// Events describe jobs; only List has workspaces.
			o.Workspace, o.WorkspaceID, o.NodeID, o.Birth = false, "", "", ""
		}
		f := Fault{Times: 1}
		if n.o.Fault != nil {
			f = n.o.Fault(o)
		}
		if f.Drop {
			continue
		}
		for range max(f.Times, 1) {
			n.after(f.Delay, func() { w.send(o) })
		}
	}
}

func (w *watcher) send(o scheduler.Observed) {
	select {
	case w.events <- o:
	default:
	}
}

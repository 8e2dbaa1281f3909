package nomadtest

import (
	"errors"
	"maps"
	"slices"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// at returns the live allocation whose agent server has the address.
func (n *Nomad) at(baseURL string) *alloc {
	if a := n.byURL[baseURL]; a != nil && a.live {
		return a
	}
	return nil
}

// CutOff partitions a client from the network, or reconnects it. Meanwhile its agent servers
// don't answer, a stopped task ends only after the reconnect, and its workspaces can't be
// deleted.
func (n *Nomad) CutOff(client string, away bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut == nil {
		n.cut = map[string]bool{}
	}
	n.cut[client] = away
	for id, list := range n.allocs {
		if len(list) > 0 && list[len(list)-1].client == client {
			n.emit(id)
		}
	}
	if away {
		return
	}
	for id, list := range n.allocs {
		for _, a := range list {
			if a.client == client && a.live && a.stopping {
				n.after(n.o.StopAfter, func() { a.live = false; n.emit(id) })
			}
		}
	}
}

// Drain sets a client's state. A drained or ineligible client gets no new tasks; running tasks
// stay until Evict.
func (n *Nomad) Drain(client string, state scheduler.ClientState) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.clients == nil {
		n.clients = map[string]scheduler.ClientState{}
	}
	n.clients[client] = state
	for id, j := range n.jobs {
		if n.clientOf(id) != client {
			continue
		}
		n.emit(id)
		if j.waiting != nil && state == "" {
			j.waiting = nil
			n.place(id, j, j.version)
		}
	}
}

// Evict is a drain's deadline: it stops the tasks on the client.
func (n *Nomad) Evict(client string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, j := range n.jobs {
		if n.clientOf(id) == client && !j.stopped {
			n.stopAllocs(id)
			n.place(id, j, j.version)
		}
	}
}

// Hang makes the agent servers for which fn is true accept calls without answering. nil ends
// that.
func (n *Nomad) Hang(fn func(sandbox, client string) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hung = fn
}

// HangCalls makes agent servers accept the calls for which fn is true without answering. nil
// ends that. agents.go has the names of the calls.
func (n *Nomad) HangCalls(fn func(call, sandbox string) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hungCalls = fn
}

// Unchallenged makes the agent servers answer no challenge, or all of them. Calls("key shown")
// counts the proofs in which one was shown its key for that.
func (n *Nomad) Unchallenged(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unchallenged = on
}

// Away makes every call fail and closes the event streams. Away(false) ends that.
func (n *Nomad) Away(away bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.away = nil
	if away {
		n.away = fsm.Errorf(fsm.CodeScheduler, "Nomad can't be reached")
		n.breakStreams()
	}
}

// Break closes the open event streams.
func (n *Nomad) Break() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.breakStreams()
}

func (n *Nomad) breakStreams() {
	for w := range n.watchers {
		select {
		case w.broken <- errors.New("the event stream broke"):
		default:
		}
	}
}

// Before registers fn to run at the start of each call. An error of fn is the call's error. fn
// may block.
func (n *Nomad) Before(fn func(call string, job scheduler.Job) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.before = fn
}

// Calls returns how often a call was made.
func (n *Nomad) Calls(call string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls[call]
}

// StopByHand is what an operator's `nomad job stop` does.
func (n *Nomad) StopByHand(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stop(id, n.jobs[id])
}

// PurgeByHand is what `nomad job stop -purge` does; the volume stays.
func (n *Nomad) PurgeByHand(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.purge(id)
}

// CollectGarbage removes every stopped job, as `nomad system gc` does.
func (n *Nomad) CollectGarbage() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, j := range n.jobs {
		if j.stopped && n.live(id) == 0 {
			delete(n.jobs, id)
			n.emit(id)
		}
	}
}

// LoseVolume deletes the workspace.
func (n *Nomad) LoseVolume(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.volumes, id)
	delete(n.files, id)
}

// EmptyVolume replaces the sandbox's workspace with an empty one.
func (n *Nomad) EmptyVolume(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.files, id)
}

// SwapVolumes exchanges the workspaces of two sandboxes.
func (n *Nomad) SwapVolumes(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.files[a], n.files[b] = n.files[b], n.files[a]
}

// Add creates a job of any cluster with a live allocation and a volume.
func (n *Nomad) Add(id, cluster string) { n.AddBorn(id, cluster, "") }

// AddBorn is Add with a birth.
func (n *Nomad) AddBorn(id, cluster, birth string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.makeVolume(id, cluster, birth)
	n.index++
	j := &job{cluster: cluster, birth: birth, modifyIndex: n.index, versions: map[uint64]bool{0: false}}
	n.jobs[id] = j
	n.place(id, j, 0)
}

// AddWorkspace creates a workspace without a job.
func (n *Nomad) AddWorkspace(id, cluster, birth string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.makeVolume(id, cluster, birth)
}

// Birth returns the birth of the job with that name, or else of the workspace.
func (n *Nomad) Birth(id string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.jobs[id] != nil:
		return n.jobs[id].birth
	case n.volumes[id] != nil:
		return n.volumes[id].birth
	}
	return ""
}

// Fail ends the sandbox's task for good.
func (n *Nomad) Fail(id string, f *scheduler.Failure) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range n.allocs[id] {
		a.live, a.answering = false, false
	}
	n.jobs[id].failure = f
	n.emit(id)
}

// Wait leaves the job without capacity. nil makes capacity available again.
func (n *Nomad) Wait(id string, f *scheduler.Failure) {
	n.mu.Lock()
	defer n.mu.Unlock()
	j := n.jobs[id]
	j.waiting = f
	n.emit(id)
	if f == nil {
		n.place(id, j, j.version)
	}
}

// Answer sets whether the sandbox's agent server answers.
func (n *Nomad) Answer(id string, answering bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range n.allocs[id] {
		a.answering = a.live && !a.stopping && answering
	}
}

// Live returns the number of live copies of the sandbox.
func (n *Nomad) Live(id string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.live(id)
}

// Has reports whether there is a job of that name.
func (n *Nomad) Has(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.jobs[id] != nil
}

// HasVolume reports whether the sandbox has a workspace.
func (n *Nomad) HasVolume(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.volumes[id] != nil
}

// Running names the sandboxes with a live copy, sorted.
func (n *Nomad) Running() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	set := map[string]bool{}
	for id := range n.allocs {
		if n.live(id) > 0 {
			set[id] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// Faults lists violations: two live copies of one sandbox.
func (n *Nomad) Faults() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.faulty)
}

// Change registers the job as another program would: it raises the modify index.
func (n *Nomad) Change(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.index++
	n.jobs[id].modifyIndex = n.index
}

package nomadtest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/access"
)

// Options configures a Nomad. A zero duration means at once.
type Options struct {
	// PlaceAfter is the time from registration to placement, AnswerAfter from placement until
	// the agent server answers, StopAfter from the stop until the task has ended.
	PlaceAfter, AnswerAfter, StopAfter time.Duration
	// Fault decides what happens to an event. nil delivers every event.
	Fault func(scheduler.Observed) Fault
	// Client names the client that a sandbox's job is placed on. nil places all on "node-1".
	Client func(sandbox string) string
}

// Fault says what happens to one event.
type Fault struct {
	Drop  bool
	Times int
	Delay time.Duration
}

// Nomad is a Nomad in memory. It implements scheduler.Runner and scheduler.Agents, keeps the
// rules of the real one that the scheduler depends on, and records if two copies of a sandbox
// were ever live.
type Nomad struct {
	o       Options
	secrets *Secrets

	mu      sync.Mutex
	index   uint64
	ports   int
	jobs    map[string]*job
	volumes map[string]*volume
	allocs  map[string][]*alloc
	// byURL maps an agent server's address to the newest allocation there.
	byURL     map[string]*alloc
	hung      func(sandbox, client string) bool
	hungCalls func(call, sandbox string) bool
	// cut names the clients that are cut off from the network.
	cut map[string]bool
	// clients holds the clients that are drained or not eligible.
	clients  map[string]scheduler.ClientState
	watchers map[*watcher]bool
	away     error
	calls    map[string]int
	before   func(call string, job scheduler.Job) error
	faulty   []string
	// t fails on an unexpected destruction. acknowledged and declared decide what may be
	// destroyed; destroyed records what was.
	t            TB
	acknowledged Acknowledged
	declared     map[string]bool
	destroyed    []Destroyed
	marks        marks
	// files holds the workspaces' contents. noFiles: the agent servers lack the file endpoints.
	files   map[string]map[string][]byte
	noFiles bool
	// unchallenged: the agent servers answer no challenge, as upstream's.
	unchallenged bool
	// pausing is how long a PauseAll takes.
	pausing time.Duration
}

// volume is a workspace: its cluster, its birth and its own id.
type volume struct{ cluster, birth, id string }

type job struct {
	cluster     string
	birth       string
	rotations   uint64
	version     uint64
	modifyIndex uint64
	stopped     bool
	// versions says of each version whether it is deferred.
	versions map[uint64]bool
	keyRef   fsm.SecretRef
	failure  *scheduler.Failure
	waiting  *scheduler.Failure
	// spare: a user's start may preempt it.
	spare bool
}

type alloc struct {
	id        string
	sandbox   string
	version   uint64
	live      bool
	stopping  bool
	placed    bool
	answering bool
	port      int
	client    string
	keyRef    fsm.SecretRef
	// deferred: the server starts without a key. bound is the key that Init passed.
	deferred bool
	bound    string
	// used is when the server was last used. busy: a conversation runs.
	used time.Time
	busy bool
	// silent: it answers 503 to Busy. refusing: it rejects its key there.
	silent, refusing bool
}

// NewNomad makes an empty Nomad whose tasks read their keys from secrets. t fails when
// something is destroyed that acknowledged does not allow; with a nil acknowledged, every
// destruction must be declared.
func NewNomad(t TB, o Options, secrets *Secrets, acknowledged Acknowledged) *Nomad {
	return &Nomad{
		t: t, acknowledged: acknowledged, declared: map[string]bool{},
		o: o, secrets: secrets, jobs: map[string]*job{}, volumes: map[string]*volume{}, allocs: map[string][]*alloc{},
		byURL:    map[string]*alloc{},
		watchers: map[*watcher]bool{}, calls: map[string]int{}, ports: 20000, files: map[string]map[string][]byte{},
	}
}

func conflict(format string, args ...any) error {
	return fsm.Errorf(fsm.CodeConflict, format, args...)
}

// enter begins a call of the Runner.
func (n *Nomad) enter(ctx context.Context, call string, j scheduler.Job) error {
	n.mu.Lock()
	before := n.before
	n.calls[call]++
	n.mu.Unlock()
	if before != nil {
		if err := before(call, j); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.away != nil {
		return n.away
	}
	return ctx.Err()
}

// Start implements scheduler.Runner.
func (n *Nomad) Start(ctx context.Context, j scheduler.Job) error {
	if err := n.enter(ctx, "start", j); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	cur := n.jobs[j.SandboxID]
	var index uint64
	if cur != nil {
		if cur.cluster != j.ClusterID {
			return &scheduler.Failure{Reason: fsm.ReasonForeignJob, Detail: "the job belongs to somebody else"}
		}
		index = cur.modifyIndex
	}
	if j.New {
		n.calls["start new"]++
		if n.volumes[j.SandboxID] != nil {
			n.faulty = append(n.faulty, fmt.Sprintf("sandbox %s was said to be new and has a workspace", j.SandboxID))
		}
	}
	if index != j.ModifyIndex {
		return conflict("modify index %d, not %d", index, j.ModifyIndex)
	}
	if cur != nil && !cur.stopped {
		if cur.spare && !j.Deferred {
			n.calls["raise"]++
			n.index++
			cur.spare, cur.modifyIndex = false, n.index
			n.emit(j.SandboxID)
		}
		if j.TakeOver {
			n.calls["take over"]++
			n.index++
			cur.modifyIndex = n.index
			n.emit(j.SandboxID)
		}
		return nil
	}
	if err := n.workspace(j); err != nil {
		return err
	}
	if cur == nil {
		cur = &job{cluster: j.ClusterID, birth: j.Birth, versions: map[uint64]bool{}}
		n.jobs[j.SandboxID] = cur
	} else {
		cur.version++
	}
	n.index++
	cur.stopped, cur.modifyIndex, cur.keyRef, cur.failure, cur.waiting = false, n.index, j.KeyRef, nil, nil
	cur.rotations = j.Rotations
	cur.spare = j.Deferred
	deferred := j.Deferred
	if was, ok := cur.versions[j.RevertTo]; ok && j.HasVersion {
		deferred = was
	} else {
		cur.birth = j.Birth
	}
	cur.versions[cur.version] = deferred
	n.emit(j.SandboxID)
	n.after(n.o.PlaceAfter, func() { n.place(j.SandboxID, cur, cur.version) })
	return nil
}

// workspace makes the sandbox's workspace unless it had one before.
func (n *Nomad) workspace(j scheduler.Job) error {
	v := n.volumes[j.SandboxID]
	switch {
	case v != nil && v.cluster == j.ClusterID && j.Owns(v.birth):
		return nil
	case j.HasVersion || j.HasWorkspace:
		return &scheduler.Failure{Reason: fsm.ReasonWorkspace, Detail: "the workspace is gone"}
	case v != nil:
		return &scheduler.Failure{Reason: fsm.ReasonWorkspace, Detail: "the workspace of a former sandbox " +
			"with this id is still kept"}
	}
	n.makeVolume(j.SandboxID, j.ClusterID, j.Birth)
	return nil
}

func (n *Nomad) makeVolume(id, cluster, birth string) {
	n.index++
	n.volumes[id] = &volume{cluster, birth, fmt.Sprintf("volume-%d", n.index)}
}

// place gives the job an allocation if it still needs one.
func (n *Nomad) place(id string, j *job, version uint64) {
	if n.jobs[id] != j || j.stopped || j.version != version || j.waiting != nil || j.failure != nil {
		return
	}
	for _, a := range n.allocs[id] {
		if a.live && !a.stopping {
			return
		}
	}
	if n.clients[n.clientOf(id)] != "" {
		j.waiting = &scheduler.Failure{Reason: fsm.ReasonNoCapacity, Detail: "no client has room"}
		n.emit(id)
		return
	}
	n.index++
	n.ports++
	a := &alloc{
		id: fmt.Sprintf("alloc-%d", n.index), sandbox: id, version: j.version, live: true, placed: true,
		port: n.ports, client: n.clientOf(id), keyRef: j.keyRef, deferred: j.versions[j.version], used: time.Now(),
	}
	n.allocs[id] = append(n.allocs[id], a)
	n.byURL[access.AgentURL(a.placement())] = a
	if n.live(id) > 1 {
		n.faulty = append(n.faulty, fmt.Sprintf("sandbox %s has %d live copies", id, n.live(id)))
	}
	n.emit(id)
	n.after(n.o.AnswerAfter, func() { a.answering = a.live && !a.stopping })
}

// Stop implements scheduler.Runner.
func (n *Nomad) Stop(ctx context.Context, j scheduler.Job) error {
	if err := n.enter(ctx, "stop", j); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	cur := n.jobs[j.SandboxID]
	if cur == nil || cur.stopped || cur.cluster != j.ClusterID {
		return nil
	}
	if cur.modifyIndex != j.ModifyIndex {
		return conflict("modify index %d, not %d", cur.modifyIndex, j.ModifyIndex)
	}
	n.stop(j.SandboxID, cur)
	return nil
}

func (n *Nomad) stop(id string, j *job) {
	n.index++
	j.stopped, j.modifyIndex = true, n.index
	j.version++
	n.emit(id)
	n.stopAllocs(id)
}

func (n *Nomad) stopAllocs(id string) {
	for _, a := range n.allocs[id] {
		if a.live && !a.stopping {
			a.stopping, a.answering = true, false
			if n.cut[a.client] {
				continue
			}
			n.after(n.o.StopAfter, func() { a.live = false; n.emit(id) })
		}
	}
}

// Remove implements scheduler.Runner. As in the real Nomad the purge enforces no index: it
// takes whatever job has the name at that moment. The function of Before runs in between, with
// "purge".
func (n *Nomad) Remove(ctx context.Context, j scheduler.Job) error {
	if err := n.enter(ctx, "remove", j); err != nil {
		return err
	}
	v, exists, err := n.toRemove(j)
	if err != nil {
		return err
	}
	if exists {
		// A request on its way to Nomad does not end with its caller's context.
		if err := n.enter(context.WithoutCancel(ctx), "purge", j); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if cur := n.jobs[j.SandboxID]; exists && cur != nil {
		n.destroy(KindJob, j.SandboxID, cur.birth)
		n.purge(j.SandboxID)
	}
	if v == nil || n.volumes[j.SandboxID] != v {
		return nil
	}
	return n.deleteVolume(j.SandboxID)
}

// toRemove checks that the job, if any, is the expected one, and stops it at its own index. It
// returns the volume to delete with it.
func (n *Nomad) toRemove(j scheduler.Job) (v *volume, exists bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if v = n.volumes[j.SandboxID]; j.KeepWorkspace || v != nil && (v.cluster != j.ClusterID || !j.Owns(v.birth)) {
		v = nil
	}
	cur := n.jobs[j.SandboxID]
	if cur == nil {
		return v, false, nil
	}
	if cur.cluster != j.ClusterID {
		return nil, false, nil
	}
	if j.ModifyIndex != cur.modifyIndex {
		return nil, false, conflict("modify index %d, not %d", cur.modifyIndex, j.ModifyIndex)
	}
	n.stop(j.SandboxID, cur)
	return v, true, nil
}

// RemoveWorkspace implements scheduler.Workspaces.
func (n *Nomad) RemoveWorkspace(ctx context.Context, w scheduler.Workspace) error {
	if err := n.enter(ctx, "remove workspace",
		scheduler.Job{SandboxID: w.SandboxID, ClusterID: w.ClusterID, Birth: w.Birth}); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	v := n.volumes[w.SandboxID]
	if v == nil || v.cluster != w.ClusterID || v.birth != w.Birth || w.ID != "" && w.ID != v.id {
		return nil
	}
	if cur := n.jobs[w.SandboxID]; cur != nil && cur.cluster == w.ClusterID {
		return conflict("the workspace is that of the job %s", w.SandboxID)
	}
	return n.deleteVolume(w.SandboxID)
}

func (n *Nomad) deleteVolume(id string) error {
	if n.live(id) > 0 {
		return fsm.Errorf(fsm.CodeScheduler, "volume in use by allocations")
	}
	if client := n.clientOf(id); n.cut[client] {
		return &scheduler.ClientAway{NodeID: client, Detail: "no path to it"}
	}
	n.destroy(KindWorkspace, id, n.volumes[id].birth)
	delete(n.volumes, id)
	delete(n.files, id)
	return nil
}

func (n *Nomad) purge(id string) {
	n.index++
	delete(n.jobs, id)
	n.stopAllocs(id)
	n.emit(id)
}

func (n *Nomad) clientOf(sandbox string) string {
	if n.o.Client == nil {
		return "node-1"
	}
	return n.o.Client(sandbox)
}

// live returns the number of live allocations of a sandbox.
func (n *Nomad) live(id string) int {
	count := 0
	for _, a := range n.allocs[id] {
		if a.live {
			count++
		}
	}
	return count
}

// after runs fn, under the lock, when d has passed; at once for zero.
func (n *Nomad) after(d time.Duration, fn func()) {
	if d <= 0 {
		fn()
		return
	}
	time.AfterFunc(d, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		fn()
	})
}

// Capacity implements scheduler.CapacityReader: the same at all times.
func (n *Nomad) Capacity(context.Context) (scheduler.Capacity, error) {
	return scheduler.Capacity{Clients: 2, CPU: 4000, CPUFree: 1000, Memory: 2048, MemoryFree: 512}, nil
}

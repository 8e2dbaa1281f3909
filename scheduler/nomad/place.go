package nomad

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// A sandbox is bound to the client that has its workspace, so the client must be chosen before
// Nomad's scheduler sees the job. Nomad puts a volume on the first client that may have it, even
// a full one. So this package chooses, by free capacity. Its data may be seconds old: a sandbox
// that finds no room waits, and may move as long as it was never placed.

// How old the data may be, and how long a choice counts that Nomad's listing may not show yet.
const (
	capacityAge    = 2 * time.Second
	reservationAge = 30 * time.Second
	// loneAge is how old the data may be while there is only one client, which Nomad finds as
	// well. The start after notices a second one.
	loneAge = time.Minute
	// avoidTime is how long a client that made no volume is avoided if there is another.
	avoidTime = 30 * time.Second
)

// capacity is what is known about the clients' capacity. mu is never held during a call.
type capacity struct {
	mu   sync.Mutex
	read time.Time
	list []*clientCapacity
	// others: there are clients that take no jobs. Nomad would still put volumes on them.
	others bool
	// reserved has choices by the job's id.
	reserved map[string]reservation
	// reading lets one caller list the clients for all.
	reading singleflight.Group
	// avoided has until when clients that made no volume are avoided.
	avoided map[string]time.Time
}

// clientCapacity is one client that takes jobs. free is its unused capacity. spare is what members
// of warm pools use, which give way to users' starts.
type clientCapacity struct {
	id, datacenter, pool string
	drivers              map[string]*api.DriverInfo
	total, free, spare   load
	// facts come from its configuration.
	facts clientFacts
}

// load is CPU in MHz and memory in MiB.
type load struct{ cpu, memory int64 }

func (l load) minus(o load) load { return load{l.cpu - o.cpu, l.memory - o.memory} }

func (l load) plus(o load) load { return load{l.cpu + o.cpu, l.memory + o.memory} }

func needs(t fsm.Template) load { return load{int64(t.CPU), int64(t.Memory)} }

// reservation is a choice. spare: the job gives way to users' starts.
type reservation struct {
	client string
	load   load
	spare  bool
	at     time.Time
}

// reserve subtracts a choice from the free capacity.
func (c *clientCapacity) reserve(b reservation) {
	c.free = c.free.minus(b.load)
	if b.spare {
		c.spare = c.spare.plus(b.load)
	}
}

// left returns the share of the client's CPU or memory, the smaller of the two, that would stay
// free with want; negative when it does not fit.
func (c *clientCapacity) left(want load) float64 { return c.share(c.free.minus(want)) }

// leftFor is left, where a user's start may also use the capacity of spare jobs.
func (c *clientCapacity) leftFor(job scheduler.Job) float64 {
	rest := c.free.minus(needs(job.Template))
	if !job.Deferred {
		rest = rest.plus(c.spare)
	}
	return c.share(rest)
}

func (c *clientCapacity) share(rest load) float64 {
	return min(float64(rest.cpu)/float64(max(c.total.cpu, 1)), float64(rest.memory)/float64(max(c.total.memory, 1)))
}

// chooseClient returns the client with the most free capacity. It is "" when Nomad may choose:
// there is only one client, down and drained ones included, or nothing is known. Nomad knows no
// marks, so it chooses nothing while there are any. Where there was only one client lately, the start
// does not wait for a newer listing: later, if given, lists the clients beside it.
func (r *Runner) chooseClient(ctx context.Context, job scheduler.Job, later *errgroup.Group) (string, error) {
	client := r.choice(ctx, job, later)
	if client == "" && len(job.Avoid) > 0 {
		return "", &scheduler.Failure{
			Reason: fsm.ReasonNoCapacity, Detail: "no Nomad client could run the sandbox but those that are drained or lost " +
				"(bivouac operator client list)",
		}
	}
	return client, nil
}

// choice is chooseClient's, "" for none.
func (r *Runner) choice(ctx context.Context, job scheduler.Job, later *errgroup.Group) string {
	age := capacityAge
	r.capacity.mu.Lock()
	if old := time.Since(r.capacity.read); later != nil && len(r.capacity.list) == 1 && !r.capacity.others &&
		old > capacityAge && old < loneAge {
		age = loneAge
	}
	r.capacity.mu.Unlock()
	if age == loneAge {
		later.Go(func() error { return r.refreshCapacity(ctx, capacityAge) })
	}
	if !r.knowCapacity(ctx, age) {
		return ""
	}
	r.capacity.mu.Lock()
	defer r.capacity.mu.Unlock()
	best, several := r.leastLoaded(job)
	if best != nil && several && best.left(needs(job.Template)) < 0 {
		// Capacity may have been freed since.
		r.capacity.mu.Unlock()
		known := r.knowCapacity(ctx, 0)
		r.capacity.mu.Lock()
		if best, _ = r.leastLoaded(job); !known {
			return ""
		}
	}
	if best == nil || len(r.capacity.list) == 1 && !r.capacity.others && len(job.Avoid) == 0 {
		return ""
	}
	if r.capacity.reserved == nil {
		r.capacity.reserved = map[string]reservation{}
	}
	b := reservation{best.id, needs(job.Template), job.Deferred, time.Now()}
	r.capacity.reserved[jobID(job.SandboxID)] = b
	best.reserve(b)
	return best.id
}

// knowCapacity reports whether the data is no older than age, after reading it if need be.
func (r *Runner) knowCapacity(ctx context.Context, age time.Duration) bool {
	err := r.refreshCapacity(ctx, age)
	if err != nil {
		r.log.Debug("reading the clients' capacity failed", "error", err)
	}
	return err == nil
}

// refreshCapacity reads the clients if the data is older than age. One read serves all concurrent
// callers, and none waits longer than its context.
func (r *Runner) refreshCapacity(ctx context.Context, age time.Duration) error {
	r.capacity.mu.Lock()
	fresh := time.Since(r.capacity.read) <= age
	r.capacity.mu.Unlock()
	if fresh {
		return nil
	}
	done := r.capacity.reading.DoChan("", func() (any, error) { return nil, r.readCapacity(r.life) })
	select {
	case <-ctx.Done():
		return ctx.Err()
	case res := <-done:
		return res.Err
	}
}

// betterElsewhere reports whether the client has no room for the sandbox, or takes no jobs, while
// another client has room.
func (r *Runner) betterElsewhere(ctx context.Context, job scheduler.Job, clientID string) bool {
	r.unreserve(jobID(job.SandboxID))
	if !r.knowCapacity(ctx, 0) {
		return false
	}
	r.capacity.mu.Lock()
	defer r.capacity.mu.Unlock()
	best, several := r.leastLoaded(job)
	if best == nil || best.id == clientID || best.leftFor(job) < 0 {
		return false
	}
	here := slices.IndexFunc(r.capacity.list, func(c *clientCapacity) bool { return c.id == clientID })
	return here < 0 || slices.Contains(job.Avoid, clientID) ||
		several && r.capacity.list[here].left(needs(job.Template)) < 0
}

// closed returns a description if the client takes no jobs as far as known, "" otherwise.
func (r *Runner) closed(ctx context.Context, job scheduler.Job, clientID string) string {
	if slices.Contains(job.Avoid, clientID) {
		return "the Nomad client " + clientID + ", which has the sandbox's workspace, " +
			"is drained or lost, and no other has room"
	}
	if !r.knowCapacity(ctx, capacityAge) {
		return ""
	}
	r.capacity.mu.Lock()
	defer r.capacity.mu.Unlock()
	if slices.ContainsFunc(r.capacity.list, func(c *clientCapacity) bool { return c.id == clientID }) {
		return ""
	}
	return "the Nomad client " + clientID + ", which has the sandbox's workspace, takes no jobs, and no other has room"
}

// unreserve forgets the choice for a job that is gone.
func (r *Runner) unreserve(job string) {
	r.capacity.mu.Lock()
	defer r.capacity.mu.Unlock()
	delete(r.capacity.reserved, job)
}

// avoid keeps new workspaces off a client that has just failed to make one: a client that is cut
// off has the most free capacity until Nomad notices.
func (r *Runner) avoid(client string) {
	r.capacity.mu.Lock()
	defer r.capacity.mu.Unlock()
	if r.capacity.avoided == nil {
		r.capacity.avoided = map[string]time.Time{}
	}
	r.capacity.avoided[client] = time.Now().Add(avoidTime)
}

// leastLoaded returns the client with the most free capacity of those that could run the template,
// and whether there are several. Where none has enough, the capacity of warm pool members counts
// as free for a user's start. The caller holds capacity.mu.
func (r *Runner) leastLoaded(job scheduler.Job) (best *clientCapacity, several bool) {
	now, t := time.Now(), job.Template
	better := func(a, b *clientCapacity) bool {
		if x, y := now.Before(r.capacity.avoided[a.id]), now.Before(r.capacity.avoided[b.id]); x != y {
			return y
		}
		x, y := a.left(needs(t)), b.left(needs(t))
		if x < 0 && y < 0 {
			x, y = a.leftFor(job), b.leftFor(job)
		}
		return x > y
	}
	for _, c := range r.capacity.list {
		if !r.suits(c, t) || slices.Contains(job.Avoid, c.id) {
			continue
		}
		several = best != nil || several
		if best == nil || better(c, best) {
			best = c
		}
	}
	return best, several
}

// suits reports whether the client could run the template at all.
func (r *Runner) suits(c *clientCapacity, t fsm.Template) bool {
	d := c.drivers[string(t.Driver)]
	return d != nil && d.Healthy && r.takes(c)
}

// takes reports whether the client takes sandboxes, whatever their driver.
func (r *Runner) takes(c *clientCapacity) bool {
	pool := cmp.Or(r.cfg.NodePool, api.NodePoolDefault)
	return (pool == api.NodePoolAll || c.pool == pool) &&
		(len(r.cfg.Datacenters) == 0 || slices.Contains(r.cfg.Datacenters, c.datacenter)) && c.facts.plugin
}

// clientFacts is what a client's configuration says.
type clientFacts struct {
	// binds: its docker driver mounts host directories.
	binds bool
	// plugin: it makes our volumes.
	plugin bool
}

func (r *Runner) clientFacts(ctx context.Context, id string) (clientFacts, error) {
	if facts, ok := r.facts.Get(id); ok {
		return facts, nil
	}
	var facts clientFacts
	err := r.call(ctx, opReadClient, func(ctx context.Context) error {
		node, _, err := r.client.Nodes().Info(id, query(ctx))
		if err == nil {
			v := node.Attributes["driver.docker.volumes.enabled"]
			facts.binds = v == "1" || v == "true"
			facts.plugin = node.Attributes["plugins.host_volume."+r.cfg.VolumePlugin+".version"] != ""
		}
		return err
	})
	if err == nil && facts.plugin {
		// A client that has just joined does not report everything at once.
		r.facts.Add(id, facts)
	}
	return facts, err
}

// readCapacity asks Nomad for its clients and what they run, other jobs included as far as our
// token may see them.
func (r *Runner) readCapacity(ctx context.Context) error {
	begin := time.Now()
	clients, others, placed, err := r.clientCapacities(ctx, false)
	if err != nil {
		return err
	}
	r.capacity.mu.Lock()
	defer r.capacity.mu.Unlock()
	for _, job := range placed {
		// The listing shows this choice's allocation.
		delete(r.capacity.reserved, job)
	}
	maps.DeleteFunc(r.capacity.reserved, func(_ string, b reservation) bool { return begin.Sub(b.at) > reservationAge })
	maps.DeleteFunc(r.capacity.avoided, func(_ string, until time.Time) bool { return begin.After(until) })
	r.capacity.list = nil
	for _, b := range r.capacity.reserved {
		if c := clients[b.client]; c != nil {
			c.reserve(b)
		}
	}
	for _, c := range clients {
		r.capacity.list = append(r.capacity.list, c)
	}
	slices.SortFunc(r.capacity.list, func(a, b *clientCapacity) int { return cmp.Compare(a.id, b.id) })
	r.capacity.read, r.capacity.others = time.Now(), others
	return nil
}

// clientCapacities asks Nomad for the clients that take jobs, by id, whether there are others, and
// which of our jobs have an allocation. What a lone client runs is read only with used: there is
// nothing to choose.
func (r *Runner) clientCapacities(
	ctx context.Context,
	used bool,
) (clients map[string]*clientCapacity, others bool, placed []string, err error) {
	var stubs []*api.NodeListStub
	err = r.call(ctx, opListClients, func(ctx context.Context) error {
		q := query(ctx)
		q.Params = map[string]string{"resources": "true"}
		var err error
		stubs, _, err = r.client.Nodes().List(q)
		return err
	})
	if err != nil {
		return nil, false, nil, err
	}
	clients = map[string]*clientCapacity{}
	for _, s := range stubs {
		if s.Status != api.NodeStatusReady || s.SchedulingEligibility != api.NodeSchedulingEligible || s.Drain ||
			s.NodeResources == nil {
			others = true
			continue
		}
		c := &clientCapacity{id: s.ID, datacenter: s.Datacenter, pool: s.NodePool, drivers: s.Drivers}
		c.total = load{s.NodeResources.Cpu.CpuShares, s.NodeResources.Memory.MemoryMB}
		if res := s.ReservedResources; res != nil {
			c.total = c.total.minus(load{int64(res.Cpu.CpuShares), int64(res.Memory.MemoryMB)})
		}
		c.free = c.total
		clients[s.ID] = c
	}
	r.readFacts(ctx, clients)
	if used || len(clients) > 1 || others {
		placed, err = r.subtractUsed(ctx, clients)
	}
	return clients, others, placed, err
}

// readFacts reads what is not known of the clients' configuration. A client whose facts can't be
// read is not chosen.
func (r *Runner) readFacts(ctx context.Context, clients map[string]*clientCapacity) {
	var g errgroup.Group
	g.SetLimit(8)
	for _, c := range clients {
		g.Go(func() error {
			facts, err := r.clientFacts(ctx, c.id)
			if err == nil {
				c.facts = facts
			}
			return nil
		})
	}
	_ = g.Wait() // none fails
}

// subtractUsed subtracts what allocations use from the clients' free capacity, and returns the
// jobs that have an allocation.
func (r *Runner) subtractUsed(ctx context.Context, clients map[string]*clientCapacity) (placed []string, err error) {
	var allocs []struct {
		JobID              string
		Namespace          string
		NodeID             string
		AllocatedResources *api.AllocatedResources
	}
	err = r.call(ctx, "list what clients run", func(ctx context.Context) error {
		q := query(ctx)
		q.Namespace = api.AllNamespacesNamespace
		q.Filter = `ClientStatus != "complete" and ClientStatus != "failed" and ClientStatus != "lost"`
		_, err := r.client.Raw().Query("/v1/allocations?resources=true", &allocs, q)
		return err
	})
	if err != nil {
		return nil, err
	}
	spare, err := r.spareJobs(ctx)
	for _, a := range allocs {
		own := a.Namespace == r.cfg.namespace()
		if own {
			placed = append(placed, a.JobID)
		}
		c := clients[a.NodeID]
		if c == nil || a.AllocatedResources == nil {
			continue
		}
		b := reservation{spare: own && spare[a.JobID]}
		for _, t := range a.AllocatedResources.Tasks {
			b.load = b.load.plus(load{t.Cpu.CpuShares, t.Memory.MemoryMB})
		}
		c.reserve(b)
	}
	return placed, err
}

// spareJobs returns the jobs of the members of warm pools.
func (r *Runner) spareJobs(ctx context.Context) (map[string]bool, error) {
	spare := map[string]bool{}
	err := r.call(ctx, "list spare jobs", func(ctx context.Context) error {
		q := query(ctx)
		q.Prefix, q.Filter = jobPrefix, fmt.Sprintf("Priority == %d", poolPriority)
		stubs, _, err := r.client.Jobs().List(q)
		for _, s := range stubs {
			spare[s.ID] = true
		}
		return err
	})
	return spare, err
}

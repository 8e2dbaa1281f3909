package nomad

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/fsm"
)

// A sandbox is bound to the client that has its workspace, so the client is
// chosen before Nomad's scheduler sees the job; and Nomad puts volumes on the
// first client that may have them, full or not. So we choose, by the room that
// is left. What we believe may be seconds old: a sandbox that finds no room
// after all waits, and may move as long as it was never placed.

// How old the belief may be, and how long a choice counts that Nomad's listing
// may not show yet.
const (
	roomAge     = 2 * time.Second
	roomBooking = 5 * time.Second
	// loneAge is how old it may be as long as there is but one client, which
	// Nomad finds as well: that another has come is noticed by the start after.
	loneAge = time.Minute
	// shunTime is how long a client that made no volume is not chosen if there is
	// another.
	shunTime = 30 * time.Second
)

// rooms is what is believed of the clients. mu is never held during a call.
type rooms struct {
	mu   sync.Mutex
	read time.Time
	list []*room
	// others: there are clients that take no jobs. Nomad would put volumes on
	// them all the same.
	others bool
	// booked knows choices by the job's id.
	booked map[string]booking
	// reading is the listing that is under way, nil for none.
	reading *roomReading
	// shunned is until when clients that made no volume are not chosen.
	shunned map[string]time.Time
}

// roomReading is one listing of the clients; err is set before done is closed.
type roomReading struct {
	done chan struct{}
	err  error
}

// room is one client that takes jobs; free is what is left of what it has.
type room struct {
	id, datacenter, pool string
	drivers              map[string]*api.DriverInfo
	total, free          load
	// facts are what its configuration says.
	facts clientFacts
}

// load is CPU in MHz and memory in MiB.
type load struct{ cpu, memory int64 }

func (l load) minus(o load) load { return load{l.cpu - o.cpu, l.memory - o.memory} }

func needs(t fsm.Template) load { return load{int64(t.CPU), int64(t.Memory)} }

// booking is a choice.
type booking struct {
	client string
	load   load
	at     time.Time
}

// left is the smaller share of the client that want would leave; negative when
// it does not fit.
func (c *room) left(want load) float64 {
	rest := c.free.minus(want)
	return min(float64(rest.cpu)/float64(max(c.total.cpu, 1)), float64(rest.memory)/float64(max(c.total.memory, 1)))
}

// chooseClient gives the client with the most room, "" when Nomad may as well
// choose: there is but one client, down and drained ones included, or nothing is
// known. Where there was but one
// client lately nobody has to wait for the news: later, if given, asks for it
// beside the start.
func (r *Runner) chooseClient(ctx context.Context, job string, t fsm.Template, later *errgroup.Group) string {
	age := roomAge
	r.rooms.mu.Lock()
	if old := time.Since(r.rooms.read); later != nil && len(r.rooms.list) == 1 && !r.rooms.others && old > roomAge && old < loneAge {
		age = loneAge
	}
	r.rooms.mu.Unlock()
	if age == loneAge {
		later.Go(func() error { return r.freshRooms(ctx, roomAge) })
	}
	if !r.knowRooms(ctx, age) {
		return ""
	}
	r.rooms.mu.Lock()
	defer r.rooms.mu.Unlock()
	best, several := r.roomiest(t)
	if best != nil && several && best.left(needs(t)) < 0 {
		// Room may have come since.
		r.rooms.mu.Unlock()
		known := r.knowRooms(ctx, 0)
		r.rooms.mu.Lock()
		if best, _ = r.roomiest(t); !known {
			return ""
		}
	}
	if best == nil || len(r.rooms.list) == 1 && !r.rooms.others {
		return ""
	}
	if r.rooms.booked == nil {
		r.rooms.booked = map[string]booking{}
	}
	r.rooms.booked[job] = booking{best.id, needs(t), time.Now()}
	best.free = best.free.minus(needs(t))
	return best.id
}

// knowRooms reports whether what is believed is no older than age.
func (r *Runner) knowRooms(ctx context.Context, age time.Duration) bool {
	err := r.freshRooms(ctx, age)
	if err != nil {
		r.log.Debug("the room on the clients is not known", "error", err)
	}
	return err == nil
}

// freshRooms reads the clients anew if what is believed is older than age. One
// caller does, and the others wait for it, none longer than its context.
func (r *Runner) freshRooms(ctx context.Context, age time.Duration) error {
	for {
		r.rooms.mu.Lock()
		if time.Since(r.rooms.read) <= age {
			r.rooms.mu.Unlock()
			return nil
		}
		other := r.rooms.reading
		own := &roomReading{done: make(chan struct{})}
		if other == nil {
			r.rooms.reading = own
		}
		r.rooms.mu.Unlock()
		if other == nil {
			own.err = r.readRooms(ctx)
			r.rooms.mu.Lock()
			r.rooms.reading = nil
			r.rooms.mu.Unlock()
			close(own.done)
			return own.err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-other.done:
		}
		// Whoever read may have been called off.
		if other.err == nil || !errors.Is(other.err, context.Canceled) {
			return other.err
		}
	}
}

// betterElsewhere reports whether the client has no room for the sandbox, or
// takes no jobs, while another has.
func (r *Runner) betterElsewhere(ctx context.Context, job, clientID string, t fsm.Template) bool {
	r.unbook(job)
	if !r.knowRooms(ctx, 0) {
		return false
	}
	r.rooms.mu.Lock()
	defer r.rooms.mu.Unlock()
	best, several := r.roomiest(t)
	if best == nil || best.id == clientID || best.left(needs(t)) < 0 {
		return false
	}
	here := slices.IndexFunc(r.rooms.list, func(c *room) bool { return c.id == clientID })
	return here < 0 || several && r.rooms.list[here].left(needs(t)) < 0
}

// unbook forgets the choice for a job that is gone.
func (r *Runner) unbook(job string) {
	r.rooms.mu.Lock()
	defer r.rooms.mu.Unlock()
	delete(r.rooms.booked, job)
}

// shun keeps new workspaces from a client that has just made none: one that is
// cut off has the most room of all until Nomad notices.
func (r *Runner) shun(client string) {
	r.rooms.mu.Lock()
	defer r.rooms.mu.Unlock()
	if r.rooms.shunned == nil {
		r.rooms.shunned = map[string]time.Time{}
	}
	r.rooms.shunned[client] = time.Now().Add(shunTime)
}

// roomiest gives the client of those that could run the template which has the
// most room, and whether there are several. The caller holds rooms.mu.
func (r *Runner) roomiest(t fsm.Template) (best *room, several bool) {
	now := time.Now()
	better := func(a, b *room) bool {
		if x, y := now.Before(r.rooms.shunned[a.id]), now.Before(r.rooms.shunned[b.id]); x != y {
			return y
		}
		return a.left(needs(t)) > b.left(needs(t))
	}
	for _, c := range r.rooms.list {
		if !r.suits(c, t) {
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
func (r *Runner) suits(c *room, t fsm.Template) bool {
	pool := cmp.Or(r.cfg.NodePool, api.NodePoolDefault)
	d := c.drivers[string(t.Driver)]
	return d != nil && d.Healthy && (pool == api.NodePoolAll || c.pool == pool) &&
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
		// A client that has only just come does not say all at once.
		r.facts.Add(id, facts)
	}
	return facts, err
}

// readRooms asks Nomad for its clients and what they run, other people's jobs
// included as far as our token may see them.
func (r *Runner) readRooms(ctx context.Context) error {
	begin := time.Now()
	var stubs []*api.NodeListStub
	err := r.call(ctx, opListClients, func(ctx context.Context) error {
		q := query(ctx)
		q.Params = map[string]string{"resources": "true"}
		var err error
		stubs, _, err = r.client.Nodes().List(q)
		return err
	})
	if err != nil {
		return err
	}
	rooms, others := map[string]*room{}, false
	for _, s := range stubs {
		if s.Status != api.NodeStatusReady || s.SchedulingEligibility != api.NodeSchedulingEligible || s.Drain || s.NodeResources == nil {
			others = true
			continue
		}
		c := &room{id: s.ID, datacenter: s.Datacenter, pool: s.NodePool, drivers: s.Drivers}
		c.total = load{s.NodeResources.Cpu.CpuShares, s.NodeResources.Memory.MemoryMB}
		if res := s.ReservedResources; res != nil {
			c.total = c.total.minus(load{int64(res.Cpu.CpuShares), int64(res.Memory.MemoryMB)})
		}
		c.free = c.total
		rooms[s.ID] = c
	}
	r.readFacts(ctx, rooms)
	var placed []string
	if len(rooms) > 1 {
		if placed, err = r.subtractUsed(ctx, rooms); err != nil {
			return err
		}
	}
	r.rooms.mu.Lock()
	defer r.rooms.mu.Unlock()
	for _, job := range placed {
		// A choice whose allocation is there has done its work.
		delete(r.rooms.booked, job)
	}
	maps.DeleteFunc(r.rooms.booked, func(_ string, b booking) bool { return begin.Sub(b.at) > roomBooking })
	maps.DeleteFunc(r.rooms.shunned, func(_ string, until time.Time) bool { return begin.After(until) })
	r.rooms.list = nil
	for _, b := range r.rooms.booked {
		if c := rooms[b.client]; c != nil {
			c.free = c.free.minus(b.load)
		}
	}
	for _, c := range rooms {
		r.rooms.list = append(r.rooms.list, c)
	}
	slices.SortFunc(r.rooms.list, func(a, b *room) int { return cmp.Compare(a.id, b.id) })
	r.rooms.read, r.rooms.others = time.Now(), others
	return nil
}

// readFacts reads what is not known of the clients' configuration. One that does
// not say is not chosen.
func (r *Runner) readFacts(ctx context.Context, rooms map[string]*room) {
	var g errgroup.Group
	g.SetLimit(8)
	for _, c := range rooms {
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

// subtractUsed takes what allocations hold from the clients' room, and names the
// jobs that have one.
func (r *Runner) subtractUsed(ctx context.Context, rooms map[string]*room) (placed []string, err error) {
	var allocs []struct {
		JobID              string
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
	for _, a := range allocs {
		placed = append(placed, a.JobID)
		c := rooms[a.NodeID]
		if c == nil || a.AllocatedResources == nil {
			continue
		}
		for _, t := range a.AllocatedResources.Tasks {
			c.free = c.free.minus(load{t.Cpu.CpuShares, t.Memory.MemoryMB})
		}
	}
	return placed, err
}

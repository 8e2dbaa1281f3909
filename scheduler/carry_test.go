package scheduler_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

// carrying is a Nomad whose clients "a" and "b" have workspaces with content, and a store of copies.
type carrying struct {
	*nomadtest.Nomad
	mu      sync.Mutex
	made    int
	volumes map[string][]scheduler.Workspace
	content map[string]string
	// runs is the volume that each sandbox was last started with.
	runs   map[string]scheduler.Workspace
	copies map[string]string
	// written is when something of a sandbox was last stored.
	written map[string]time.Time
	// fails returns the error of a step.
	fails func(step string) error
	// failsFor does so for one sandbox.
	failsFor func(step, sandbox string) error
	wrong    []string
	// starts has when each sandbox was started. ignores: the backend puts new ones on "a" all the same.
	starts  map[string][]time.Time
	ignores bool
	// owners is what a sandbox has to start with where that is not "of" and its id.
	owners map[string]string
	// births has the birth of each sandbox's job.
	births map[string]string
	// left are the births of the jobs that a dead leader left beside workspaces.
	left []string
	// to is where moves go, "" for "b".
	to string
	// lost: the leader's calls of the store fail.
	lost bool
}

func (c *carrying) at(step, sandbox string) error {
	c.mu.Lock()
	fails, failsFor := c.fails, c.failsFor
	c.mu.Unlock()
	if failsFor != nil {
		return failsFor(step, sandbox)
	}
	if fails == nil {
		return nil
	}
	return fails(step)
}

func (c *carrying) moveTo(client string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.to = client
}

func (c *carrying) contentOf(volume string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.content[volume]
}

func (c *carrying) setFails(fails func(step string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fails = fails
}

// allRunOn reports whether the sandboxes run on a client.
func (c *carrying) allRunOn(client string, w *world, ids ...string) bool {
	return !slices.ContainsFunc(ids, func(id string) bool {
		return w.cluster.Sandbox(id).State() != fsm.SandboxRunning || c.client(id) != client || w.nomad.Live(id) != 1
	})
}

func (c *carrying) client(id string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.runs[id].NodeID
}

func (c *carrying) add(id, client string) scheduler.Workspace {
	c.made++
	w := scheduler.Workspace{SandboxID: id, ClusterID: clusterID, ID: fmt.Sprintf("volume-%d", c.made), NodeID: client}
	c.volumes[id] = append(c.volumes[id], w)
	return w
}

// Start implements scheduler.Runner.
func (c *carrying) Start(ctx context.Context, job scheduler.Job) error {
	c.mu.Lock()
	list := c.volumes[job.SandboxID]
	if len(list) == 0 {
		to := "a"
		if slices.Contains(job.Avoid, to) && !c.ignores {
			to = "b"
		}
		list = []scheduler.Workspace{c.add(job.SandboxID, to)}
		c.content[list[0].ID] = "of " + job.SandboxID
	}
	c.births[job.SandboxID] = job.Birth
	c.starts[job.SandboxID] = append(c.starts[job.SandboxID], time.Now())
	use := list[0]
	if job.Volume != "" {
		i := slices.IndexFunc(list, func(w scheduler.Workspace) bool { return w.ID == job.Volume })
		if i < 0 {
			c.mu.Unlock()
			return &scheduler.Failure{Reason: fsm.ReasonWorkspace, Detail: "the volume is gone"}
		}
		use = list[i]
	}
	if c.content[use.ID] != cmp.Or(c.owners[job.SandboxID], "of "+job.SandboxID) {
		c.wrong = append(c.wrong, fmt.Sprintf("%s starts with %q", job.SandboxID, c.content[use.ID]))
	}
	c.runs[job.SandboxID] = use
	c.mu.Unlock()
	return c.Nomad.Start(ctx, job)
}

// see adds what the real Nomad knows of clients.
func (c *carrying) see(o scheduler.Observed) scheduler.Observed {
	o.Home = c.client(o.SandboxID)
	if o.Live > 0 {
		o.LiveOn = o.Home
	}
	return o
}

// List implements scheduler.Runner.
func (c *carrying) List(ctx context.Context, cluster string) ([]scheduler.Observed, error) {
	list, err := c.Nomad.List(ctx, cluster)
	for i := range list {
		list[i] = c.see(list[i])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, volumes := range c.volumes {
		if slices.ContainsFunc(list, func(o scheduler.Observed) bool { return o.SandboxID == id && o.Exists }) {
			continue
		}
		list = slices.DeleteFunc(list, func(o scheduler.Observed) bool { return o.SandboxID == id })
		for _, w := range volumes {
			list = append(list,
				scheduler.Observed{SandboxID: id, Workspace: true, WorkspaceID: w.ID, NodeID: w.NodeID, Birth: c.births[id]})
		}
	}
	return list, err
}

// Remove implements scheduler.Runner.
func (c *carrying) Remove(ctx context.Context, job scheduler.Job) error {
	if err := c.Nomad.Remove(ctx, job); err != nil || job.KeepWorkspace {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.volumes[job.SandboxID] = slices.DeleteFunc(c.volumes[job.SandboxID], func(v scheduler.Workspace) bool {
		gone := !slices.Contains(job.Keep, v.ID)
		if gone {
			delete(c.content, v.ID)
		}
		return gone
	})
	return nil
}

// Watch implements scheduler.Runner.
func (c *carrying) Watch(ctx context.Context, cluster string, fn func(scheduler.Observed)) error {
	return c.Nomad.Watch(ctx, cluster, func(o scheduler.Observed) { fn(c.see(o)) })
}

// ListWorkspaces implements scheduler.Carrier.
func (c *carrying) ListWorkspaces(_ context.Context, job scheduler.Job) ([]scheduler.Workspace, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := slices.Clone(c.volumes[job.SandboxID])
	for i, w := range list {
		list[i].Current = w.ID == job.Volume || job.Volume == "" && i == 0
	}
	return list, nil
}

// NewWorkspace implements scheduler.Carrier.
func (c *carrying) NewWorkspace(_ context.Context, job scheduler.Job, avoid []string) (scheduler.Workspace, error) {
	if err := c.at("new", job.SandboxID); err != nil {
		return scheduler.Workspace{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	to := cmp.Or(c.to, "b")
	if slices.Contains(avoid, to) {
		return scheduler.Workspace{}, errors.New("no room")
	}
	return c.add(job.SandboxID, to), nil
}

// Export implements scheduler.Carrier.
func (c *carrying) Export(_ context.Context, _ scheduler.Job, w scheduler.Workspace, _ io.Reader, out io.Writer) error {
	c.mu.Lock()
	text := c.content[w.ID]
	c.mu.Unlock()
	if err := c.at("export", w.SandboxID); err != nil {
		return err
	}
	_, err := io.WriteString(out, text)
	return err
}

// Import implements scheduler.Carrier.
func (c *carrying) Import(_ context.Context, _ scheduler.Job, w scheduler.Workspace, in io.Reader) error {
	raw, err := io.ReadAll(in)
	c.mu.Lock()
	c.content[w.ID] = string(raw[:len(raw)/2])
	c.mu.Unlock()
	if err = errors.Join(err, c.at("import", w.SandboxID)); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.content[w.ID] = string(raw)
	return nil
}

// RemoveWorkspace implements scheduler.Workspaces.
func (c *carrying) RemoveWorkspace(_ context.Context, w scheduler.Workspace) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs[w.SandboxID].ID == w.ID && c.Nomad.Live(w.SandboxID) > 0 {
		c.wrong = append(c.wrong, "the workspace that runs was removed")
	}
	delete(c.content, w.ID)
	c.volumes[w.SandboxID] = slices.DeleteFunc(c.volumes[w.SandboxID],
		func(v scheduler.Workspace) bool { return v.ID == w.ID })
	return nil
}

// Save, Load, Collect and Remove implement scheduler.Copies.
func (c *carrying) Save(
	ctx context.Context, _, sandbox string, base *fsm.Copy, export func(context.Context, io.Reader, io.Writer) error,
) (fsm.Copy, int64, int, error) {
	var out strings.Builder
	err := export(ctx, strings.NewReader(""), &out)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made++
	id := fmt.Sprintf("%d-copy", c.made)
	// The store may take what was sent before the copy ended.
	c.copies[sandbox+"/"+id], c.written[sandbox] = out.String(), time.Now()
	if err != nil {
		return fsm.Copy{}, 0, 0, err
	}
	return fsm.Copy{ID: id, Sum: strings.Repeat("0", 64), Files: 1, Bytes: int64(out.Len())}, int64(out.Len()), 0, nil
}

func (c *carrying) Load(_ context.Context, _, sandbox string, cp fsm.Copy, out io.Writer) error {
	c.mu.Lock()
	text := c.copies[sandbox+"/"+cp.ID]
	c.mu.Unlock()
	if err := c.at("load", sandbox); err != nil {
		return err
	}
	_, err := io.WriteString(out, text)
	return err
}

func (c *carrying) Collect(context.Context, string, string, fsm.Copy, int) error { return nil }

// store is the Copies of carrying.
type store struct{ *carrying }

func (s store) Remove(_ context.Context, _, sandbox string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost {
		return errors.New("the leader is no more")
	}
	maps.DeleteFunc(s.copies, func(key, _ string) bool { return strings.HasPrefix(key, sandbox+"/") })
	return nil
}

// Unused implements scheduler.Copies.
func (c *carrying) Unused(_ context.Context, _ string, before time.Time, known func(string) bool) ([]string, error) {
	return slices.DeleteFunc(c.stored(), func(id string) bool { return known(id) || !c.writtenAt(id).Before(before) }), nil
}

func (c *carrying) writtenAt(id string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.written[id]
}

func (c *carrying) startsOf(id string) []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.starts[id])
}

// stored lists the sandboxes that the store has something of.
func (c *carrying) stored() (ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.copies {
		id, _, _ := strings.Cut(key, "/")
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// inCarryingWorld is inWorld with such a Nomad.
func inCarryingWorld(t *testing.T, fn func(w *world, c *carrying)) {
	t.Helper()
	c := &carrying{
		volumes: map[string][]scheduler.Workspace{}, content: map[string]string{}, runs: map[string]scheduler.Workspace{},
		copies:  map[string]string{},
		written: map[string]time.Time{}, births: map[string]string{}, starts: map[string][]time.Time{},
	}
	o := options()
	o.Client = c.client
	inWorld(t, o, func(w *world) {
		w.step()
		c.Nomad, w.backend, w.cfg.Copies = w.nomad, c, store{c}
		w.lead()
		fn(w, c)
		for _, s := range c.wrong {
			t.Error(s)
		}
	})
}

// onB waits until the sandbox runs on the client "b", with one workspace.
func (w *world) onB(c *carrying, id string) *fsm.Sandbox {
	w.Helper()
	w.until(id+" runs on b", 10*time.Minute, func() bool {
		sb := w.cluster.Sandbox(id)
		return sb.State() == fsm.SandboxRunning && sb.Home != nil && c.client(id) == "b" && w.nomad.Live(id) == 1
	})
	w.until("one workspace of "+id, time.Minute, func() bool {
		list, _ := c.ListWorkspaces(w.Context(), scheduler.Job{SandboxID: id})
		if w.cluster.Sandbox(id).Home.Lost { // what the lost client has stays
			return len(list) == 2 && list[0].NodeID == "a" && list[1].NodeID == "b"
		}
		return len(list) == 1 && list[0].NodeID == "b"
	})
	return w.cluster.Sandbox(id)
}

// A drain moves what runs and what is paused. The leader ends in each step of it, once before the
// step was taken and once after. The next one finishes, and nothing is left of the first try.
func TestMove_ALeaderEndsInEachStep(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"", "begin", "new", "export", "import", "end"} {
		t.Run("at "+step, func(t *testing.T) {
			t.Parallel()
			inCarryingWorld(t, func(w *world, c *carrying) {
				for _, id := range []string{"runs", "rests"} {
					w.create(id)
					w.reach(id, fsm.SandboxRunning, time.Minute)
				}
				w.pause("rests")
				w.reach("rests", fsm.SandboxPaused, time.Minute)
				w.until("a copy of what is paused", time.Minute, func() bool { return w.cluster.Sandbox("rests").Copy != nil })
				reached := make(chan struct{}, 100)
				lost := func(here string) error {
					if here != step || step == "" {
						return nil
					}
					reached <- struct{}{}
					return errors.New("the leader is no more")
				}
				c.mu.Lock()
				c.fails = lost
				c.mu.Unlock()
				w.cluster.Refuse(func(cmd fsm.Command) error {
					return lost(map[fsm.CommandType]string{fsm.SandboxMove: "begin", fsm.SandboxMoved: "end"}[cmd.Type])
				})
				w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: fsm.ClientDraining}, "operator")
				if step != "" {
					<-reached
					<-reached
				}
				w.step()
				c.mu.Lock()
				c.fails = nil
				c.mu.Unlock()
				w.cluster.Refuse(nil)
				w.cluster.NextTerm()
				w.lead()
				sb := w.onB(c, "runs")
				if sb.Home.From != "a" || sb.Home.Lost || sb.Move != nil {
					t.Errorf("its home is %+v, its move %+v", sb.Home, sb.Move)
				}
				w.until("what is paused has moved", 10*time.Minute, func() bool {
					sb := w.cluster.Sandbox("rests")
					return sb.Home != nil && sb.Move == nil && sb.State() == fsm.SandboxPaused
				})
				w.resume("rests")
				w.onB(c, "rests")
			})
		})
	}
}

// A drain that is taken back, before anything could be moved, leaves everything where it is.
func TestMove_ADrainIsTakenBack(t *testing.T) {
	t.Parallel()
	inCarryingWorld(t, func(w *world, c *carrying) {
		w.create("sb")
		w.reach("sb", fsm.SandboxRunning, time.Minute)
		c.mu.Lock()
		c.fails = func(step string) error {
			if step == "import" {
				return errors.New("the disk is full")
			}
			return nil
		}
		c.mu.Unlock()
		w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: fsm.ClientDraining}, "operator")
		w.until("it says why it waits", 5*time.Minute, func() bool {
			return strings.Contains(w.cluster.Sandbox("sb").Status.Detail, "the last try failed: the disk is full")
		})
		w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: ""}, "operator")
		w.reach("sb", fsm.SandboxRunning, 10*time.Minute)
		if sb := w.cluster.Sandbox("sb"); sb.Home != nil || sb.Move != nil || c.client("sb") != "a" {
			t.Errorf("it runs on %s: %+v", c.client("sb"), sb)
		}
	})
}

// A client that is given up: a sandbox with a copy comes back from it on another client when it is
// resumed, and one without says so and can be deleted. A client that is only away changes nothing.
func TestMove_FromTheCopyOfALostClient(t *testing.T) {
	t.Parallel()
	inCarryingWorld(t, func(w *world, c *carrying) {
		w.create("copied")
		w.reach("copied", fsm.SandboxRunning, time.Minute)
		w.pause("copied")
		w.reach("copied", fsm.SandboxPaused, time.Minute)
		w.until("a copy", time.Minute, func() bool { return w.cluster.Sandbox("copied").Copy != nil })
		c.mu.Lock()
		c.fails = func(step string) error {
			if step == "export" {
				return errors.New("the client is away")
			}
			return nil
		}
		c.mu.Unlock()
		w.create("bare")
		w.reach("bare", fsm.SandboxRunning, time.Minute)
		w.pause("bare")
		w.reach("bare", fsm.SandboxPaused, time.Minute)
		w.elapse(time.Hour)
		if sb := w.cluster.Sandbox("copied"); sb.Home != nil || sb.Moves != 0 {
			t.Errorf("it was moved without an operator's word: %+v", sb)
		}
		w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: fsm.ClientLost}, "operator")
		w.elapse(time.Minute)
		if sb := w.cluster.Sandbox("copied"); sb.Home != nil {
			t.Errorf("it was restored before anyone wanted it: %+v", sb)
		}
		w.resume("copied")
		if sb := w.onB(c, "copied"); !sb.Home.Lost || !sb.Home.CopyAt.Equal(sb.Copy.At) {
			t.Errorf("its home is %+v", sb.Home)
		}
		w.resume("bare")
		if sb := w.reach("bare", fsm.SandboxError, time.Minute); sb.Status.Reason != fsm.ReasonWorkspace ||
			!strings.Contains(sb.Status.Detail, "there is no copy of the workspace") {
			t.Errorf("without a copy: %+v", sb.Status)
		}
		w.delete("bare")
		w.until("it is deleted", 10*time.Minute, func() bool { return w.cluster.Sandbox("bare") == nil })
	})
}

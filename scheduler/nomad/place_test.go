package nomad_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomad"
)

const secondClient = `
name      = "second"
data_dir  = %q
bind_addr = "127.0.0.1"
disable_update_check = true
leave_on_interrupt   = false
leave_on_terminate   = false
ports {
  http = %d
}
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
client {
  enabled           = true
  network_interface = "lo"
  servers           = [%q]
  cpu_total_compute = 32000
  memory_total_mb   = %d
  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
    "driver.denylist"      = "docker"
  }
}
`

// twoClients is the test's own Nomad with a second client, and the memory of each.
func twoClients(t *testing.T) (*bench, int) {
	t.Helper()
	s := useStack(t)
	own := &stack{agent: s.agent, vault: s.vault}
	dir := t.TempDir()
	var err error
	if own.nomad, err = local.StartNomad(t.Context(), local.NomadOptions{Dir: filepath.Join(dir, "nomad")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.nomad.Close(); err != nil {
			t.Error(err)
		}
	})
	if own.client, err = api.NewClient(&api.Config{Address: own.nomad.Address}); err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, s: own, cluster: fmt.Sprintf("cluster-%d", time.Now().UnixNano())}
	memory := int(b.clients()[0].NodeResources.Memory.MemoryMB)
	server, err := own.client.Status().Leader()
	b.must(err)
	startClient(b, filepath.Join(dir, "second"), server, memory)
	b.until("two clients that run mocks", func() error {
		list := b.clients()
		if len(list) != 2 {
			return fmt.Errorf("%d clients", len(list))
		}
		for _, c := range list {
			if d := c.Drivers["mock_driver"]; c.Status != "ready" || d == nil || !d.Healthy {
				return fmt.Errorf("client %s is %s", c.Name, c.Status)
			}
			// A client that has just joined does not report everything at once.
			node, _, err := own.client.Nodes().Info(c.ID, nil)
			if err != nil || node.Attributes["plugins.host_volume.mkdir.version"] == "" {
				return fmt.Errorf("client %s makes no volumes yet: %w", c.Name, errors.Join(err, errors.New("it does not say so")))
			}
		}
		return nil
	})
	b.config = nomad.DefaultConfig()
	b.config.Address = own.nomad.Address
	b.r, err = nomad.New(b.config)
	b.must(err)
	t.Cleanup(b.r.Close)
	return b, memory
}

func startClient(b *bench, dir, server string, memory int) {
	b.Helper()
	binary, err := local.Tool(b.Context(), "nomad", os.Stderr)
	b.must(err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	b.must(err)
	port := ln.Addr().(*net.TCPAddr).Port
	b.must(ln.Close())
	b.must(os.MkdirAll(dir, 0o700))
	config := filepath.Join(dir, "client.hcl")
	text := fmt.Sprintf(secondClient, filepath.Join(dir, "data"), port, server, memory)
	b.must(os.WriteFile(config, []byte(text), 0o600))
	log, err := os.Create(filepath.Join(dir, "client.log"))
	b.must(err)
	cmd := exec.CommandContext(context.Background(), binary, "agent", "-config="+config)
	cmd.Stdout, cmd.Stderr = log, log
	b.must(cmd.Start())
	b.Cleanup(func() {
		if b.Failed() {
			raw, _ := os.ReadFile(log.Name())
			lines := strings.Split(string(raw), "\n")
			b.Log(strings.Join(lines[max(0, len(lines)-20):], "\n"))
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		timer.Stop()
		_ = log.Close()
		// What the agent was still setting up when it ended may be mounted a moment later by one
		// of its helpers.
		b.must(await(context.Background(), func() error {
			b.unmount(dir)
			return os.RemoveAll(dir)
		}))
	})
}

// unmount detaches what an agent that ended has left mounted below a directory.
func (b *bench) unmount(dir string) {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return // there are no such mounts here
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			if err := unix.Unmount(f[4], unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
				b.Error(err)
			}
		}
	}
}

func (b *bench) clients() []*api.NodeListStub {
	b.Helper()
	list, _, err := b.s.client.Nodes().List(&api.QueryOptions{Params: map[string]string{"resources": "true"}})
	b.must(err)
	return list
}

// mock is a sandbox of the mock driver with that much memory.
func (b *bench) mock(memory int) scheduler.Job {
	job := scheduler.Job{
		SandboxID: fmt.Sprintf("m%d", time.Now().UnixNano()), ClusterID: b.cluster,
		Template: fsm.Template{
			Driver: fsm.DriverMock, Readiness: fsm.ReadinessAllocation, CPU: 20, Memory: memory, Ports: map[string]int{
				fsm.PortAgentServer: 0,
			},
		},
	}
	b.Cleanup(func() { b.remove(job) })
	return job
}

// Nomad places volumes without regard to a client's free capacity, always on the same client.
// Sandboxes are still spread, and one that found no room moves as long as it was never placed.
func TestRunner_SeveralClients_ShareTheSandboxes(t *testing.T) {
	t.Parallel()
	b, memory := twoClients(t)
	var jobs []scheduler.Job
	per := map[string]int{}
	for range 4 {
		job := b.mock(memory * 2 / 5)
		b.must(b.r.Start(t.Context(), job))
		jobs = append(jobs, job)
	}
	placed := map[string]string{}
	for _, job := range jobs {
		o := b.look(job, "placement", func(o scheduler.Observed) bool { return o.Up && o.Placement != nil })
		placed[job.SandboxID] = o.Placement.NodeID
		per[o.Placement.NodeID]++
	}
	if len(per) != 2 || per[placed[jobs[0].SandboxID]] != 2 {
		t.Fatalf("sandboxes per client: %v", per)
	}

	capacity, err := b.r.Capacity(t.Context())
	if total := int64(2 * memory); err != nil || capacity.Clients != 2 || capacity.Memory != total ||
		capacity.MemoryFree != total-4*int64(memory*2/5) || capacity.CPUFree >= capacity.CPU {
		t.Errorf("capacity of two clients with %d MiB each: %+v, %v", memory, capacity, err)
	}

	// A fifth finds no room and shows it.
	last := b.mock(memory * 2 / 5)
	b.must(b.r.Start(t.Context(), last))
	o := b.look(last, "no room", func(o scheduler.Observed) bool { return o.Waiting != nil })
	if o.Waiting.Reason != fsm.ReasonNoCapacity || !strings.Contains(o.Waiting.Detail, "memory exhausted on 1") {
		t.Fatalf("waiting for %+v", o.Waiting)
	}
	home := b.volumes(last)[0].NodeID
	last.ModifyIndex = o.ModifyIndex
	last = b.paused(last)
	// Room is freed, but on the other client.
	for _, job := range jobs {
		if placed[job.SandboxID] != home {
			b.remove(job)
			break
		}
	}
	b.must(b.r.Start(t.Context(), last))
	o = b.look(last, "placement", func(o scheduler.Observed) bool { return o.Up && o.Placement != nil })
	if v := b.volumes(last); o.Placement.NodeID == home || len(v) != 1 || v[0].NodeID != o.Placement.NodeID {
		t.Fatalf("placed on %s, first on %s, volumes %+v", o.Placement.NodeID, home, v)
	}

	// It ran: from now on it stays where its workspace is, with or without room.
	home = o.Placement.NodeID
	last.ModifyIndex, last.RevertTo, last.HasVersion = o.ModifyIndex, o.Version, true
	last = b.paused(last)
	filler := b.mock(memory * 2 / 5)
	b.must(b.r.Start(t.Context(), filler))
	if o := b.look(filler, "placement",
		func(o scheduler.Observed) bool { return o.Placement != nil }); o.Placement.NodeID != home {
		t.Fatalf("the filler is on %s", o.Placement.NodeID)
	}
	for _, job := range jobs {
		if placed[job.SandboxID] != home {
			b.remove(job)
		}
	}
	b.must(b.r.Start(t.Context(), last))
	b.look(last, "no room", func(o scheduler.Observed) bool { return o.Waiting != nil })
	if v := b.volumes(last); len(v) != 1 || v[0].NodeID != home {
		t.Fatalf("the workspace of a sandbox that ran was moved: %+v", v)
	}
}

// Nomad places volumes on clients that are down or take no jobs. Sandboxes go to the one that
// takes jobs.
func TestRunner_OneOfSeveralClientsTakesJobs_AndGetsThem(t *testing.T) {
	t.Parallel()
	b, memory := twoClients(t)
	for _, closed := range b.clients() {
		for _, c := range b.clients() {
			_, err := b.s.client.Nodes().ToggleEligibility(c.ID, c.ID != closed.ID, nil)
			b.must(err)
		}
		r, err := nomad.New(b.config) // has no data yet
		b.must(err)
		t.Cleanup(r.Close)
		b.r = r
		job := b.mock(memory / 5)
		b.must(b.r.Start(t.Context(), job))
		o := b.look(job, "placement", func(o scheduler.Observed) bool { return o.Up && o.Placement != nil })
		if o.Placement.NodeID == closed.ID {
			t.Fatal("it runs on a client that takes no jobs")
		}
	}
}

// The capacity of warm pool members counts as room for users' starts: of two full clients the one
// whose members can give way is chosen, and each start finds room as long as there are members.
func TestRunner_ClientsFullOfMembers_TakeUsersStarts(t *testing.T) {
	t.Parallel()
	b, memory := twoClients(t)
	placed := func(o scheduler.Observed) bool { return o.Up && o.Placement != nil }
	start := func(job scheduler.Job, what string) string {
		t.Helper()
		b.must(b.r.Start(t.Context(), job))
		return b.look(job, what, placed).Placement.NodeID
	}
	user := func(share int) scheduler.Job { return b.mock(memory * share / 100) }
	member := func(share int) scheduler.Job {
		job := user(share)
		job.Deferred = true
		return job
	}
	// One client has a user's sandbox, the other two members, and is fuller.
	users := start(user(55), "the user's sandbox")
	members := start(member(40), "the first member")
	if again := start(member(40), "the second member"); members == users || again != members {
		t.Fatalf("a user's sandbox on %s, members on %s and %s", users, members, again)
	}
	if at := start(user(50), "a start where members are in the way"); at != members {
		t.Errorf("the start is on %s, where no member can give way", at)
	}
	if at := start(user(45), "a start in the place of the last member"); at != members && at != users {
		t.Errorf("the start is on %s", at)
	}
	// A member displaces nothing.
	last := member(40)
	b.must(b.r.Start(t.Context(), last))
	b.look(last, "no room for a member", func(o scheduler.Observed) bool {
		return o.Waiting != nil &&
			o.Waiting.Reason == fsm.ReasonNoCapacity
	})
}

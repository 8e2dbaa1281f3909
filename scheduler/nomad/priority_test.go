package nomad_test

import (
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomad"
)

// full is its own Nomad on which one sandbox of the template leaves no room for a second.
func full(t *testing.T) (*bench, func(id string, deferred bool) scheduler.Job) {
	t.Helper()
	s := useStack(t)
	own := &stack{agent: s.agent}
	var err error
	if own.nomad, err = local.StartNomad(t.Context(),
		local.NomadOptions{Dir: filepath.Join(t.TempDir(), "nomad")}); err != nil {
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
	cfg := nomad.DefaultConfig()
	cfg.Address, cfg.KillTimeout = own.nomad.Address, 2*time.Second
	r, err := nomad.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	b := &bench{T: t, s: own, cluster: "cluster-full", r: r, config: cfg}
	node, err := own.nomad.NodeID(t.Context())
	b.must(err)
	var facts struct {
		NodeResources struct{ Memory struct{ MemoryMB int } }
	}
	b.must(own.nomad.Do(t.Context(), http.MethodGet, "node/"+node, nil, &facts))
	return b, func(id string, deferred bool) scheduler.Job {
		return scheduler.Job{
			SandboxID: id, ClusterID: b.cluster, Deferred: deferred, KeyRef: fsm.SecretRef{
				Path:    "sandboxes/" + id + "/session",
				Version: 1,
			},
			Template: fsm.Template{
				Driver: fsm.DriverRawExec, Isolation: fsm.IsolationNone, Command: own.agent, Args: []string{
					"--host",
					"127.0.0.1",
					"--port",
					"${port.agent_server}",
				},
				WorkingDir: "project", CPU: 100, Memory: facts.NodeResources.Memory.MemoryMB * 6 / 10, Ports: map[string]int{
					fsm.PortAgentServer: 0,
				},
			},
		}
	}
}

// On a client that a warm pool fills, the member gives way to a user's start. A claimed one is a
// user's, and does not.
func TestRunner_PoolMember_GivesWayToAStart(t *testing.T) {
	t.Parallel()
	b, job := full(t)
	placed := func(o scheduler.Observed) bool { return o.Placement != nil && o.Up }
	start := func(j scheduler.Job) {
		t.Helper()
		b.must(b.r.Start(t.Context(), j))
	}
	member := job("member", true)
	start(member)
	b.look(member, "the member's placement", placed)
	first := job("first", false)
	start(first)
	b.look(first, "the start's placement in the place of the member", placed)
	b.look(member, "the member without one", func(o scheduler.Observed) bool {
		return o.Placement == nil &&
			o.Waiting != nil
	})

	// The user's sandbox is removed, the member comes back and is claimed.
	first.ModifyIndex = b.observed(first).ModifyIndex
	b.must(b.r.Stop(t.Context(), first))
	o := b.look(member, "the member again", placed)
	if !o.Spare {
		t.Errorf("a member's job does not give way: %+v", o)
	}
	claimed := member
	claimed.Deferred, claimed.ModifyIndex = false, o.ModifyIndex
	start(claimed)
	after := b.look(claimed, "the claimed member's priority", func(o scheduler.Observed) bool { return !o.Spare })
	if !after.Placement.Equal(o.Placement) || after.ModifyIndex == o.ModifyIndex {
		t.Errorf("before %+v, after %+v", o, after)
	}
	second := job("second", false)
	start(second)
	b.look(second, "no room for another", func(o scheduler.Observed) bool {
		return o.Waiting != nil &&
			o.Waiting.Reason == fsm.ReasonNoCapacity
	})
	if o := b.observed(claimed); !o.Placement.Equal(after.Placement) {
		t.Errorf("a user's sandbox gave way to another's: %+v", o)
	}
}

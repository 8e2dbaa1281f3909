package nomad_test

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomad"
)

// A cluster with its own namespace: its sandboxes get their keys. A job of a sandbox's name in
// another namespace can't even log in to Vault, and a token without submit-job in the cluster's
// own can't have such a job. Its nodes have the least permissions, and Nomad refuses other drivers.
func TestRunner_Namespace_OthersReadNoKey(t *testing.T) {
	t.Parallel()
	s := useStack(t)
	own := &stack{agent: s.agent}
	dir := t.TempDir()
	var err error
	if own.vault, err = local.StartVault(t.Context(), local.VaultOptions{Dir: filepath.Join(dir, "vault")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = own.vault.Close() })
	own.nomad, err = local.StartNomad(t.Context(), local.NomadOptions{
		Dir: filepath.Join(dir, "nomad"), Vault: own.vault, Namespace: "agents", ACL: true,
		Drivers: []string{"raw_exec"}, NodePool: "agents",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.nomad.Close(); err != nil {
			t.Error(err)
		}
	})
	if own.client, err = api.NewClient(&api.Config{
		Address:   own.nomad.Address,
		SecretID:  own.nomad.Token,
		Namespace: "agents",
	}); err != nil {
		t.Fatal(err)
	}
	cfg := nomad.DefaultConfig()
	cfg.Address, cfg.VaultMount, cfg.KillTimeout, cfg.Namespace = own.nomad.Address, "secret", 2*time.Second, "agents"
	cfg.NodePool = "agents"
	if cfg.Token, err = own.nomad.NewToken(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := nomad.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	b := &bench{T: t, s: own, cluster: "cluster-namespace", r: r, config: cfg}

	job := scheduler.Job{
		SandboxID: "ns1", ClusterID: b.cluster, KeyRef: fsm.SecretRef{Path: "sandboxes/ns1/session", Version: 1},
		Template: fsm.Template{
			Driver: fsm.DriverRawExec, Isolation: fsm.IsolationNone, Command: s.agent, Args: []string{
				"--host",
				"127.0.0.1",
				"--port",
				"${port.agent_server}",
			},
			WorkingDir: "project", CPU: 100, Memory: 64, Ports: map[string]int{fsm.PortAgentServer: 0},
		},
	}
	entry := "secret/data/agents/sandbox-ns1/session"
	data := map[string]any{"data": map[string]string{"key": key("ns1"), "secret_key": "canary-secret"}}
	b.must(own.vault.Do(t.Context(), http.MethodPost, entry, data, nil))
	job, o := b.started(job)
	b.createConversation(o, job, conversation)

	foreign := fmt.Sprintf(`
job "sandbox-ns1" {
  namespace = "default"
  node_pool = "all"
  group "sandbox" {
    reschedule {
      attempts  = 0
      unlimited = false
    }
    restart {
      attempts = 0
      mode     = "fail"
    }
    task "agent" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["600"]
      }
      vault {}
      template {
        data        = <<EOT
{{ with secret %q }}{{ .Data.data.key }}{{ end }}
EOT
        destination = "secrets/stolen"
      }
    }
  }
}`, entry)
	b.must(own.nomad.RunHCL(t.Context(), foreign))
	var last string
	err = await(t.Context(), func() error {
		var allocs []*api.AllocationListStub
		if err := own.nomad.Do(t.Context(), http.MethodGet, "job/sandbox-ns1/allocations?namespace=default", nil,
			&allocs); err != nil {
			return err
		}
		for _, a := range allocs {
			ts := a.TaskStates["agent"]
			if ts == nil {
				continue
			}
			for _, e := range ts.Events {
				last = e.Type + ": " + e.DisplayMessage
				if strings.Contains(last, "nomad_namespace") && strings.Contains(last, "claim") {
					return nil
				}
			}
		}
		return errors.New("Vault let it log in")
	})
	t.Logf("a job of the sandbox's name in another namespace: %s", last)
	if err != nil {
		t.Fatalf("%v; its last event: %s", err, last)
	}

	// In the cluster's own namespace Nomad itself refuses others.
	var parsed map[string]any
	b.must(own.nomad.Do(t.Context(), http.MethodPost, "jobs/parse", map[string]any{
		"JobHCL": strings.Replace(foreign, `"default"`, `"agents"`, 1), "Canonicalize": true,
	}, &parsed))
	for name, rules := range map[string]string{
		"who may read the namespace": `namespace "agents" { policy = "read" }`,
		"who may write in another":   `namespace "default" { policy = "write" }`,
		"who may do all but submit jobs": `namespace "agents" { capabilities = ["read-job", "list-jobs", "read-logs", ` +
			`"scale-job", "dispatch-job"] }`,
	} {
		policy := fmt.Sprintf("p%d", time.Now().UnixNano())
		b.must(own.nomad.Do(t.Context(), http.MethodPost, "acl/policy/"+policy,
			map[string]string{"Name": policy, "Rules": rules}, nil))
		var token struct{ SecretID string }
		request := map[string]any{"Type": "client", "Policies": []string{policy}}
		b.must(own.nomad.Do(t.Context(), http.MethodPost, "acl/token", request, &token))
		err := own.nomad.DoAs(t.Context(), token.SecretID, http.MethodPost, "jobs", map[string]any{"Job": parsed}, nil)
		t.Logf("%s: %v", name, err)
		var status *local.StatusError
		if !errors.As(err, &status) || status.Status != http.StatusForbidden {
			t.Errorf("%s submits a job of the sandbox's name: %v", name, err)
		}
	}
	if o := b.observed(job); !o.Up {
		t.Errorf("the sandbox after all that: %+v", o)
	}

	// Another driver than the namespace's is refused, and the failure says so.
	other := job
	other.SandboxID, other.HasVersion, other.ModifyIndex = "ns2", false, 0
	other.KeyRef.Path = "sandboxes/ns2/session"
	other.Template.Driver, other.Template.Readiness = fsm.DriverMock, fsm.ReadinessAllocation
	other.Template.Command, other.Template.Isolation = "", ""
	var refused *scheduler.Failure
	if err := r.Start(t.Context(), other); !errors.As(err, &refused) || refused.Reason != fsm.ReasonSpec ||
		!strings.Contains(refused.Detail, "is not allowed in namespace") {
		t.Errorf("a driver that the namespace does not have: %v", err)
	}
	b.remove(other)
	// The whole life with what deploy/nomad/bivouac.policy.hcl allows, in a node pool.
	for range 2 {
		job = b.paused(job)
		job, o = b.started(job)
		b.hasConversation(o, job, conversation)
	}
	job = b.paused(job)
	b.remove(job)
	if o := b.observed(job); o.Exists || o.Workspace {
		t.Errorf("after the removal: %+v", o)
	}
}

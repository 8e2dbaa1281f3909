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

// A cluster with a namespace of its own: its sandboxes get their keys, and a job
// of a sandbox's name in another namespace may not even log in to Vault.
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
		Dir: filepath.Join(dir, "nomad"), Vault: own.vault, Namespace: "agents",
	})
	if err != nil {
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
	cfg.Address, cfg.VaultMount, cfg.KillTimeout, cfg.Namespace = own.nomad.Address, "secret", 2*time.Second, "agents"
	r, err := nomad.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	b := &bench{T: t, s: own, cluster: "cluster-namespace", r: r, config: cfg}

	job := scheduler.Job{
		SandboxID: "ns1", ClusterID: b.cluster, KeyRef: fsm.SecretRef{Path: "sandboxes/ns1/session", Version: 1},
		Template: fsm.Template{
			Driver: fsm.DriverRawExec, Command: s.agent, Args: []string{"--host", "127.0.0.1", "--port", "${port.agent_server}"},
			WorkingDir: "project", CPU: 100, Memory: 64, Ports: map[string]int{fsm.PortAgentServer: 0},
		},
	}
	entry := "secret/data/agents/sandbox-ns1/session"
	data := map[string]any{"data": map[string]string{"key": key("ns1"), "secret_key": "canary-secret"}}
	b.must(own.vault.Do(t.Context(), http.MethodPost, entry, data, nil))
	b.started(job)

	foreign := fmt.Sprintf(`
job "sandbox-ns1" {
  namespace = "default"
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
		if err := own.nomad.Do(t.Context(), http.MethodGet, "job/sandbox-ns1/allocations?namespace=default", nil, &allocs); err != nil {
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
}

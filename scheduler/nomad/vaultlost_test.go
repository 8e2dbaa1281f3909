package nomad_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/access"
	"bivouac.dev/bivouac/scheduler/nomad"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

// ownLife is a life on its own Nomad and Vault, to break them. extra is merged over the Nomad
// agent's configuration.
func ownLife(t *testing.T, cluster, extra string, change func(*scheduler.Config)) *life {
	t.Helper()
	s := useStack(t)
	own := &stack{agent: s.agent}
	dir := t.TempDir()
	var err error
	if own.vault, err = local.StartVault(t.Context(), local.VaultOptions{Dir: filepath.Join(dir, "vault")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = own.vault.Close() })
	own.nomad, err = local.StartNomad(t.Context(),
		local.NomadOptions{Dir: filepath.Join(dir, "nomad"), Vault: own.vault, Extra: extra})
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
	cfg.Address, cfg.VaultMount, cfg.KillTimeout = own.nomad.Address, "secret", 2*time.Second
	r, err := nomad.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	sched := scheduler.DefaultConfig()
	change(&sched)
	b := &bench{T: t, s: own, cluster: cluster, r: r, config: cfg}
	return lifeOf(t, b, nomadtest.NewCluster(cluster), sched)
}

// revokeTokens revokes every token that Nomad's tasks logged in for, as a security team does, or
// as a Vault restored from a backup has it.
func (l *life) revokeTokens() {
	l.Helper()
	l.must(l.s.vault.Do(l.Context(), http.MethodPost, "sys/leases/revoke-prefix/auth/jwt-nomad/login", nil, nil))
}

// up waits until Nomad reports that the task runs: RUNNING comes earlier.
func (l *life) up(alloc string) {
	l.Helper()
	l.until("Nomad's word", func() error {
		a, _, err := l.s.client.Allocations().Info(alloc, nil)
		if err == nil && a.ClientStatus != api.AllocClientStatusRunning {
			err = errors.New(a.ClientStatus)
		}
		return err
	})
}

// untouched waits for a while and fails when the sandbox's task was stopped, killed or started
// again.
func (l *life) untouched(id, alloc string, d time.Duration) {
	l.Helper()
	looked := 0
	for end := time.Now().Add(d); time.Now().Before(end); {
		if a, _, err := l.s.client.Allocations().Info(alloc, nil); err == nil {
			looked++
			l.running(id, a)
		}
		if st := l.store.Sandbox(id).Status; st.State != fsm.SandboxRunning {
			l.Fatalf("sandbox %+v", st)
		}
		select {
		case <-l.Context().Done():
			l.Fatal(l.Context().Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
	if looked == 0 {
		l.Fatal("Nomad never said how the task is")
	}
}

// running fails when an allocation's task does not run, or was started again.
func (l *life) running(id string, a *api.Allocation) {
	l.Helper()
	ts := a.TaskStates["agent"]
	if ts == nil {
		l.Fatalf("the allocation is %s and has no task; sandbox %+v", a.ClientStatus, l.store.Sandbox(id).Status)
	}
	if ts.State == "running" && ts.Restarts == 0 && a.ClientStatus != api.AllocClientStatusFailed {
		return
	}
	for _, e := range ts.Events {
		l.Logf("%s: %s", e.Type, e.DisplayMessage)
	}
	l.Fatalf("the task is %s after %d restarts; sandbox %+v", ts.State, ts.Restarts, l.store.Sandbox(id).Status)
}

// shortTokens makes tasks' tokens end soon unless they are renewed.
func (l *life) shortTokens() {
	l.Helper()
	l.must(l.s.vault.Do(l.Context(), http.MethodPost, "auth/jwt-nomad/role/nomad-workloads", map[string]any{
		"role_type": "jwt", "user_claim": "/nomad_job_id", "user_claim_json_pointer": true, "bound_audiences": []string{
			"vault.io",
		},
		"token_period": "20s",
	}, nil))
}

// restartNomad restarts Nomad's agent; the tasks run on.
func (l *life) restartNomad() {
	l.Helper()
	l.must(l.s.nomad.Stop())
	l.must(l.s.nomad.Start(l.Context()))
}

// again pauses and resumes the sandbox.
func (l *life) again(id string) {
	l.Helper()
	l.wish(&fsm.SandboxPauseBody{ID: id})
	l.reach(id, fsm.SandboxPaused)
	l.wish(&fsm.SandboxResumeBody{ID: id})
	l.reach(id, fsm.SandboxRunning)
}

// The key is needed only when the task starts. A revoked token does not end what runs, even if
// logins fail too, as with a restored Vault that does not know this Nomad.
func TestLife_VaultTokenRevoked_RunsOn(t *testing.T) {
	t.Parallel()
	l := ownLife(t, "cluster-vault-lost", "", func(*scheduler.Config) {})
	l.shortTokens()
	id := l.create(l.template(fsm.DriverRawExec))
	placed := l.reach(id, fsm.SandboxRunning).Placement
	l.up(placed.AllocID)
	l.revokeTokens()
	l.must(l.s.vault.Do(l.Context(), http.MethodDelete, "sys/auth/jwt-nomad", nil, nil))
	l.untouched(id, placed.AllocID, 40*time.Second)
}

// An outage of Vault that is longer than a token's period.
func TestLife_VaultAwayBeyondTheTokensPeriod_RunsOn(t *testing.T) {
	t.Parallel()
	l := ownLife(t, "cluster-vault-outage", "", func(*scheduler.Config) {})
	l.shortTokens()
	id := l.create(l.template(fsm.DriverRawExec))
	placed := l.reach(id, fsm.SandboxRunning).Placement
	l.up(placed.AllocID)
	l.must(l.s.vault.Seal(l.Context()))
	l.untouched(id, placed.AllocID, 40*time.Second)
	l.must(l.s.vault.Unseal(l.Context()))
	l.again(id)
}

// A restart of Nomad's agent renders the template again. With the configuration of deploy/nomad
// that waits for Vault without end.
func TestLife_NomadRestartedWithVaultAway_RunsOn(t *testing.T) {
	t.Parallel()
	l := ownLife(t, "cluster-vault-away", "", func(*scheduler.Config) {})
	id := l.create(l.template(fsm.DriverRawExec))
	placed := l.reach(id, fsm.SandboxRunning).Placement
	l.up(placed.AllocID)
	l.must(l.s.vault.Seal(l.Context()))
	l.restartNomad()
	l.untouched(id, placed.AllocID, 40*time.Second)
	l.must(l.s.vault.Unseal(l.Context()))
	l.again(id)
}

// The same after the token has ended, as it has in most sandboxes by then.
func TestLife_NomadRestartedWithADeadToken_RunsOn(t *testing.T) {
	t.Parallel()
	l := ownLife(t, "cluster-token-dead", "", func(*scheduler.Config) {})
	l.shortTokens()
	id := l.create(l.template(fsm.DriverRawExec))
	placed := l.reach(id, fsm.SandboxRunning).Placement
	l.up(placed.AllocID)
	l.revokeTokens()
	l.restartNomad()
	l.untouched(id, placed.AllocID, 40*time.Second)
	l.again(id)
}

// Where the client's vault_retry is bounded the template's retries end the task. The sandbox is
// started again until Vault is back.
func TestLife_TemplateRetriesEndTheTask_IsStartedAgain(t *testing.T) {
	t.Parallel()
	l := ownLife(t, "cluster-vault-retry", `
client {
  template {
    vault_retry {
      attempts    = 3
      backoff     = "250ms"
      max_backoff = "1s"
    }
  }
}
`, func(*scheduler.Config) {})
	id := l.create(l.template(fsm.DriverRawExec))
	placed := l.reach(id, fsm.SandboxRunning).Placement
	l.up(placed.AllocID)
	l.must(l.s.vault.Seal(l.Context()))
	l.restartNomad()
	l.until("the end of the task", func() error {
		if st := l.store.Sandbox(id).Status; st.Reason != fsm.ReasonSecretStore {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	st := l.store.Sandbox(id).Status
	t.Logf("%s: %s", st.State, st.Detail)
	if st.State != fsm.SandboxStarting {
		t.Errorf("sandbox %+v", st)
	}
	l.must(l.s.vault.Unseal(l.Context()))
	l.reach(id, fsm.SandboxRunning)
}

// With Vault away a sandbox in use is not paused as idle.
func TestLife_VaultAway_IsNotPausedAsIdle(t *testing.T) {
	t.Parallel()
	l := ownLife(t, "cluster-vault-idle", "", func(c *scheduler.Config) {
		c.Installation.Policy.IdleTimeout = 5 * time.Second
	})
	id := l.create(l.template(fsm.DriverRawExec))
	placed := l.reach(id, fsm.SandboxRunning).Placement
	ctx, cancel := context.WithCancel(l.Context())
	defer cancel()
	go func() {
		// A user at work, through the sandbox's own API.
		for ctx.Err() == nil {
			_ = get(ctx, access.AgentURL(placed)+"/api/conversations/count", key(id))
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}()
	l.must(l.s.vault.Seal(l.Context()))
	begin := time.Now()
	err := awaitFor(l.Context(), 90*time.Second, func() error {
		if sb := l.store.Sandbox(id); sb.Desired == fsm.DesiredPaused {
			return nil
		}
		return errors.New("not paused")
	})
	l.must(l.s.vault.Unseal(l.Context()))
	if err == nil {
		t.Fatalf("paused as %q %s after Vault was sealed, with a call every second", l.store.Sandbox(id).PausedBy,
			time.Since(begin).Round(time.Second))
	}
	cancel()
	l.until("paused once it is idle and says so", func() error {
		if sb := l.store.Sandbox(id); sb.PausedBy != fsm.PausedByIdle {
			return fmt.Errorf("%+v", sb.Status)
		}
		return nil
	})
}

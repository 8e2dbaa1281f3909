package process

import (
	"path/filepath"
	"syscall"
	"testing"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/access"
	"bivouac.dev/bivouac/scheduler/agent"
)

// TestReal_MemberIsClaimedKilledPausedAndResumed runs a pool member's life with the real agent
// server.
func TestReal_MemberIsClaimedKilledPausedAndResumed(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "sandbox-agent")
	if err := local.BuildGo(t.Context(), "./cmd/sandbox-agent", bin); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t.TempDir(), "")
	cfg.AgentBinary, cfg.AgentArgs = bin, nil
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	c := agent.New(agent.Config{})
	defer c.Close()
	in := func(state string) func(scheduler.Observed) bool {
		return func(o scheduler.Observed) bool {
			got, err := c.InitState(ctx, access.AgentURL(o.Placement))
			return o.Placement != nil && err == nil && got == state
		}
	}
	bind := func(o scheduler.Observed) string {
		t.Helper()
		url := access.AgentURL(o.Placement)
		if err := c.Init(ctx, url, "SEALCANARY", agent.InitRequest{SessionAPIKeys: []string{testKey}}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Prove(ctx, url, testKey, true); err != nil {
			t.Fatal(err)
		}
		return url
	}

	job := testJob("s1")
	job.Deferred = true
	if err := r.Start(ctx, job); err != nil {
		t.Fatal(err)
	}
	url := bind(await(t, r, "s1", "a dormant member", in(agent.StateDormant)))
	id := agent.DashedID("6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01")
	req := agent.CreateRequest{
		ConversationID: id, Workspace: agent.Workspace{
			Kind:       "LocalWorkspace",
			WorkingDir: r.look("s1", "c1").Placement.Workspace,
		},
		AgentSettings:      agent.AgentSettings{AgentKind: "openhands", LLM: agent.LLM{Model: "m", UsageID: "agent"}},
		ConfirmationPolicy: agent.Kind{Kind: "NeverConfirm"},
	}
	if _, _, err := c.CreateConversation(ctx, url, testKey, req); err != nil {
		t.Fatal(err)
	}
	there := func(url string) {
		t.Helper()
		infos, err := c.Conversations(ctx, url, testKey, []string{id})
		if err != nil || infos[0] == nil {
			t.Fatalf("the conversation is not there: %v, %v", infos, err)
		}
	}

	if err := syscall.Kill(pidOf(t, r, "s1"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	there(bind(await(t, r, "s1", "a dormant member after the kill", in(agent.StateDormant))))

	job.ModifyIndex = r.look("s1", "c1").ModifyIndex
	if err := r.Stop(ctx, job); err != nil {
		t.Fatal(err)
	}
	o := await(t, r, "s1", "its end", func(o scheduler.Observed) bool { return o.Live == 0 })
	job.ModifyIndex, job.HasVersion, job.Deferred = o.ModifyIndex, true, false
	if err := r.Start(ctx, job); err != nil {
		t.Fatal(err)
	}
	o = await(t, r, "s1", "the sandbox with its key", func(o scheduler.Observed) bool {
		if o.Placement == nil {
			return false
		}
		_, err := c.Prove(ctx, access.AgentURL(o.Placement), testKey, true)
		return err == nil
	})
	there(access.AgentURL(o.Placement))
}

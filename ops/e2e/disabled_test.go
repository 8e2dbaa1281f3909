package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// disabledConfig gives pages hosts of their own, and ends streams soon on a node without a leader.
const disabledConfig = `
sandboxes {
  url       = "proxy"
  domain    = "sandboxes.test"
  max_stale = "10s"
}
`

// disabledSpecs: sandboxes with a port for pages, and one whose start takes for ever.
const disabledSpecs = `
spec "pages" {
  driver      = "raw_exec"
  isolation   = "none"
  command     = "AGENT"
  args        = ["--host", "HOST", "--port", "${port.agent_server}"]
  working_dir = "project"
  cpu         = 50
  memory      = 64
  port "AGENT_SERVER" {}
  port "WORKER_1" {}
}
spec "slow" {
  driver        = "raw_exec"
  isolation     = "none"
  command       = "/bin/sleep"
  args          = ["86400"]
  working_dir   = "project"
  cpu           = 50
  memory        = 64
  start_timeout = "10m"
  port "AGENT_SERVER" {}
}
`

// lockoutBound is what is promised for a lockout; lockoutPatience is how long the drill waits on a
// busy machine.
const (
	lockoutBound    = 5 * time.Second
	lockoutPatience = 30 * time.Second
)

// TestDisabledUser locks users out of three nodes on the real stack: by another key for a sandbox,
// by `users disable` and by `users delete --purge`. Through every node nothing of theirs gets in,
// open streams end, and another user notices nothing. Without a leader streams end after max_stale.
func TestDisabledUser(t *testing.T) {
	f := testcluster.Start(t, testcluster.Options{Config: disabledConfig, Specs: disabledSpecs})
	alice, bob := newPerson(t, f, "alice"), newPerson(t, f, "bob")
	bobs := bob.streamEverywhere(t)
	t.Run("Operated", func(t *testing.T) { operated(t, bob) })
	t.Run("KeyReplaced", func(t *testing.T) { replacedKey(t, alice) })
	t.Run("Disabled", func(t *testing.T) { disabledUser(t, alice) })
	for _, s := range bobs {
		for what, done := range s.ended {
			select {
			case <-done:
				t.Errorf("bob's: %s through %s ended", what, s.node)
			default:
			}
		}
	}
	bob.everyWay(t, "bob all the time", bob.ways(), opens)
	t.Run("NoLeader", func(t *testing.T) { noLeader(t, bob) })
	t.Run("Purged", func(t *testing.T) { purgedUser(t, alice, bob) })
}

// operated reads what a user has by the operators' commands.
func operated(t *testing.T, p *person) {
	run := func(args ...string) string {
		t.Helper()
		return p.f.Run(t, append(args, "--address", p.f.Nodes[1].Base, "--api-key-file", p.f.KeyFile)...)
	}
	for want, args := range map[string][]string{
		"status        RUNNING\n":                    {"sandboxes", "show", p.id},
		"conversation created":                       {"sandboxes", "logs", p.id}, // the agent server writes to stderr
		"ID  USER  SANDBOX  CREATED  UPDATED  TITLE": {"conversations", "list", "--user", p.name},
	} {
		testcluster.Eventually(t, strings.Join(args, " "), func() error {
			if out := run(args...); !strings.Contains(out, want) {
				return fmt.Errorf("it printed %q, without %q", out, want)
			}
			return nil
		})
	}
}

// replacedKey gives a running and a paused sandbox another key.
func replacedKey(t *testing.T, p *person) {
	f, old := p.f, *p
	if err := p.inside(t).WriteFile(p.file, "kept"); err != nil {
		t.Fatal(err)
	}
	p.everyWay(t, "before", p.ways(), opens)
	ways := old.ways()
	delete(ways, "the user's key")
	delete(ways, "the user's key at the sandbox")
	all, begin := p.streamEverywhere(t), time.Now()
	testcluster.Eventually(t, "the key is replaced", func() error { // until the protocol's version is raised
		return p.Do(http.MethodPost, "/api/v1/sandboxes/"+p.id+"/rotate-key", nil, nil)
	})
	ended := awaitEnd(t, begin, lockoutPatience, all)
	refused := old.everyWay(t, "the key is replaced", ways, closes)
	p.open(t)
	ran := time.Since(begin)
	if p.key == old.key {
		t.Error("it has the same key")
	}
	if text, err := p.inside(t).ReadFile(p.file); err != nil || text != "kept" {
		t.Errorf("its file holds %q: %v", text, err)
	}
	p.everyWay(t, "by the new key", p.ways(), opens)
	out := f.Run(t, "sandboxes", "logs", "--previous", p.id, "--address", f.Nodes[1].Base, "--api-key-file", f.KeyFile)
	if !strings.Contains(out, "conversation created") {
		t.Errorf("the run before wrote %q", out)
	}
	old.everyWay(t, "by the old key", ways, closes)

	p.Change(t, p.id, "pause")
	p.AwaitSandbox(t, p.id, "PAUSED")
	second := *p
	f.Run(t, "sandboxes", "rotate-key", p.id, "--address", f.Nodes[1].Base, "--api-key-file", f.KeyFile)
	p.AwaitSandbox(t, p.id, "PAUSED")
	p.Change(t, p.id, "resume")
	p.open(t)
	p.everyWay(t, "by the third key", p.ways(), opens)
	for what, ask := range second.ways() {
		if strings.HasPrefix(what, "the user's") {
			continue
		}
		if status, err := ask(f.Nodes[2]); err != nil || !closes(status) {
			t.Errorf("%s of before the pause: %d %v", what, status, err)
		}
	}
	t.Logf("--- verdict: streams by the old key ended after %s, requests were refused after %s, "+
		"it ran with the new key after %.1f s",
		within(ended), within(refused), ran.Seconds())
}

// disabledUser disables a user on one node, and enables the user on another.
func disabledUser(t *testing.T, p *person) {
	f := p.f
	f.SetDefault(t, "slow")
	task := p.StartConversation(t)
	all := p.streamEverywhere(t)
	begin := time.Now()
	f.Run(t, "users", "disable", p.name, "--address", f.Nodes[0].Base, "--api-key-file", f.KeyFile)
	ended := awaitEnd(t, begin, lockoutPatience, all)
	refused := p.everyWay(t, "disabled", p.ways(), closes)
	for _, n := range f.Nodes {
		a, err := testcluster.Client{Base: n.Base, Key: p.Key}.Try(http.MethodPost, "/api/v1/app-conversations",
			map[string]any{})
		if err != nil || a.Status != http.StatusUnauthorized {
			t.Errorf("a start through %s: %v %v", n.Name, a, err)
		}
	}
	testcluster.Eventually(t, "the sandbox is paused", func() error {
		var sb struct{ Status string }
		err := f.Nodes[2].Get("/api/v1/operator/sandboxes/"+p.id, &sb)
		if err == nil && sb.Status != "PAUSED" {
			err = errors.New(sb.Status)
		}
		return err
	})
	f.Run(t, "users", "enable", p.name, "--address", f.Nodes[1].Base, "--api-key-file", f.KeyFile)
	testcluster.Eventually(t, "the user is in again", func() error { return p.Get("/api/v1/sandboxes/search", nil) })
	if got, err := p.Task(task); err != nil || got.Status != "ERROR" ||
		!strings.Contains(got.Text(), "the user is disabled") {
		t.Errorf("the start that was open: %+v %v", got, err)
	}
	f.SetDefault(t, "pages")
	p.Change(t, p.id, "resume")
	p.open(t)
	back := p.everyWay(t, "enabled", p.ways(), opens)
	t.Logf("--- verdict: streams ended after %s, requests were refused after %s through three nodes; "+
		"enabled and resumed, all worked after %.1f s",
		within(ended), within(refused), back.Seconds())
}

// noLeader stops two nodes. The third can't learn who is locked out, and ends its streams.
func noLeader(t *testing.T, p *person) {
	f := p.f
	alone := f.Followers(t)[0]
	all := []streams{p.stream(t, alone)}
	begin := time.Now()
	for _, n := range f.Nodes {
		if n == alone {
			continue
		}
		pid := n.Pid()
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	}
	ended := awaitEnd(t, begin, 2*time.Minute, all)
	if ended < 5*time.Second {
		t.Errorf("the streams ended %s after the leader was gone: max_stale is 10 s", ended)
	}
	t.Logf("--- verdict: without a leader streams ended after %.1f s, max_stale is 10 s", ended.Seconds())
}

// purgedUser deletes one user with everything. The other's values stay in Vault.
func purgedUser(t *testing.T, gone, stays *person) {
	f := gone.f
	f.Leader(t)
	of := func(p *person) (count int, err error) {
		entries, err := f.VaultEntries()
		for _, e := range entries {
			if strings.Contains(e, "/users/"+p.name+"/") || strings.Contains(e, "sandbox-"+p.id+"/") {
				count++
			}
		}
		return count, err
	}
	before, err := of(gone)
	if err != nil || before < 2 {
		t.Fatalf("%s has %d entries in Vault: %v", gone.name, before, err)
	}
	others, err := of(stays)
	if err != nil || others < 2 {
		t.Fatalf("%s has %d entries in Vault: %v", stays.name, others, err)
	}
	out := f.Run(t, "users", "delete", "--purge", gone.name, "--yes", "--address", f.Nodes[1].Base, "--api-key-file",
		f.KeyFile)
	if !strings.Contains(out, "is deleted") {
		t.Errorf("it printed %q", out)
	}
	testcluster.Eventually(t, "everything of the user is gone", func() error {
		left, err := of(gone)
		if err == nil && left > 0 {
			err = fmt.Errorf("%d entries in Vault", left)
		}
		volumes, volumeErr := f.Volumes()
		for _, v := range volumes {
			if strings.Contains(v, gone.id) {
				err = errors.Join(err, fmt.Errorf("the workspace %s", v))
			}
		}
		return errors.Join(err, volumeErr)
	})
	gone.everyWay(t, "deleted", gone.ways(), closes)
	if now, err := of(stays); err != nil || now != others {
		t.Errorf("%s had %d entries in Vault and has %d: %v", stays.name, others, now, err)
	}
	stays.everyWay(t, "after another was deleted", stays.ways(), opens)
	t.Logf("--- verdict: %d entries in Vault went, the other user's %d stay", before, others)
}

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// The specs that can't work, each for a different reason.
const brokenSpecs = `
spec "huge" {
  driver  = "raw_exec"
  isolation = "none"
  command = "AGENT"
  args    = ["--host", "127.0.0.1", "--port", "${port.agent_server}"]
  working_dir = "project"
  cpu     = 900000
  memory  = 64
  port "AGENT_SERVER" {}
}
spec "crash" {
  driver  = "raw_exec"
  isolation = "none"
  command = "/bin/false"
  working_dir = "project"
  cpu     = 50
  memory  = 64
  port "AGENT_SERVER" {}
}
spec "deaf" {
  driver        = "raw_exec"
  isolation     = "none"
  command       = "/bin/sleep"
  args          = ["86400"]
  working_dir = "project"
  cpu           = 50
  memory        = 64
  start_timeout = "5s"
  port "AGENT_SERVER" {}
}
`

// operators is a test cluster for the mistakes of operators.
type operators struct {
	*testcluster.Cluster
	spec string
	node *testcluster.Node // the node that gets the requests
}

// The tests below do to the real stack what operators do by intent or by mistake, and what happens
// to them. After each part the sandbox has the right state, with a reason unless that is RUNNING,
// and can be deleted. Parts that harm Nomad or Vault in the same way share a stack.

// TestOperator_ChangesJobs: an operator stops, purges and collects a sandbox's job, and drains its
// Nomad client.
func TestOperator_ChangesJobs(t *testing.T) {
	o := newOperators(t)
	o.forEachDriver(t, "JobStoppedByHand", o.jobStopped)
	o.forEachDriver(t, "JobPurgedByHand", o.jobPurged)
	o.forEachDriver(t, "SystemGC", o.systemGC)
	o.forEachDriver(t, "ClientDrained", o.clientDrained)
}

// TestOperator_StopsTheStores: Nomad is killed and comes back, Vault is sealed and unsealed.
func TestOperator_StopsTheStores(t *testing.T) {
	o := newOperators(t)
	o.forEachDriver(t, "NomadKilledAndBack", o.nomadKilled)
	o.forEachDriver(t, "VaultSealed", o.vaultSealed)
}

// TestOperator_WipesNomad: Nomad's servers, or all of Nomad, lose their data.
func TestOperator_WipesNomad(t *testing.T) {
	o := newOperators(t)
	o.forEachDriver(t, "NomadServersWiped", o.serversWiped)
	o.forEachDriver(t, "NomadWiped", o.nomadWiped)
}

// TestOperator_Deletes: a sandbox is deleted in every state.
func TestOperator_Deletes(t *testing.T) {
	o := newOperators(t)
	o.part(t, "raw/DeletedInEveryState", o.deletedInEveryState)
	if o.spec = "docker"; long() && slices.Contains(o.Drivers(), o.spec) {
		o.part(t, "docker/DeletedInEveryState", o.deletedInEveryState)
	}
}

// TestOperator_SeesFailures: sandboxes that can't start say why and can be deleted, also while
// Nomad is away.
func TestOperator_SeesFailures(t *testing.T) {
	o := newOperators(t)
	o.node = o.Nodes[1]
	o.part(t, "EveryFailureHasItsReasonAndCanBeDeleted", o.failures)
	o.part(t, "DeletedWhileNomadIsAway", o.deletedWhileAway)
}

func newOperators(t *testing.T) *operators {
	t.Helper()
	f := testcluster.Start(t, testcluster.Options{Docker: true, Specs: brokenSpecs})
	return &operators{Cluster: f, spec: "raw", node: f.Nodes[0]}
}

// forEachDriver runs one part for each driver.
func (o *operators) forEachDriver(t *testing.T, name string, run func(*testing.T)) {
	t.Helper()
	for _, o.spec = range o.Drivers() {
		o.part(t, o.spec+"/"+name, run)
	}
}

// part runs one part of the drill and prints its result. After a failed part it cleans up for
// the next one.
func (o *operators) part(t *testing.T, name string, run func(*testing.T)) {
	t.Helper()
	begin, word := time.Now(), "as it should be"
	if !t.Run(name, run) {
		word = "FAILED"
	}
	t.Logf("--- verdict: %s: %s (%.1f s)", name, word, time.Since(begin).Seconds())
	if word == "FAILED" {
		o.clear(t)
	}
}

// clear deletes every sandbox.
func (o *operators) clear(t *testing.T) {
	t.Helper()
	var page struct{ Items []testcluster.Sandbox }
	err := o.node.Get("/api/v1/sandboxes/search?limit=100", &page)
	for _, sb := range page.Items {
		_, deleteErr := o.node.Try(http.MethodDelete, "/api/v1/sandboxes/"+sb.ID, nil)
		err = errors.Join(err, deleteErr)
	}
	if err = errors.Join(err,
		testcluster.Await(testcluster.Patience, func() error { return o.Audit(testcluster.Expected{}) })); err != nil {
		t.Logf("clearing up: %v", err)
	}
}

// begin starts a sandbox with a file in it.
func (o *operators) begin(t *testing.T) string {
	t.Helper()
	id := o.node.StartSandbox(t, o.spec)
	keepFile(t, o.node.AwaitSandbox(t, id, "RUNNING"), workspaceFile)
	return id
}

// end checks the file in the running sandbox, deletes the sandbox and checks that nothing is
// left.
func (o *operators) end(t *testing.T, id string) {
	t.Helper()
	hasFile(t, o.node.AwaitSandbox(t, id, "RUNNING"), workspaceFile)
	o.Holds(t, testcluster.Expected{Running: []string{id}})
	o.remove(t, id)
}

func (o *operators) remove(t *testing.T, id string) {
	t.Helper()
	o.node.Change(t, id, "delete")
	o.Holds(t, testcluster.Expected{})
}

// nomadDo changes Nomad by hand.
func (o *operators) nomadDo(t *testing.T, method, path string, in any) {
	t.Helper()
	if err := o.Nomad.Do(t.Context(), method, path, in, nil); err != nil {
		t.Fatal(err)
	}
}

// placed returns the sandbox's live allocations.
func (o *operators) placed(t *testing.T, id string) (live []string) {
	t.Helper()
	allocs, err := o.Allocs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range allocs {
		if a.JobID == "sandbox-"+id && a.Live() {
			live = append(live, a.ID)
		}
	}
	return live
}

// awaitOther waits until the sandbox has another allocation than before.
func (o *operators) awaitOther(t *testing.T, id string, before []string) {
	t.Helper()
	testcluster.Eventually(t, "sandbox "+id+" is placed anew", func() error {
		for _, alloc := range o.placed(t, id) {
			if !slices.Contains(before, alloc) {
				return nil
			}
		}
		return errors.New("it is not")
	})
}

func (o *operators) jobStopped(t *testing.T) {
	id := o.begin(t)
	before := o.placed(t, id)
	o.nomadDo(t, http.MethodDelete, "job/sandbox-"+id, nil)
	o.awaitOther(t, id, before)
	o.end(t, id)
}

func (o *operators) jobPurged(t *testing.T) {
	id := o.begin(t)
	before := o.placed(t, id)
	o.nomadDo(t, http.MethodDelete, "job/sandbox-"+id+"?purge=true", nil)
	o.awaitOther(t, id, before)
	o.end(t, id)
}

func (o *operators) systemGC(t *testing.T) {
	id := o.begin(t)
	o.GC(t)
	o.node.AwaitSandbox(t, id, "RUNNING")
	o.node.Change(t, id, "pause")
	o.node.AwaitSandbox(t, id, "PAUSED")
	o.GC(t)
	testcluster.Eventually(t, "Nomad has forgotten the allocation", func() error {
		allocs, err := o.Allocs()
		if err == nil && slices.ContainsFunc(allocs, func(a testcluster.Alloc) bool { return a.JobID == "sandbox-"+id }) {
			o.GC(t)
			err = errors.New("it has not")
		}
		return err
	})
	o.Holds(t, testcluster.Expected{Paused: []string{id}})
	o.node.Change(t, id, "resume")
	o.end(t, id)
}

// clientDrained: the sandbox is paused with the reason, and runs again by itself, with its
// workspace, when its client takes jobs again.
func (o *operators) clientDrained(t *testing.T) {
	id := o.begin(t)
	var clients []struct{ ID string }
	if err := o.Nomad.Do(t.Context(), http.MethodGet, "nodes", nil, &clients); err != nil || len(clients) != 1 {
		t.Fatalf("the clients are %v: %v", clients, err)
	}
	drain := "node/" + clients[0].ID + "/drain"
	o.nomadDo(t, http.MethodPut, drain,
		map[string]any{"DrainSpec": map[string]any{"Deadline": 1, "IgnoreSystemJobs": true}})
	undrain := func() { o.nomadDo(t, http.MethodPut, drain, map[string]any{"DrainSpec": nil, "MarkEligible": true}) }
	reason := func(t *testing.T) { o.says(t, id, "takes no jobs (it is ineligible)", "PAUSED") }
	if !t.Run("Reason", reason) {
		undrain() // for the following parts
		t.FailNow()
	}
	undrain()
	o.node.AwaitSandbox(t, id, "RUNNING")
	o.end(t, id)
}

// says waits until the sandbox is in one of the states with those words.
func (o *operators) says(t *testing.T, id, words string, states ...string) {
	t.Helper()
	testcluster.Eventually(t, fmt.Sprintf("sandbox %s says %q", id, words), func() error {
		sb, err := o.node.Sandbox(id)
		if err == nil && (!slices.Contains(states, sb.Status) ||
			!strings.Contains(strings.ToLower(sb.Detail()), strings.ToLower(words))) {
			err = fmt.Errorf("it is %s (%s)", sb.Status, sb.Detail())
		}
		return err
	})
}

// recovers waits until the sandbox runs again. One in ERROR is resumed, as its user would do.
func (o *operators) recovers(t *testing.T, id string) {
	t.Helper()
	testcluster.Eventually(t, "sandbox "+id+" recovers", func() error {
		sb, err := o.node.Sandbox(id)
		if err == nil && sb.Status == "ERROR" {
			o.node.Change(t, id, "resume")
		}
		if err == nil {
			_, err = o.node.SandboxIn(id, "RUNNING")
		}
		return err
	})
}

func (o *operators) nomadKilled(t *testing.T) {
	id := o.begin(t)
	before := o.placed(t, id)
	if err := o.Nomad.Kill(); err != nil {
		t.Fatal(err)
	}
	// The sandbox runs without Nomad.
	hasFile(t, o.node.AwaitSandbox(t, id, "RUNNING"), workspaceFile)
	if err := o.Nomad.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := o.placed(t, id); len(after) != 1 || after[0] != before[0] {
		t.Errorf("it ran as %v before and as %v after", before, after)
	}
	o.recovers(t, id)
	o.end(t, id)
}

func (o *operators) vaultSealed(t *testing.T) {
	kept, resumed := o.begin(t), o.begin(t)
	o.node.Change(t, resumed, "pause")
	o.node.AwaitSandbox(t, resumed, "PAUSED")
	if err := o.Vault.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, err := o.node.Try(http.MethodPost, "/api/v1/sandboxes?sandbox_spec_id="+o.spec, nil)
	if err != nil || a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
		t.Errorf("a start while Vault is sealed: %v, %v", a, err)
	}
	hasFile(t, o.node.AwaitSandbox(t, kept, "RUNNING"), workspaceFile)
	o.node.Change(t, resumed, "resume")
	testcluster.Eventually(t, "the resumed sandbox says what it waits for", func() error {
		sb, err := o.node.Sandbox(resumed)
		if err == nil && (sb.Status == "RUNNING" || sb.Detail() == "") {
			err = fmt.Errorf("it is %s (%s)", sb.Status, sb.Detail())
		}
		return err
	})
	if err := o.Vault.Unseal(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.recovers(t, resumed)
	hasFile(t, o.node.AwaitSandbox(t, resumed, "RUNNING"), workspaceFile)
	o.node.Change(t, resumed, "delete")
	o.end(t, kept)
}

// nomadWiped: the workspace was in Nomad's data directory and is lost. An empty workspace in
// its place would look like lost work, so the sandbox reports the loss.
func (o *operators) nomadWiped(t *testing.T) {
	running, paused := o.begin(t), o.begin(t)
	o.node.Change(t, paused, "pause")
	o.node.AwaitSandbox(t, paused, "PAUSED")
	o.marked(t)
	if err := o.Nomad.Wipe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := o.Vault.TrustNomad(t.Context(), o.Nomad.Address); err != nil {
		t.Fatal(err)
	}
	o.releases(t, fsm.FindingMarkLost)
	o.says(t, running, "workspace volume sandbox-"+running, "ERROR")
	o.node.Change(t, paused, "resume")
	o.says(t, paused, "workspace volume sandbox-"+paused, "ERROR")
	o.node.Change(t, paused, "delete")
	o.remove(t, running)
	o.end(t, o.begin(t))
}

func (o *operators) failures(t *testing.T) {
	for spec, words := range map[string]string{
		"huge":  "no Nomad client has room",
		"crash": "exit code",
		"deaf":  "agent server",
	} {
		id := o.node.StartSandbox(t, spec)
		o.says(t, id, words, "ERROR")
		o.node.Change(t, id, "resume")
		o.says(t, id, words, "ERROR")
		o.remove(t, id)
	}
	// The delete arrives while the sandbox can't start.
	id := o.node.StartSandbox(t, "huge")
	o.remove(t, id)
	id = o.begin(t)
	o.node.Change(t, id, "pause")
	o.node.AwaitSandbox(t, id, "PAUSED")
	o.remove(t, id)
}

func (o *operators) deletedWhileAway(t *testing.T) {
	running, starting := o.begin(t), ""
	if err := o.Nomad.Stop(); err != nil {
		t.Fatal(err)
	}
	starting = o.node.StartSandbox(t, o.spec)
	o.says(t, starting, "nomad", "STARTING")
	o.node.Change(t, starting, "delete")
	o.node.Change(t, running, "delete")
	for _, id := range []string{running, starting} {
		if _, err := o.node.Sandbox(id); !errors.Is(err, testcluster.ErrGone) {
			t.Errorf("sandbox %s is still shown after its deletion: %v", id, err)
		}
	}
	if err := o.Nomad.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.Holds(t, testcluster.Expected{})
}

package nomad_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomad"
)

// markBench is a bench with its own mark.
func markBench(t *testing.T) *bench {
	t.Helper()
	path := fmt.Sprintf("bivouac/mark-%d", time.Now().UnixNano())
	b := benchWith(t, func(c *nomad.Config) { c.Variable = path })
	b.Cleanup(func() {
		if _, err := b.s.client.Variables().Delete(path, nil); err != nil {
			b.Error(err)
		}
	})
	return b
}

func markAt(index uint64) fsm.Mark {
	return fsm.Mark{
		Cluster: "c1", History: "h1", Epoch: 1795318400, Nonce: "aa", Index: index, Time: time.Date(2026, 11, 22, 4, 0, 0,
			0, time.UTC),
	}
}

func TestRunner_Mark_IsCheckedAndSet(t *testing.T) {
	t.Parallel()
	b := markBench(t)
	if _, cas, found, err := b.r.ReadMark(t.Context()); found || cas != 0 || err != nil {
		t.Fatalf("a mark before there is one: %d, %v, %v", cas, found, err)
	}
	b.must(b.r.WriteMark(t.Context(), markAt(1), 0))
	if err := b.r.WriteMark(t.Context(), markAt(2), 0); fsm.CodeOf(err) != fsm.CodeConflict {
		t.Fatalf("a second first mark: %v", err)
	}
	got, first, found, err := b.r.ReadMark(t.Context())
	b.must(err)
	if !found || got != markAt(1) {
		t.Fatalf("read %+v, %v", got, found)
	}
	b.must(b.r.WriteMark(t.Context(), markAt(2), first))
	if err := b.r.WriteMark(t.Context(), markAt(3), first); fsm.CodeOf(err) != fsm.CodeConflict {
		t.Fatalf("a write that names an old number: %v", err)
	}
	if got, _, _, err := b.r.ReadMark(t.Context()); err != nil || got != markAt(2) {
		t.Fatalf("read %+v, %v", got, err)
	}
	// A lost mark is absent, and a writer that has not seen the loss does not replace it.
	_, cas, _, err := b.r.ReadMark(t.Context())
	b.must(err)
	_, err = b.s.client.Variables().Delete(b.config.Variable, nil)
	b.must(err)
	if _, cas, found, err := b.r.ReadMark(t.Context()); found || cas != 0 || err != nil {
		t.Fatalf("a lost mark: %d, %v, %v", cas, found, err)
	}
	if err := b.r.WriteMark(t.Context(), markAt(3), cas); fsm.CodeOf(err) != fsm.CodeConflict {
		t.Fatalf("a write over a lost mark: %v", err)
	}
	b.must(b.r.WriteMark(t.Context(), markAt(4), 0))
}

// Of many leaders that have read the same mark one writes.
func TestFact_VariableWrittenByManyAtOnce_HasOneWinnerARound(t *testing.T) {
	t.Parallel()
	b := markBench(t)
	for round := range uint64(10) {
		_, cas, _, err := b.r.ReadMark(t.Context())
		b.must(err)
		var won atomic.Int32
		var all sync.WaitGroup
		for i := range uint64(8) {
			all.Go(func() {
				switch err := b.r.WriteMark(t.Context(), markAt(round*100+i), cas); {
				case err == nil:
					won.Add(1)
				case fsm.CodeOf(err) != fsm.CodeConflict:
					t.Error(err)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d writes of 8 were accepted", round, won.Load())
		}
	}
}

func TestRunner_Mark_ThatIsNoneIsAnErrorAndIsLeft(t *testing.T) {
	t.Parallel()
	b := markBench(t)
	for _, items := range []api.VariableItems{
		{"hello": "world"},
		{"cluster": "c1", "history": "h1", "epoch": "1", "nonce": "aa", "index": "-1", "time": "2026-11-22T04:00:00Z"},
		{"cluster": "c1", "history": "h1", "epoch": "1", "nonce": "aa", "index": "1", "time": "now"},
	} {
		_, _, err := b.s.client.Variables().Update(&api.Variable{Path: b.config.Variable, Items: items}, nil)
		b.must(err)
		if _, _, _, err := b.r.ReadMark(t.Context()); fsm.CodeOf(err) != fsm.CodeScheduler ||
			!strings.Contains(err.Error(), b.config.Variable) {
			t.Errorf("%v was read as a mark: %v", items, err)
		}
		if err := b.r.WriteMark(t.Context(), markAt(1), 0); fsm.CodeOf(err) != fsm.CodeConflict {
			t.Errorf("%v was written over: %v", items, err)
		}
	}
}

func TestConfig_VariableMustBeOneThatNomadTakes(t *testing.T) {
	for path, good := range map[string]bool{
		"bivouac/a_b-c~d": true, "x": true, "nomadic/x": true,
		"": false, "nomad": false, "nomad/jobs/x": false, "/x": false, "x/": false, "eu.west": false, strings.Repeat("x",
			129): false,
	} {
		if err := nomad.CheckVariable(path); (err == nil) != good {
			t.Errorf("%q: %v", path, err)
		}
	}
}

// A missing permission is reported with its name and path.
func TestRunner_MissingPermission_IsNamed(t *testing.T) {
	t.Parallel()
	useStack(t)
	n, err := local.StartNomad(t.Context(), local.NomadOptions{Dir: filepath.Join(t.TempDir(), "nomad"), ACL: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	good, err := n.NewToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	admin, err := api.NewClient(&api.Config{Address: n.Address, SecretID: n.Token})
	if err != nil {
		t.Fatal(err)
	}
	runner := func(token, path string) *nomad.Runner {
		cfg := nomad.DefaultConfig()
		cfg.Address, cfg.Token, cfg.Variable = n.Address, token, path
		r, err := nomad.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		return r
	}
	token := func(rules string) string {
		t.Helper()
		name := fmt.Sprintf("p%d", time.Now().UnixNano())
		if _, err := admin.ACLPolicies().Upsert(&api.ACLPolicy{Name: name, Rules: rules}, nil); err != nil {
			t.Fatal(err)
		}
		made, _, err := admin.ACLTokens().Create(&api.ACLToken{Type: "client", Policies: []string{name}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return made.SecretID
	}
	const variable = "bivouac/bivouac"
	r := runner(good, variable)
	if err := r.WriteMark(t.Context(), markAt(1), 0); err != nil {
		t.Fatalf("the shipped policy: %v", err)
	}
	_, cas, found, err := r.ReadMark(t.Context())
	if err != nil || !found {
		t.Fatalf("the shipped policy: %v, %v", found, err)
	}
	if err := r.WriteMark(t.Context(), markAt(2), cas); err != nil {
		t.Fatalf("the shipped policy: %v", err)
	}

	// A start that gets as far as the workspace.
	job := scheduler.Job{SandboxID: "x", ClusterID: "c1", Birth: "c1/aa/1", Template: fsm.Template{
		Driver: fsm.DriverRawExec, Isolation: fsm.IsolationNone, Command: "/bin/true", Args: []string{
			"${port.other}",
		}, Ports: map[string]int{fsm.PortAgentServer: 0},
	}}
	var fail *scheduler.Failure
	if err := r.Start(t.Context(), job); !errors.As(err, &fail) || fail.Reason != fsm.ReasonSpec {
		t.Fatal(err)
	}

	read := func(r *nomad.Runner) error { _, _, _, err := r.ReadMark(t.Context()); return err }
	write := func(r *nomad.Runner) error { return r.WriteMark(t.Context(), markAt(3), 0) }
	former := token(`namespace "default" { capabilities = ["submit-job", "read-job", "list-jobs"] }`)
	reader := token(`namespace "default" { variables { path "bivouac/*" { capabilities = ["read"] } } }`)
	seer := token(`
		namespace "default" { capabilities = ["read-job", "list-jobs", "host-volume-read"] }
		node { policy = "read" }`)
	for name, c := range map[string]struct {
		token, path string
		call        func(*nomad.Runner) error
		where, what string
	}{
		"read, by the policy of before":  {former, variable, read, variable, "read"},
		"write, by the policy of before": {former, variable, write, variable, "write"},
		"write, by who may read":         {reader, variable, write, variable, "write"},
		"another path":                   {good, "elsewhere/x", read, "elsewhere/x", "read"},
		"list jobs": {reader, variable, func(r *nomad.Runner) error {
			_, err := r.List(t.Context(), "c1")
			return err
		}, "namespace default", "list-jobs"},
		"deletion of a workspace": {seer, variable, func(r *nomad.Runner) error {
			return r.RemoveWorkspace(t.Context(), workspaceOf(job, ""))
		}, "namespace default", "host-volume-delete"},
		"a start": {seer, variable, func(r *nomad.Runner) error {
			other := job
			other.SandboxID, other.New = "y", true
			return r.Start(t.Context(), other)
		}, "namespace default", "host-volume-create"},
	} {
		err := c.call(runner(c.token, c.path))
		var denied *scheduler.Denied
		if !errors.As(err, &denied) || !strings.Contains(denied.Path, c.where) || denied.Capability != c.what {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if fsm.CodeOf(err) != fsm.CodeScheduler || !strings.Contains(err.Error(), c.where) ||
			!strings.Contains(err.Error(), c.what) {
			t.Errorf("%s: %s: %v", name, fsm.CodeOf(err), err)
		}
		t.Logf("%s: %v", name, err)
	}
	// Nomad does not deny volumes to a token that may not see them: it shows none.
	if list, _, err := admin.HostVolumes().List(nil, nil); err != nil || len(list) != 1 {
		t.Fatalf("%d volumes, %v", len(list), err)
	}
	blind, err := api.NewClient(&api.Config{Address: n.Address, SecretID: former})
	if err != nil {
		t.Fatal(err)
	}
	if list, _, err := blind.HostVolumes().List(nil, nil); err != nil || len(list) != 0 {
		t.Errorf("Nomad's answer has changed: %d volumes, %v", len(list), err)
	}
	// An unknown token has no permissions.
	var denied *scheduler.Denied
	_, err = runner("3f1e0d9c-0000-4000-8000-000000000000", variable).List(t.Context(), "c1")
	if !errors.As(err, &denied) || !strings.Contains(err.Error(), "the token must be valid") {
		t.Errorf("an unknown token: %v", err)
	}
	if err := r.RemoveWorkspace(t.Context(), workspaceOf(job, "")); err != nil {
		t.Error(err)
	}
}

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/wire"
	"bivouac.dev/bivouac/scheduler"
)

// fixedRunner lists a fixed set of sandboxes.
type fixedRunner struct {
	scheduler.Runner
	list []scheduler.Observed
	err  error
}

func (r fixedRunner) List(context.Context, string) ([]scheduler.Observed, error) {
	return r.list, r.err
}

// fixedSecrets has every secret except those with an error. The path "later" has three
// versions.
type fixedSecrets map[string]error

func (s fixedSecrets) Read(_ context.Context, ref fsm.SecretRef) (map[string]string, error) {
	return nil, s[ref.Path]
}

func (s fixedSecrets) Newest(_ context.Context, path string) (int, error) {
	if path == "later" {
		return 3, nil
	}
	if err := s[path]; fsm.CodeOf(err) != fsm.CodeNotFound {
		return 1, err
	}
	return 0, nil
}

func hashOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func TestDifferences(t *testing.T) {
	store := fsm.NewStore()
	at, index := time.Now(), uint64(0)
	apply := func(user string, body fsm.Body) {
		t.Helper()
		index++
		if _, err := store.Apply(index, fsm.NewCommand(string(rune('a'+index)), at, user, body)); err != nil {
			t.Fatal(err)
		}
	}
	apply("", &fsm.TermOpenBody{Term: 1, Node: "n1", ClusterID: "c"})
	apply("", &fsm.APIKeyCreateBody{Lookup: "aaaaaaaaaaaa", Hash: hashOf("k"), UserID: "ada"})
	apply("", &fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: "py", Template: fsm.Template{
		Driver: fsm.DriverDocker, Image: "agent:1", WorkingDir: "/w", CPU: 500, Memory: 1024, Ports: map[string]int{
			fsm.PortAgentServer: 8000,
		},
	}}}})
	for _, id := range []string{"runs", "gone", "keyless", "later"} {
		apply("ada", &fsm.SandboxCreateBody{ID: id, KeyRef: fsm.SecretRef{Path: id, Version: 1}, KeyHash: hashOf(id)})
	}
	runner := fixedRunner{list: []scheduler.Observed{
		{
			SandboxID: "runs",
			Exists:    true,
		}, {SandboxID: "later", Exists: true}, {SandboxID: "keyless", Exists: true}, {SandboxID: "unknown", Exists: true},
		{SandboxID: "stopped", Exists: true, Stopped: true}, {SandboxID: "theirs", Exists: true, Foreign: true},
	}}
	got := surroundings{runner, fixedSecrets{"keyless": fsm.Errorf(fsm.CodeNotFound, "gone")}}.Differences(t.Context(),
		store.View())
	want := wire.Differences{
		Unknown: []string{"unknown"}, Missing: []string{"gone"}, Secrets: []string{"keyless version 1"},
		Newer: []string{"later version 1, the store has 3"}, Problems: []string{},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	runner.err = fsm.Errorf(fsm.CodeScheduler, "away")
	got = surroundings{runner, fixedSecrets{"runs": fsm.Errorf(fsm.CodeSecretStore, "sealed")}}.Differences(t.Context(),
		store.View())
	if len(got.Problems) != 2 || len(got.Unknown)+len(got.Missing)+len(got.Secrets) != 0 {
		t.Errorf("with both away: %+v", got)
	}
}

package fsm

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// populated gives a store that has a row in every table.
func populated(t testing.TB) *fixture {
	f := newFixture(t).open()
	f.do("", &APIKeyCreateBody{Lookup: "aaaaaaaaaaaa", Hash: sha("key"), Name: "laptop", UserID: "ada", Operator: true, Bootstrap: true})
	f.do("ada", &SettingsPutBody{
		Values:    SettingsValues{LLMModel: ptr("m1"), MaxBudgetPerTask: ptr(1.5), EnableDefaultCondenser: true, Language: ptr("<&> \u2028 é")},
		LLMAPIKey: &SecretRef{"users/ada/settings/llm_api_key", 1}, MCPConfig: SecretRef{"users/ada/settings/mcp_config", 3},
		Providers:     []Provider{{Type: ProviderGitHub, Host: ptr("ghe.local"), Ref: SecretRef{"users/ada/providers/github", 2}}},
		CustomSecrets: []CustomSecret{{Name: "NPM", Description: "registry", Ref: SecretRef{"users/ada/custom/TlBN", 1}}},
	})
	f.conversation("ada", "c1")
	f.do("", &SandboxObserveBody{Observations: []Observation{{ID: "sb-c1", Status: SandboxStatus{
		State: SandboxRunning, Generation: 1, Job: JobRef{Version: 2, Registered: true},
		Placement: &Placement{AllocID: "a", NodeID: "n", Address: "10.0.0.1", Ports: map[string]int{PortAgentServer: 31000}, Workspace: "/w"},
	}}}})
	f.sandbox("bob", "sb-bob")
	f.do("bob", &SandboxDeleteBody{ID: "sb-bob"})
	f.do("ada", &StartTaskCreateBody{
		ID: "t2", ConversationID: "c2", V0ID: "mine", Secrets: SecretRef{"users/ada/start_tasks/t2", 1},
		Request: StartRequest{
			InitialMessage: &Message{Role: "user", Content: []ContentBlock{{Type: "text", Text: "Check the README"}}},
			PRNumber:       []int64{7}, AgentType: "default", ParentConversationID: ptr("c1"),
			ObservabilityMetadata: map[string]any{"n": 1.25, "s": "x", "b": true},
			Processors:            []json.RawMessage{json.RawMessage(`{"kind":"SetTitleCallbackProcessor"}`)},
		},
	})
	cmd := f.command("ada", &SandboxPauseBody{ID: "sb-c1"})
	cmd.ID, cmd.Fingerprint = "client-1", "f1"
	if _, err := f.apply(cmd); err != nil {
		t.Fatal(err)
	}
	cmd = f.command("ada", &SandboxPauseBody{ID: "nope"})
	cmd.ID, cmd.Fingerprint = "client-2", "f2"
	if _, err := f.apply(cmd); CodeOf(err) != CodeNotFound {
		t.Fatal(err)
	}
	f.do("", &InstallationConfigureBody{Installation: Installation{
		Policy: Policy{IdleTimeout: time.Hour}, PerUser: Limits{StartsPerMinute: 5}, Overall: Limits{StartsPerMinute: 9}, OnLimit: OnLimitRefuse,
	}})
	f.do("", &UserConfigureBody{UserID: "ada", Policy: &Policy{MaxRunning: -1}, Limits: &Limits{StartsPerMinute: 3}})
	f.do("", &SpecPoolBody{ID: "py", Size: 1})
	f.do("", &PoolAddBody{ID: "m1", SpecID: "py", InitRef: SecretRef{"sandboxes/m1/session", 1}, InitHash: sha("init")})
	f.do("ada", &SandboxResumeBody{ID: "sb-c1"})
	f.do("", &SandboxTouchBody{Touches: []Touch{{"sb-c1", f.now}}})
	return f
}

// TestSnapshotRoundTrip: every table comes back, and the command-id table
// answers as before.
func TestSnapshotRoundTrip(t *testing.T) {
	f := populated(t)
	before := f.store
	f.store = restored(t, before)
	if d := cmp.Diff(string(persist(t, before)), string(persist(t, f.store))); d != "" {
		t.Fatal(d)
	}
	r, e, fingerprint, found := f.store.View().CommandResult("client-1")
	if !found || e != nil || fingerprint != "f1" || r.Sandbox == nil || r.Sandbox.Desired != DesiredPaused || !r.Replayed {
		t.Errorf("client-1: %+v %v %s %v", r, e, fingerprint, found)
	}
	if _, e, _, found := f.store.View().CommandResult("client-2"); !found || e == nil || e.Code != CodeNotFound {
		t.Errorf("client-2: %v %v", e, found)
	}
	if _, _, _, found := f.store.View().CommandResult("c3"); !found {
		t.Error("the internal command c3 is forgotten")
	}
}

// goldenSHA256 is the digest of testdata/snapshot_format_1.jsonl.
const goldenSHA256 = "938700e4bd5690ee38fbc3c21bbaa253c85fad9236f94a867ccff7dcb84f0f29"

// TestGoldenSnapshot reads the file of format 1 as a released program wrote it.
// The file is never written again: when this test fails, nodes can't be
// upgraded.
func TestGoldenSnapshot(t *testing.T) {
	raw, err := os.ReadFile("testdata/snapshot_format_1.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	if got := sha(string(raw)); got != goldenSHA256 {
		t.Fatalf("the golden file itself was changed: its SHA-256 is %s", got)
	}
	s := NewStore()
	if err := s.Restore(bytes.NewReader(raw)); err != nil {
		t.Fatal(err)
	}
	v := s.View()
	if v.Index() != 13 || v.ClusterID() != "test" || v.ProtocolVersion() != 1 {
		t.Errorf("index %d, cluster %q, version %d", v.Index(), v.ClusterID(), v.ProtocolVersion())
	}
	if set := v.Settings("ada"); *set.Values.LLMModel != "m1" || set.MCPConfig != (SecretRef{"users/ada/settings/mcp_config", 3}) {
		t.Errorf("settings %+v", set)
	}
	sb := v.Sandbox("ada", "sb-c1")
	if sb.Desired != DesiredPaused || sb.Status.Placement.Ports[PortAgentServer] != 31000 || !sb.Status.Job.Registered {
		t.Errorf("sandbox %+v", sb)
	}
	if v.SandboxAny("sb-bob").Desired != DesiredDeleted || v.Sandbox("bob", "sb-bob") != nil {
		t.Error("the deleted sandbox is shown")
	}
	task := v.StartTask("ada", "t2")
	if task.V0ID != "mine" || task.Request.InitialMessage.Content[0].Text != "Check the README" || *task.Request.SandboxID != "sb-c1" {
		t.Errorf("task %+v", task)
	}
	if v.Conversation("ada", "c1") == nil || v.APIKeyByLookup("aaaaaaaaaaaa") == nil || v.User("ada") == nil || v.Spec("py") == nil ||
		len(v.Providers("ada")) != 1 || len(v.CustomSecrets("ada")) != 1 || !v.SecretReferenced("users/ada/start_tasks/t2", 1) {
		t.Error("something is missing")
	}
	if _, e, _, _ := v.CommandResult("client-2"); e == nil || e.Code != CodeNotFound {
		t.Errorf("client-2: %v", e)
	}
	if n := restored(t, s); n.Checksum() != s.Checksum() {
		t.Error("written again and read again it differs")
	}
}

// TestRestoreRefusesDamage: a snapshot that is cut, altered or from the future
// is refused, and the state stays as it was.
func TestRestoreRefusesDamage(t *testing.T) {
	good := string(persist(t, populated(t).store))
	lines := strings.SplitAfter(strings.TrimSuffix(good, "\n"), "\n")
	cases := map[string]string{
		"empty":            "",
		"no trailer":       strings.Join(lines[:len(lines)-1], ""),
		"half a row":       good[:len(good)/2],
		"no last newline":  good[:len(good)-1],
		"a row missing":    strings.Join(append(append([]string{}, lines[:3]...), lines[4:]...), ""),
		"a row twice":      strings.Join(append(append([]string{}, lines[:3]...), lines[2:]...), ""),
		"another value":    strings.Replace(good, `"desired":"paused"`, `"desired":"gone"`, 1),
		"something behind": good + "{}\n",
		"newer format":     strings.Replace(good, `"bivouac_snapshot":1`, `"bivouac_snapshot":2`, 1),
		"no format":        strings.Replace(good, `"bivouac_snapshot":1,`, ``, 1),
		"newer protocol":   strings.Replace(good, `"protocol_version":1`, `"protocol_version":2`, 1),
		"unknown table":    strings.Replace(good, `"table":"specs"`, `"table":"specz"`, 1),
		"not JSON":         "hello\n",
	}
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t).open()
			before, view := f.store.Checksum(), f.store.View()
			if err := f.store.Restore(strings.NewReader(text)); err == nil {
				t.Fatal("it was accepted")
			} else {
				t.Log(err)
			}
			if f.store.Checksum() != before || f.store.View() != view || closed(view.Changed()) {
				t.Error("the state was touched")
			}
		})
	}
	boom := errors.New("boom")
	if err := NewStore().Restore(iotest.ErrReader(boom)); !errors.Is(err, boom) {
		t.Errorf("a failing reader gives %v", err)
	}
}

// TestPersistReportsWriteErrors: a full disk is not a good snapshot.
func TestPersistReportsWriteErrors(t *testing.T) {
	s := populated(t).store
	full := errors.New("disk full")
	for _, room := range []int{0, 100, 4096} {
		if err := s.Snapshot().Persist(&limited{room: room, err: full}); !errors.Is(err, full) {
			t.Errorf("with room for %d bytes: %v", room, err)
		}
	}
}

// limited is a writer that fails once it is full.
type limited struct {
	room int
	err  error
}

func (l *limited) Write(b []byte) (int, error) {
	if len(b) > l.room {
		return 0, l.err
	}
	l.room -= len(b)
	return len(b), nil
}

package fsm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// populated returns a store that has a row in every table.
func populated(t testing.TB) *fixture {
	f := newFixture(t).open()
	f.do("",
		&APIKeyCreateBody{
			Lookup:    "aaaaaaaaaaaa",
			Hash:      sha("key"),
			Name:      "laptop",
			UserID:    "ada",
			Operator:  true,
			Bootstrap: true,
		})
	f.do("ada", &SettingsPutBody{
		Values: SettingsValues{
			LLMModel:               ptr("m1"),
			MaxBudgetPerTask:       ptr(1.5),
			EnableDefaultCondenser: true,
			Language:               ptr("<&> \u2028 é"),
		},
		LLMAPIKey: &SecretRef{
			Path:    "users/ada/settings/llm_api_key",
			Version: 1,
		}, MCPConfig: SecretRef{Path: "users/ada/settings/mcp_config", Version: 3},
		Providers: []Provider{
			{Type: ProviderGitHub, Host: ptr("ghe.local"), Ref: SecretRef{Path: "users/ada/providers/github", Version: 2}},
		},
		CustomSecrets: []CustomSecret{
			{Name: "NPM", Description: "registry", Ref: SecretRef{Path: "users/ada/custom/TlBN", Version: 1}},
		},
	})
	f.conversation("ada", "c1")
	f.do("", &SandboxObserveBody{Observations: []Observation{{ID: "sb-c1", Status: SandboxStatus{
		State: SandboxRunning, Generation: 1, Job: JobRef{Version: 2, Registered: true},
		Placement: &Placement{
			AllocID:   "a",
			NodeID:    "n",
			Address:   "10.0.0.1",
			Ports:     map[string]int{PortAgentServer: 31000},
			Workspace: "/w",
		},
	}}}})
	f.sandbox("bob", "sb-bob")
	f.do("bob", &SandboxDeleteBody{ID: "sb-bob"})
	f.do("ada", &StartTaskCreateBody{
		ID: "t2", ConversationID: "c2", V0ID: "mine", Secrets: SecretRef{Path: "users/ada/start_tasks/t2", Version: 1},
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
		Policy: Policy{
			IdleTimeout: time.Hour,
		}, PerUser: Limits{StartsPerMinute: 5}, Overall: Limits{StartsPerMinute: 9}, OnLimit: OnLimitRefuse,
	}})
	f.do("", &UserConfigureBody{UserID: "ada", Policy: &Policy{MaxRunning: -1}, Limits: &Limits{StartsPerMinute: 3}})
	f.do("", &SpecPoolBody{ID: "py", Size: 1})
	member := newMember("m1", "py")
	member.InitHash = sha("init")
	f.do("", member)
	f.do("ada", &SandboxResumeBody{ID: "sb-c1"})
	f.do("", &SandboxTouchBody{Touches: []Touch{{ID: "sb-c1", At: f.now}}})
	f.do("ada", &StartTaskCreateBody{ID: "t3", ConversationID: "c3"})
	f.now = f.now.Add(InternalResultTTL - 10*time.Second)
	f.do("ada", &ConversationUpdateBody{ID: "c1", Set: []string{"title"}, Title: ptr("A")}) // forgets the first ids
	return f
}

// TestSnapshotRoundTrip: every table is restored, and the command-id table replays as before.
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
	if _, _, _, found := f.store.View().CommandResult("c20"); !found {
		t.Error("the internal command c20 is forgotten")
	}
}

// TestSnapshotRoundTrip_History: the history and the tables that came with it are restored too.
func TestSnapshotRoundTrip_History(t *testing.T) {
	before := withHistory(t).store
	if d := cmp.Diff(string(persist(t, before)), string(persist(t, restored(t, before)))); d != "" {
		t.Fatal(d)
	}
}

// The digests of testdata/snapshot_format_<n>.jsonl.
const (
	goldenSHA256  = "938700e4bd5690ee38fbc3c21bbaa253c85fad9236f94a867ccff7dcb84f0f29"
	golden3SHA256 = "abe10f5568156665ce74a82c286044dd2f6269f7a76e410d55cab672b7f1857a"
	golden2SHA256 = "2c6d17fca782b0420f14e1e45657ddedd55b1dc15a6a3d820802ff8398e672a8"
)

// golden restores a file of testdata. These files are never written again: when such a test fails,
// nodes can't be upgraded.
func golden(t *testing.T, name, digest string) *Store {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if got := sha(string(raw)); got != digest {
		t.Fatalf("the golden file itself was changed: its SHA-256 is %s", got)
	}
	s := NewStore()
	if err := s.Restore(bytes.NewReader(raw)); err != nil {
		t.Fatal(err)
	}
	if n := restored(t, s); n.Checksum() != s.Checksum() {
		t.Error("written again and read again it differs")
	}
	return s
}

// withHistory is populated at protocol version 3, with the rows of that version.
func withHistory(t testing.TB) *fixture {
	f := populated(t)
	f.do("", &ProtocolRaiseBody{Version: 3})
	f.do("", &TermOpenBody{Term: 2, Node: "n2", ClusterID: "test", Nonce: "second"})
	f.do("", &MarkNoteBody{Store: StoreNomad})
	f.do("", &RemovalReserveBody{RemovalJob, 3, 2})
	f.do("",
		&OrphanNoteBody{[]Orphan{{Kind: OrphanWorkspace, Sandbox: "gone", Reason: OrphanStranger, Birth: "test/lost/99"}}})
	f.do("", &HoldBeginBody{At: f.index, Findings: []Finding{
		{Kind: FindingStranger, Store: StoreNomad, ID: "gone", Birth: "test/lost/99", Detail: "a workspace"},
	}})
	f.do("", &HoldReleaseBody{Adopt: []Adopted{{"lost", 99}}})
	f.do("",
		&HoldBeginBody{At: f.index, Findings: []Finding{{Kind: FindingMarkLost, Store: StoreVault, Detail: "it is gone"}}})
	f.do("ada", &SandboxPauseBody{ID: "sb-c1"})
	return f
}

// TestGoldenSnapshot3 reads a file of format 3, with what format 3 added: the history, a hold,
// grants of removals, orphans.
func TestGoldenSnapshot3(t *testing.T) {
	v := golden(t, "snapshot_format_3.jsonl", golden3SHA256).View()
	if h := v.History(); h.Epoch <= 1 || len(h.Parents) != 1 || len(v.Terms()) != 2 || v.Terms()[1].Nonce != "second" {
		t.Errorf("history %+v, terms %+v", h, v.Terms())
	}
	if !v.Contains(Birth{"test", "lost", 99}) || v.Contains(Birth{"test", "lost", 100}) || !v.Contains(v.Birth()) {
		t.Error("the births are judged otherwise")
	}
	if hold := v.Hold(); hold == nil || len(hold.Findings) != 1 || hold.Findings[0].Kind != FindingMarkLost {
		t.Errorf("hold %+v", hold)
	}
	if s := v.SandboxAny("sb-c1"); s.Birth.IsZero() || v.Held(s) {
		t.Errorf("sandbox %+v", s)
	}
	if o := v.Orphan(OrphanWorkspace, "gone"); o == nil || o.Birth != "test/lost/99" {
		t.Errorf("orphan %+v", o)
	}
	if n := v.Removed(RemovalJob, testEpoch.Add(time.Minute)); n != 2 {
		t.Errorf("%d removals were granted", n)
	}
}

// TestGoldenSnapshot2 reads a file of format 2, with what format 2 added: members of pools,
// policies and limits, the reservations of start tasks, and the time up to which command ids are
// forgotten.
func TestGoldenSnapshot2(t *testing.T) {
	s := golden(t, "snapshot_format_2.jsonl", golden2SHA256)
	v := s.View()
	if in := v.Installation(); in.Overall.StartsPerMinute != 9 || in.Policy.IdleTimeout != time.Hour ||
		v.LimitsOf("ada").StartsPerMinute != 3 {
		t.Errorf("%+v", in)
	}
	if m := v.SandboxAny("m1"); m == nil || !m.Member() || v.SandboxAny("sb-c1").Status.LastActive.IsZero() {
		t.Errorf("member %+v", m)
	}
	if task := v.StartTask("ada", "t3"); task == nil || *task.Reservation != (Reservation{500, 1024}) {
		t.Errorf("task %+v", task)
	}
	if u := v.Usage("ada"); u != (Usage{
		Running:    2,
		Total:      2,
		CPU:        1000,
		Memory:     2048,
		StateBytes: 25600,
		doneBytes:  512,
		starts:     2,
	}) {
		t.Errorf("usage %+v", u)
	}
	late := NewCommand("c2", testEpoch.Add(2*time.Second), "", &SpecPoolBody{ID: "py", Size: 9})
	if _, err := s.Apply(v.Index()+1, late); CodeOf(err) != CodeOutcomeUnknown {
		t.Errorf("a forgotten command: %v", err)
	}
	if r, _, _, found := v.CommandResult("c20"); !found || r.StartTask == nil || r.StartTask.ID != "t3" {
		t.Errorf("the answer of the last start: %+v %v", r, found)
	}
}

// TestGoldenSnapshot reads the file of format 1 as the first program wrote it.
func TestGoldenSnapshot(t *testing.T) {
	v := golden(t, "snapshot_format_1.jsonl", goldenSHA256).View()
	if v.Index() != 13 || v.ClusterID() != "test" || v.ProtocolVersion() != 1 {
		t.Errorf("index %d, cluster %q, version %d", v.Index(), v.ClusterID(), v.ProtocolVersion())
	}
	if set := v.Settings("ada"); *set.Values.LLMModel != "m1" ||
		set.MCPConfig != (SecretRef{Path: "users/ada/settings/mcp_config", Version: 3}) {
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
	if task.V0ID != "mine" || task.Request.InitialMessage.Content[0].Text != "Check the README" ||
		*task.Request.SandboxID != "sb-c1" {
		t.Errorf("task %+v", task)
	}
	if v.Conversation("ada", "c1") == nil || v.APIKeyByLookup("aaaaaaaaaaaa") == nil || v.User("ada") == nil ||
		v.Spec("py") == nil ||
		len(v.Providers("ada")) != 1 || len(v.CustomSecrets("ada")) != 1 ||
		!v.SecretReferenced("users/ada/start_tasks/t2", 1) {
		t.Error("something is missing")
	}
	if _, e, _, _ := v.CommandResult("client-2"); e == nil || e.Code != CodeNotFound {
		t.Errorf("client-2: %v", e)
	}
}

// TestRestoreRefusesDamage: a snapshot that is truncated, altered or of a newer format is refused,
// and the state does not change.
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
		"newer format":     strings.Replace(good, `"bivouac_snapshot":3`, `"bivouac_snapshot":4`, 1),
		"no format":        strings.Replace(good, `"bivouac_snapshot":3,`, ``, 1),
		"newer protocol": strings.Replace(good, `"protocol_version":1`,
			fmt.Sprintf(`"protocol_version":%d`, ProtocolVersion+1), 1),
		"unknown table": strings.Replace(good, `"table":"specs"`, `"table":"specz"`, 1),
		"not JSON":      "hello\n",
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

// TestRestore_ManyRows: rows that are decoded beside each other are stored in their order, and the
// first damaged one is named.
func TestRestore_ManyRows(t *testing.T) {
	f := newFixture(t).open()
	tx := &transaction{store: f.store, txn: f.store.db.Txn(true), meta: f.store.View().meta}
	for i := range 5 * rowsDecoded {
		put(tx, tableConversations, nil, heapShapes()["conversation"](i)[0].(*Conversation))
	}
	tx.txn.Commit()
	f.store.publish(&View{meta: tx.meta, txn: f.store.db.Txn(false), commands: f.store.commands}, new(epoch))
	good := persist(t, f.store)
	again := NewStore()
	if err := again.Restore(bytes.NewReader(good)); err != nil {
		t.Fatal(err)
	}
	if again.Checksum() != f.store.Checksum() || again.View().Usage("ada") != f.store.View().Usage("ada") {
		t.Errorf("restored %+v, want %+v", again.View().Usage("ada"), f.store.View().Usage("ada"))
	}
	lines := bytes.SplitAfter(good, []byte("\n"))
	for _, row := range []int{3*rowsDecoded + 9, 2*rowsDecoded + 7} {
		lines[row] = bytes.Replace(lines[row], []byte(`"row":{`), []byte(`"row":[{`), 1)
	}
	err := NewStore().Restore(bytes.NewReader(bytes.Join(lines, nil)))
	if want := fmt.Sprintf("row %d of table", 2*rowsDecoded+7); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("two damaged rows give %v, want %q", err, want)
	}
}

// TestPersistReportsWriteErrors: Persist reports a full disk.
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

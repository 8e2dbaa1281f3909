package fsm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// seedBodies returns a body of almost every command type, for the state of populated.
func seedBodies(now time.Time) (ofUsers, ofLeader []Body) {
	ofUsers = []Body{
		&SettingsPutBody{Providers: []Provider{{Type: ProviderGitHub}}}, newSandboxBody("s9"), &SandboxPauseBody{ID: "sb-c1"},
		&SandboxResumeBody{ID: "sb-c1"}, &SandboxDeleteBody{ID: "sb-c1"},
		&StartTaskCreateBody{ID: "t9", ConversationID: "c9", V0ID: "v"}, &ProvidersReplaceBody{},
		&ConversationUpdateBody{ID: "c1", Set: []string{"title"}}, &ConversationDeleteBody{ID: "c1", DeleteSandbox: true},
		&ConversationSwitchLLMBody{ID: "c1", Model: "gpt-5"},
		&StartTaskAnswerBody{ID: "t2", Hash: genTaskSetup("setup").Hash, Accept: true},
		&SandboxAcceptWorkspaceBody{ID: "sb-c1", Operator: true},
		&SettingsPatchBody{Set: []string{"language"}}, &ProfilePutBody{Profile: Profile{
			Kind: ProfileLLM, Name: "fast", ID: "p1", Model: "gpt-5",
			Key: SecretRef{Path: ProfileKeyPath("ada", "p1"), Version: 1},
		}},
		&ProfilePutBody{Profile: Profile{Kind: ProfileAgent, Name: "mine", ID: "p2", Document: json.RawMessage(`{}`)}},
		&ProfileActivateBody{Kind: ProfileLLM, Name: "fast"}, &ProfileRenameBody{ProfileLLM, "fast", "slow"},
		&ProfileDeleteBody{ProfileLLM, "slow"},
		&CustomSecretPutBody{CustomSecret{Name: "A", Ref: SecretRef{Path: "p", Version: 1}}},
		&CustomSecretUpdateBody{"A", "B", "d"}, &CustomSecretDeleteBody{"B"},
		&SessionCreateBody{sha("token"), 1}, &SessionOfferBody{sha("code"), 1}, &SessionEndBody{sha("token")},
		&DeviceAskBody{sha("d"), sha("c"), "n", "a", "10.0.0.1/32"}, &DeviceAllowBody{sha("c"), 1},
		&DeviceRedeemBody{sha("d"), "k9", sha("k9")},
		&OwnKeyCreateBody{Lookup: "ownownownown", Hash: sha("own"), Name: "own"}, &OwnKeyRevokeBody{1},
		&SandboxShareBody{
			ID:    "sb-c1",
			Port:  "VSCODE",
			Share: "h1",
			Until: now.Add(time.Hour),
		}, &SandboxUnshareBody{ID: "sb-c1", Port: "VSCODE"},
		&SandboxRedeemBody{ID: "sb-c1", Hash: sha("code"), Until: now.Add(time.Minute)},
		&SandboxRotateKeyBody{
			ID:      "sb-c1",
			KeyRef:  SecretRef{Path: SandboxKeyPath("sb-c1"), Version: 2},
			KeyHash: sha("second"),
		},
	}
	ofUsers = append(ofUsers, &EventsAppendBody{
		ConversationID: "c1", SandboxID: "sb-c1", Events: [][]byte{storedEvent("e1", "one"), storedEvent("e2", "two")},
		Facts: EventFacts{Status: "running", Usage: AgentUsage{Model: "m", Cost: 7}},
	}, &EventsKeyBody{Key: SecretRef{Path: EventKeyPath("ada"), Version: 1}})
	ofLeader = []Body{
		&StartTaskBindBody{ID: "t2", SandboxID: "s9", Create: newSandboxBody("s9")}, &SandboxRemoveBody{ID: "sb-bob"},
		&StartTaskAdvanceBody{ID: "t2", Status: StartTaskWorking}, &StartTaskFailBody{ID: "t2", Detail: "x"},
		&StartTaskQueueBody{
			"t2",
			PendingMessage{"m1", Message{"user", []ContentBlock{{Type: BlockText, Text: "go on"}}, true}},
		},
		&StartTaskAskBody{ID: "t2", Setup: *genTaskSetup("setup")},
		goodObservation(), goodFinish(), &SpecApplyBody{
			Specs:   []Spec{dockerSpec("go")},
			Replace: true,
		}, &APIKeyRevokeBody{ID: 1},
		&InstallationConfigureBody{
			Installation: Installation{
				PerUser: Limits{Running: 1},
				OnLimit: OnLimitPauseOldest,
				CORS:    CORS{Origins: []string{"https://a.example"}},
			},
			CheckIndex: new(uint64(0)),
		}, &PoolDropBody{ID: "m1"},
		&UserConfigureBody{UserID: "ada", Limits: &Limits{CPU: 1}}, &SpecPoolBody{"py", 2}, newMember("m2", "py"),
		&SandboxTouchBody{[]Touch{{"sb-c1", now, "c1"}}}, &SandboxExpireBody{
			ID:         "sb-c1",
			Generation: 3,
			Action:     ExpirePause,
			Reason:     PausedByMaxRunning,
		},
		&TermOpenBody{
			Term:      2,
			Node:      "n2",
			ClusterID: "test",
		}, &ProtocolRaiseBody{Version: ProtocolVersion}, &SpecDeleteBody{ID: "py"},
		&APIKeyCreateBody{Lookup: "bbbbbbbbbbbb", Hash: sha("k2"), UserID: "bob"},
		&MarkNoteBody{Store: StoreNomad}, &HoldBeginBody{
			Findings: []Finding{{Kind: FindingStranger, Store: StoreVault, ID: "x"}},
		},
		&SandboxAdoptBody{
			ID:         "sb-c1",
			Generation: 2,
		}, &HoldReleaseBody{Adopt: []Adopted{{"n", 9}}}, &RemovalReserveBody{RemovalJob, 3, 5},
		&OrphanNoteBody{
			[]Orphan{{Kind: OrphanJob, Sandbox: "gone", Reason: OrphanUnowned}},
		}, &OrphanDeleteBody{OrphanJob, "gone"},
		&OrphanForgetBody{OrphanJob, []string{"gone"}},
		&OrphanRestoreBody{
			Volume:  "v1",
			ID:      "s8",
			KeyRef:  SecretRef{Path: SandboxKeyPath("s8"), Version: 1},
			KeyHash: sha("s8"),
		}, &APIKeyEnableBody{1}, &BackupNoteBody{File: "b.snap", Node: "n1", Index: 3, Size: 9},
		&CertificateRevokeBody{
			sha("certificate"),
			"n3",
		}, &CertificateAllowBody{"n3"}, &APIKeyDisableBody{1}, &APIKeyUsedBody{[]APIKeyUse{{1, now}}},
		&SessionRedeemBody{sha("code"), sha("token")}, &SessionSeenBody{[]SessionUse{{sha("token"), now}}},
		&LLMReportBody{[]LLMReport{{"ada", "c1", "m1", ModelUsage{Requests: 1, Cost: 2}}}},
		&UserDisableBody{"ada"}, &UserEnableBody{"ada"}, &UserDeleteBody{"bob"},
		&ClientMarkBody{"client-1", ClientDraining}, &ClientDrainBody{
			ID:    "client-1",
			Since: now,
			First: "sb-c1",
		}, &ClientMarkBody{"client-1", ClientLost},
		&SandboxCopiedBody{ID: "sb-c1", Copy: Copy{ID: "1-a", Sum: sha("manifest"), At: now}},
		&SandboxMoveBody{ID: "sb-c1", From: "client-1"}, &SandboxMovedBody{
			ID:      "sb-c1",
			Attempt: 1,
			Home:    Home{Volume: "v2", Client: "client-2"},
		},
	}
	return ofUsers, ofLeader
}

// seedCommands returns the seedBodies as encoded log entries.
func seedCommands(t testing.TB) [][]byte {
	seed := newFixture(t)
	ofUsers, ofLeader := seedBodies(seed.now)
	var out [][]byte
	encode := func(user string, body Body) {
		raw, err := seed.command(user, body).Encode()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, raw)
	}
	for _, body := range ofUsers {
		encode("ada", body)
	}
	for _, body := range ofLeader {
		encode("", body)
	}
	return out
}

// FuzzDecodeCommand: decoding any log entry ends in a command or an error and takes memory in
// proportion to the entry. A decoded command decodes the same way again.
func FuzzDecodeCommand(f *testing.F) {
	for _, raw := range seedCommands(f) {
		f.Add(raw)
		cmd, err := DecodeCommand(raw)
		if err != nil {
			f.Fatal(err)
		}
		inBinary, err := cmd.EncodeBinary()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(inBinary)
	}
	for _, s := range []string{
		"", "{", "\x03", "\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "moon.fly{}",
		`term.open{"type":"term.open","body":null}`,
		`term.open{"type":"term.open","body":[]}`,
		`sandbox.pause{"id":"x","type":"sandbox.pause","time":"2026-01-01T00:00:00Z","user_id":"ada",` +
			`"body":{"id":"x","ID":"y"}}`,
		`settings.put{"type":"settings.put","user_id":"ada","body":{"llm_api_key":{"path":"users/ada/a",` +
			`"version":2,"created":"2026-01-02T03:04:05.1Z"}}}`,
		`sandbox.touch{"type":"sandbox.touch","body":{"touches":[null,{},{"at":"9999-12-31T23:59:59Z"}]}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := allocated()
		cmd, err := DecodeCommand(raw)
		if used := allocated() - before; used > 4<<20+512*uint64(len(raw)) {
			t.Fatalf("%d bytes took %d bytes to decode", len(raw), used)
		}
		readAlike(t, raw, cmd, err)
		if err != nil {
			return
		}
		_ = cmd.check()
		_ = Validate(cmd.Body)
		again, err := cmd.Encode()
		if err != nil {
			t.Fatalf("understood but not to be said again: %v", err)
		}
		second, err := DecodeCommand(again)
		if err != nil {
			t.Fatalf("%q was decoded from %q and is not understood: %v", again, raw, err)
		}
		if third, err := second.Encode(); err != nil || !bytes.Equal(again, third) {
			t.Fatalf("said again it is another: %q, %q, %v", again, third, err)
		}
		sameInBinary(t, cmd)
	})
}

// readAlike compares DecodeCommand with encoding/json, with which earlier releases read the same
// log.
func readAlike(t testing.TB, raw []byte, cmd Command, refused error) {
	t.Helper()
	if len(raw) > 0 && raw[0] == binaryMark {
		return
	}
	start := max(bytes.IndexByte(raw, '{'), 0)
	body, err := newBody(CommandType(raw[:start]))
	if err != nil {
		return
	}
	old := Command{Body: body}
	if err := json.Unmarshal(raw[start:], &old); (err == nil && old.Body != nil &&
		old.Type == CommandType(raw[:start])) != (refused == nil) {
		t.Fatalf("%q: encoding/json says %v, DecodeCommand %v", raw, err, refused)
	}
	if refused == nil && !reflect.DeepEqual(old, cmd) {
		t.Fatalf("%q: encoding/json reads %+v, DecodeCommand %+v", raw, old, cmd)
	}
}

// allocated returns how many bytes this process has allocated in total.
func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// FuzzApply runs any log on two nodes, from a state with rows in every table. One node restarts
// from a snapshot after every fourth entry and the last. Line feeds, which JSON does not contain,
// separate the entries.
func FuzzApply(f *testing.F) {
	seeds := seedCommands(f)
	for i, raw := range seeds {
		f.Add(raw)
		f.Add(bytes.Join([][]byte{raw, seeds[(i+1)%len(seeds)], raw}, []byte("\n")))
	}
	f.Add(bytes.Join(seeds, []byte("\n")))
	start := persist(f, populated(f).store)
	f.Fuzz(func(t *testing.T, log []byte) {
		one, two := NewStore(), NewStore()
		for _, s := range []*Store{one, two} {
			if err := s.Restore(bytes.NewReader(start)); err != nil {
				t.Fatal(err)
			}
		}
		index := one.Index()
		for line := range bytes.SplitSeq(log, []byte("\n")) {
			cmd, err := DecodeCommand(line)
			if err != nil {
				continue
			}
			if b, ok := cmd.Body.(*ProtocolRaiseBody); ok && b.Version > ProtocolVersion {
				continue // stops the node, as intended
			}
			if index++; index > 64 {
				break
			}
			two = applyOnBoth(t, one, two, index, line)
		}
		sameState(t, one, restored(t, two))
		checkDerived(t, one)
	})
}

// applyOnBoth applies an entry to two stores, decoding it for each. It returns the second store,
// every fourth time restored from its snapshot.
func applyOnBoth(t testing.TB, one, two *Store, index uint64, raw []byte) *Store {
	t.Helper()
	answers := make([]string, 2)
	for i, s := range []*Store{one, two} {
		cmd, err := DecodeCommand(raw)
		if err != nil {
			t.Fatal(err)
		}
		answers[i] = asJSON(t, s.ApplyBatch([]Entry{{index, cmd}}))
	}
	if answers[0] != answers[1] {
		t.Fatalf("%.200q at %d: %s", raw, index, cmp.Diff(answers[0], answers[1]))
	}
	if index%4 != 0 {
		return two
	}
	return restored(t, two)
}

// sameState compares two stores, derived tables and counters included.
func sameState(t testing.TB, one, two *Store) {
	t.Helper()
	if one.Checksum() != two.Checksum() {
		t.Fatalf("the states differ:\n%s", cmp.Diff(string(persist(t, one)), string(persist(t, two))))
	}
	if d := cmp.Diff(text(dump(one)), text(dump(two))); d != "" {
		t.Fatalf("what is derived differs: %s", d)
	}
	if d := cmp.Diff(usages(one), usages(two)); d != "" {
		t.Fatalf("the counters differ: %s", d)
	}
}

// checkDerived recounts the derived counters and runs every query on every row.
func checkDerived(t testing.TB, s *Store) {
	t.Helper()
	want, got := map[SecretRef]int{}, map[SecretRef]int{}
	for _, row := range s.Snapshot().rows() {
		if x, ok := row.(referrer); ok {
			for _, ref := range x.secretRefs() {
				if !ref.IsZero() {
					want[ref]++
				}
			}
		}
	}
	v := s.View()
	for x := range withPrefix[secretRef](v.txn, tableSecretRefs, indexID, nil) {
		got[x.ref] = x.count
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("secret refs: %s", d)
	}
	askAround(v)
}

// askAround runs the queries of the scheduler and the API on a view.
func askAround(v *View) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for sb := range v.AllSandboxes() {
		v.Expiry(sb)
		_ = sb.State()
		v.SandboxesFolded(sb.ID)
	}
	for _, u := range v.Users() {
		v.Usage(u.ID)
		_ = v.Admission(u.ID, "", true, now)
		v.Sandboxes(u.ID, Page{Limit: 10})
		list, next := v.Conversations(u.ID, ConversationFilter{}, Page{Limit: 1})
		v.Conversations(u.ID, ConversationFilter{}, Page{Limit: 1, After: next})
		for _, c := range list {
			v.SubConversations(u.ID, c.ID)
		}
		v.StartTasks(u.ID, StartTaskFilter{}, Page{Limit: 10})
		v.Settings(u.ID)
		v.Providers(u.ID)
		v.CustomSecrets(u.ID)
	}
	for _, spec := range v.Specs() {
		v.PoolMembers(spec.ID)
		v.ClaimableMember(spec.ID, "ada", func(string) bool { return false })
	}
	v.OpenStartTasks()
	v.APIKeys()
}

// FuzzApplyHistory is FuzzApply with plausible logs: the fuzzer makes the choices that are random
// in the property tests.
func FuzzApplyHistory(f *testing.F) {
	for i := range 4 {
		f.Add(bytes.Repeat([]byte{byte(i), byte(i * 17), 3, 0, 0, 0, 0, 0}, 200+100*i))
	}
	f.Fuzz(rapid.MakeFuzz(func(r *rapid.T) {
		one, two := NewStore(), NewStore()
		for _, e := range genHistory(80).Draw(r, "log") {
			raw, err := e.Command.Encode()
			if err != nil {
				r.Fatal(err)
			}
			two = applyOnBoth(rapidTB{TB: f, t: r}, one, two, e.Index, raw)
		}
		t := rapidTB{TB: f, t: r}
		sameState(t, one, restored(t, two))
		checkDerived(t, one)
	}))
}

// rapidTB lets the helpers fail a rapid check.
type rapidTB struct {
	testing.TB
	t *rapid.T
}

// Helper, Fatal and Fatalf are testing.TB's.
func (r rapidTB) Helper()                           {}
func (r rapidTB) Fatal(args ...any)                 { r.t.Fatal(args...) }
func (r rapidTB) Fatalf(format string, args ...any) { r.t.Fatalf(format, args...) }

// FuzzRestore: a damaged snapshot is refused, without a crash or excessive memory. The second
// argument adds a valid trailer to the fuzzer's lines, as a faulty node would. Such a snapshot may
// be accepted, and then its state must survive being written and read again.
func FuzzRestore(f *testing.F) {
	good := persist(f, populated(f).store)
	body := good[:bytes.LastIndexByte(good[:len(good)-1], '\n')+1]
	header := good[:bytes.IndexByte(good, '\n')+1]
	f.Add(good, false)
	f.Add(good[:len(good)/2], false)
	f.Add([]byte(`{"bivouac_snapshot":1}`+"\n"+`{"table":"sandboxes","row":null}`+"\n"), false)
	f.Add(body, true)
	f.Add(append(bytes.Clone(header), `{"table":"sandboxes","row":null}`+"\n"...), true)
	for line := range bytes.Lines(body[len(header):]) {
		f.Add(append(bytes.Clone(header), line...), true)
		f.Add(bytes.Join([][]byte{header, line, line}, nil), true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, sealed bool) {
		if sealed {
			raw = seal(raw)
		}
		s := NewStore()
		before := allocated()
		err := s.Restore(bytes.NewReader(raw))
		if used := allocated() - before; used > 8<<20+1024*uint64(len(raw)) {
			t.Fatalf("%d bytes took %d bytes to restore", len(raw), used)
		}
		if err != nil {
			if s.Index() != 0 || s.View().AnyAPIKey() {
				t.Error("a refused snapshot was believed")
			}
			return
		}
		checkDerived(t, s)
		sameState(t, s, restored(t, s))
	})
}

// seal appends the trailer to the lines of a snapshot.
func seal(lines []byte) []byte {
	if len(lines) == 0 || lines[len(lines)-1] != '\n' {
		lines = append(bytes.Clone(lines), '\n')
	}
	sum := sha256.Sum256(lines)
	trailer, err := json.Marshal(snapshotTrailer{
		bytes.Count(lines, []byte("\n")) - 1,
		int64(len(lines)),
		hex.EncodeToString(sum[:]),
	})
	if err != nil {
		panic(fmt.Sprint("a trailer is plain data: ", err))
	}
	return append(append(bytes.Clone(lines), trailer...), '\n')
}

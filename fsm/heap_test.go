package fsm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

// heapShapes are rows as users make them: the i-th of each shape.
func heapShapes() map[string]func(i int) []any {
	at := testEpoch.Add(123456 * time.Microsecond)
	id := func(kind string, i int) string { return fmt.Sprintf("%s%08x%032x", kind, i*7919, i)[:32] }
	text := func(n int) *string { return ptr(strings.Repeat("x", n)) }
	birth := Birth{Cluster: id("c", 1), Nonce: id("b", 2)[:16], Index: 4711}
	ref := func(path string) SecretRef {
		return SecretRef{Path: path, Version: 3, Created: "2026-01-02T03:04:05.123456789Z"}
	}
	sandbox := func(i int) *Sandbox {
		s := &Sandbox{
			ID: id("s", i)[:22], UserID: "ada", SpecID: "py", CreatedAt: at, KeyRef: ref(
				"sandboxes/" + id("s", i)[:22] + "/session",
			),
			KeyHash: sha(id("k", i)), Desired: DesiredRunning, Generation: 1, DesiredAt: at, DesiredIndex: 5, Birth: birth,
		}
		spec := dockerSpec("py")
		s.Template = spec.Template
		s.Template.Image = "ghcr.io/openhands/agent-server:1.44.0-python"
		s.Template.Env = map[string]string{"A": "1", "B": "two", "PATH_OF_SOMETHING": "/usr/local/bin"}
		s.Status = SandboxStatus{State: SandboxRunning, Generation: 1, Since: at, LastActive: at, Placement: &Placement{}}
		return s
	}
	conversation := func(i, n int) *Conversation {
		return &Conversation{
			ID: id("c", i), UserID: "ada", SandboxID: id("s", i)[:22], SelectedRepository: text(24), SelectedBranch: text(4),
			GitProvider: ptr(ProviderGitHub), Title: text(n), Trigger: text(3), LLMModel: text(24), AgentKind: "openhands",
			CreatedAt: at.Add(time.Duration(i) * time.Second), UpdatedAt: at.Add(time.Duration(i) * time.Second),
		}
	}
	task := func(i, n int, status StartTaskStatus) *StartTask {
		t := &StartTask{
			ID: id("t", i), UserID: "ada", Status: status, ConversationID: id("c", i), SandboxID: id("s", i)[:22],
			AgentServerURL: "http://10.1.2.3:23456", Request: messageOf(n), Secrets: ref("users/ada/start_tasks/" + id("t", i)),
			CreatedAt: at.Add(time.Duration(i) * time.Second), UpdatedAt: at, CreatedIndex: uint64(i),
		}
		t.Request.SelectedRepository, t.Request.LLMModel = text(24), text(24)
		if t.Done() {
			t.Request = t.Request.withoutBodies()
		}
		return t
	}
	record := func(i int, r Result) *commandRecord {
		r.Index = uint64(i + 1)
		return &commandRecord{
			ID:          "idem:ada:" + id("k", i),
			Type:        string(SandboxPause),
			UserID:      "ada",
			Fingerprint: sha(id("f", i)),
			Time:        at.Add(time.Duration(i) * time.Second),
			Result:      r,
		}
	}
	return map[string]func(i int) []any{
		"conversation":      func(i int) []any { return []any{conversation(i, 30)} },
		"conversation long": func(i int) []any { return []any{conversation(i, 4000)} },
		"sandbox":           func(i int) []any { return []any{sandbox(i)} },
		"task ready":        func(i int) []any { return []any{task(i, 500, StartTaskReady)} },
		"task":              func(i int) []any { return []any{task(i, 500, StartTaskWorking)} },
		"task long":         func(i int) []any { return []any{task(i, 50000, StartTaskWorking)} },
		"together": func(i int) []any {
			return []any{
				conversation(i, 30),
				sandbox(i),
				task(i, 500, StartTaskReady),
			}
		},
		"custom secret": func(i int) []any {
			return []any{
				&CustomSecret{
					UserID:      "ada",
					Name:        fmt.Sprint("NAME_", i),
					Description: "what it is for",
					Ref:         ref(fmt.Sprint("users/ada/secrets/NAME_", i)),
				},
			}
		},
		"settings": func(i int) []any {
			return []any{&Settings{UserID: fmt.Sprint("user", i), UpdatedAt: at, LLMAPIKey: ref(fmt.Sprint("users/user", i,
				"/settings/llm_api_key")),
				Values: SettingsValues{Language: text(2), LLMModel: text(24), LLMBaseURL: text(30)}}}
		},
		"provider": func(i int) []any {
			return []any{
				&Provider{
					UserID: fmt.Sprint("user", i),
					Type:   ProviderGitHub,
					Host:   text(12),
					Ref:    ref(fmt.Sprint("users/user", i, "/providers/github")),
				},
			}
		},
		"lost": func(i int) []any {
			return []any{&Orphan{
				Sandbox: id("s", i)[:22], Kind: OrphanLost, Reason: OrphanLost, Birth: birth.String(), Since: at, Owner: "ada",
				Client: id("n", i), Volume: id("v", i), Bytes: 1 << 20,
			}}
		},
		"replaced secret": func(i int) []any {
			return []any{
				&replacedSecret{UserID: "ada", Path: fmt.Sprint("users/ada/settings/llm_api_key", i), Version: i, Since: at},
			}
		},
		"conversation with events": func(i int) []any {
			c := conversation(i, 30)
			c.Events = &EventChain{Key: ChainKey([]byte(id("k", i))[:16]), Number: 9}
			c.Said = &EventFacts{Status: "running", Usage: AgentUsage{Model: id("m", i)}}
			return []any{c}
		},
		"setup": func(i int) []any {
			return []any{&Setup{
				UserID: "ada", Repository: "https://github.com/octo/app.git", Hash: sha(fmt.Sprint(i)), Answer: SetupAccepted,
				AskedAt: at, UsedAt: at,
			}}
		},
		"profile": func(i int) []any {
			return []any{&Profile{
				UserID: "ada", Kind: ProfileLLM, Name: fmt.Sprint("profile-", i), ID: id("p", i), Model: *text(24),
				BaseURL: *text(30), Key: ref("users/ada/profiles/" + id("p", i)),
			}}
		},
		"profile, agent": func(i int) []any {
			return []any{&Profile{
				UserID: "ada", Kind: ProfileAgent, Name: fmt.Sprint("profile-", i), ID: id("p", i),
				Document: json.RawMessage(`{"agent_kind":"openhands","llm_profile_ref":"` + *text(900) + `"}`),
			}}
		},
		"result, profile": func(i int) []any {
			return []any{record(i, Result{Profile: &Profile{UserID: "ada", Kind: ProfileLLM, Name: "n", ID: id("p", i)}})}
		},
		"result, own key": func(i int) []any {
			r := record(i, Result{APIKey: &APIKey{
				ID: i, Lookup: id("l", i)[:12], Hash: sha(id("h", i)), Name: *text(200), UserID: "ada", Role: RoleUser,
				CreatedAt: at, ExpiresAt: &at,
			}})
			r.Type = string(OwnKeyCreate)
			return []any{r}
		},
		"session": func(i int) []any {
			return []any{&Session{Hash: sha(fmt.Sprint(i)), UserID: "ada", KeyID: 1, CreatedAt: at, SeenAt: at}}
		},
		"sign-in code": func(i int) []any {
			return []any{&SignInCode{Hash: sha(fmt.Sprint(i)), UserID: "ada", KeyID: 1, Until: at}}
		},
		"device": func(i int) []any {
			return []any{&Device{Hash: sha(fmt.Sprint(i)), UserCode: sha(fmt.Sprint("u", i)), Name: *text(20),
				Address: *text(12), UserID: "ada", KeyID: 1, Until: at}}
		},
		"task asking": func(i int) []any {
			one := task(i, 500, StartTaskRunningSetupScript)
			one.Setup = &TaskSetup{Repository: *text(40), Hash: sha(fmt.Sprint(i)), Directory: *text(40)}
			for n := range 3 {
				one.Setup.Files = append(one.Setup.Files, SetupFile{Path: *text(24), SHA256: sha(fmt.Sprint(i, n))})
			}
			return []any{one}
		},
		"result":          func(i int) []any { return []any{record(i, Result{})} },
		"result, sandbox": func(i int) []any { return []any{record(i, Result{Sandbox: sandbox(i)})} },
		"result, failed": func(i int) []any {
			r := record(i, Result{})
			r.Err = Errorf(CodeConflict, "the sandbox %s is being deleted: create another", id("s", i))
			return []any{r}
		},
		"result, conversation": func(i int) []any { return []any{record(i, Result{Conversation: conversation(i, 30)})} },
		"result, task": func(i int) []any {
			task := task(i, 500, StartTaskWorking)
			task.Request = task.Request.withoutLarge()
			return []any{record(i, Result{StartTask: task})}
		},
	}
}

// heapOf returns what n rows of a shape take in a store that was restored, and what they count, in bytes a row.
func heapOf(t *testing.T, n int, shape func(i int) []any) (heap, counted int) {
	t.Helper()
	f := newFixture(t).open()
	f.do("", &ProtocolRaiseBody{Version: ProtocolVersion})
	s := f.store
	v := s.View()
	tx := &transaction{store: s, before: v, txn: s.db.Txn(true), meta: v.meta, index: v.index}
	for i := range n {
		for _, row := range shape(i) {
			switch row := row.(type) {
			case *Conversation:
				put(tx, tableConversations, nil, row)
			case *Sandbox:
				put(tx, tableSandboxes, nil, row)
			case *StartTask:
				put(tx, tableStartTasks, nil, row)
			case *CustomSecret:
				put(tx, tableCustomSecrets, nil, row)
			case *Settings:
				put(tx, tableSettings, nil, row)
			case *Provider:
				put(tx, tableProviders, nil, row)
			case *Orphan:
				put(tx, tableOrphans, nil, row)
			case *replacedSecret:
				put(tx, tableReplaced, nil, row)
			case *Setup:
				put(tx, tableSetups, nil, row)
			case *Profile:
				put(tx, tableProfiles, nil, row)
			case *Session:
				put(tx, tableSessions, nil, row)
			case *SignInCode:
				put(tx, tableSignInCodes, nil, row)
			case *Device:
				put(tx, tableDevices, nil, row)
			case *commandRecord:
				put(tx, tableClientCommands, nil, row)
			}
		}
	}
	tx.txn.Commit()
	s.publish(&View{index: v.index, meta: v.meta, txn: s.db.Txn(false), commands: s.commands}, new(epoch))
	var file bytes.Buffer
	if err := s.Snapshot().Persist(&file); err != nil {
		t.Fatal(err)
	}
	raw := file.Bytes()
	inUse := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := inUse()
	again := NewStore()
	if err := again.Restore(bytes.NewReader(raw)); err != nil {
		t.Fatal(err)
	}
	after := inUse()
	counted = again.View().Usage("").StateBytes
	runtime.KeepAlive(again)
	runtime.KeepAlive(s)
	runtime.KeepAlive(raw)
	return int(after-before) / n, counted / n
}

// heapProcess is set in the process that measures.
const heapProcess = "BIVOUAC_TEST_HEAP"

// TestState_HeapIsWhatIsCounted: what the rows of users take in memory is 1.0 to 1.3 times what they
// count for. It measures in a process of its own, where nothing else allocates.
func TestState_HeapIsWhatIsCounted(t *testing.T) {
	if os.Getenv(heapProcess) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), heapProcess+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if raceEnabled {
		t.Skip("the race detector takes memory of its own")
	}
	const rows = 400
	for name, shape := range heapShapes() {
		heap, counted := heapOf(t, rows, shape)
		// What an open task counts for beside its own size is for the sandbox that it becomes.
		if task, ok := shape(0)[0].(*StartTask); ok && !task.Done() {
			counted -= openTaskOverhead
		}
		ratio := float64(heap) / float64(counted)
		t.Logf("%-22s heap %6d counted %6d: %.2f", name, heap, counted, ratio)
		if ratio < 1 || ratio > 1.3 {
			t.Errorf("%s: a row takes %d bytes of memory and counts for %d", name, heap, counted)
		}
	}
}

// TestState_CountedAgain: the raise of the protocol version counts all rows as a restart at the new
// version does.
func TestState_CountedAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.do("", &ProtocolRaiseBody{Version: VersionStarts})
	f.sandbox("ada", "sb1")
	f.conversation("ada", "c1")
	f.do("bob",
		&SettingsPutBody{
			Values:        SettingsValues{Language: ptr("en")},
			CustomSecrets: []CustomSecret{{Name: "n", Ref: SecretRef{Path: "p", Version: 1}}},
		})
	f.do("bob", &StartTaskCreateBody{ID: "t1", ConversationID: "c2", Request: messageOf(100)})
	if _, err := f.client("ada", "k", "f", &SandboxPauseBody{ID: "sb1"}); err != nil {
		t.Fatal(err)
	}
	before := f.store.View().Usage("")
	f.do("", &ProtocolRaiseBody{Version: VersionRoom})
	again := restored(t, f.store).View()
	for _, user := range []string{"", "ada", "bob"} {
		if got, want := f.store.View().Usage(user), again.Usage(user); got != want {
			t.Errorf("%q uses %+v after the raise and %+v after a restart", user, got, want)
		}
	}
	if after := f.store.View().Usage(""); after.StateBytes <= before.StateBytes || after.Total != before.Total {
		t.Errorf("before the raise %+v, after it %+v", before, after)
	}
}

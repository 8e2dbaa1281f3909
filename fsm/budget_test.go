//go:build !race

package fsm_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local/ownprocess"
	"bivouac.dev/bivouac/fsm"
)

// budgetSettings is the body of a settings.put of typical size.
const budgetSettings = `{"values":{"language":"en","agent":"CodeActAgent",` +
	`"max_iterations":100,"confirmation_mode":true,` +
	`"llm_model":"anthropic/claude-sonnet-4","llm_base_url":"https://llm.example.org/v1",` +
	`"enable_default_condenser":true,` +
	`"git_user_name":"Ada","git_user_email":"ada@example.org"},` +
	`"llm_api_key":{"path":"users/ada/settings/llm_api_key","version":1}}`

// TestBudget holds the allocations of a command from its bytes to the store, and of a read.
func TestBudget(t *testing.T) {
	if !ownprocess.Enter(t, "GOGC=off") {
		return
	}
	body := new(fsm.SettingsPutBody)
	if err := json.Unmarshal([]byte(budgetSettings), body); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	store, n := fsm.NewStore(), uint64(0)
	// The ids exist before the measurement: they are the caller's.
	ids := make([]string, 40_000)
	for i := range ids {
		ids[i] = fmt.Sprintf("command-%016d", i)
	}
	next := func(user string, body fsm.Body) fsm.Entry {
		n++
		return fsm.Entry{Index: n, Command: fsm.NewCommand(ids[n], at.Add(time.Duration(n)*time.Millisecond), user, body)}
	}
	lookup := "0123456789ab"
	for _, first := range []fsm.Body{
		&fsm.TermOpenBody{Term: 1, Node: "n1", ClusterID: "c1"}, &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion},
		&fsm.APIKeyCreateBody{Lookup: lookup, Hash: fmt.Sprintf("%064d", 1), Name: "k", UserID: "ada"},
	} {
		if o := store.ApplyBatch([]fsm.Entry{next("", first)})[0]; o.Err != nil {
			t.Fatal(o.Err)
		}
	}
	credential := fsm.Credential{Lookup: lookup}
	settings := func() fsm.Entry {
		e := next("ada", body)
		e.Command.Credential = credential
		return e
	}
	cmd := settings().Command
	raw, err := cmd.Encode()
	if err != nil {
		t.Fatal(err)
	}
	inBinary, err := cmd.EncodeBinary()
	if err != nil {
		t.Fatal(err)
	}
	apply := func(batch []fsm.Entry) func() {
		return func() {
			for i := range batch {
				batch[i] = settings()
			}
			for _, o := range store.ApplyBatch(batch) {
				if o.Err != nil {
					t.Fatal(o.Err)
				}
			}
		}
	}
	ownprocess.CheckBudget(t, []ownprocess.Step{
		{Name: "encode a command", Allocs: 6, Bytes: 1552, Run: func() { _, _ = cmd.Encode() }},
		{Name: "decode a command", Allocs: 15, Bytes: 696, Run: func() { _, _ = fsm.DecodeCommand(raw) }},
		{Name: "encode a command in binary", Allocs: 3, Bytes: 1104, Run: func() { _, _ = cmd.EncodeBinary() }},
		{Name: "decode a command in binary", Allocs: 13, Bytes: 520, Run: func() { _, _ = fsm.DecodeCommand(inBinary) }},
		{Name: "apply a command", Allocs: 90, Bytes: 7500, Run: apply(make([]fsm.Entry, 1))},
		{Name: "apply a batch of 16 commands", Allocs: 525, Bytes: 38800, Run: apply(make([]fsm.Entry, 16))},
		{Name: "view: key, user and settings", Allocs: 12, Bytes: 296, Run: func() {
			v := store.View()
			if !v.Good("ada", credential, at) || v.Settings("ada") == nil {
				t.Fatal("there are no settings")
			}
		}},
	})
}

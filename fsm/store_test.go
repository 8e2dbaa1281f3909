package fsm

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

var hash64 = strings.Repeat("ab", 32)

func TestSmoke(t *testing.T) {
	s := NewStore()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	i := uint64(0)
	do := func(user string, b Body) Result {
		t.Helper()
		i++
		cmd := NewCommand("c"+string(rune('a'+i)), now, user, b)
		raw, err := cmd.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if cmd, err = DecodeCommand(raw); err != nil {
			t.Fatal(err)
		}
		r, err := s.Apply(i, cmd)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	do("", &TermOpenBody{Term: 1, Node: "n1", ClusterID: "x"})
	do("", &APIKeyCreateBody{Lookup: "abc", Hash: hash64, UserID: "u", Bootstrap: true})
	do("u", &SettingsPutBody{Providers: []Provider{{Type: ProviderGitHub}}})
	do("", &SpecApplyBody{Specs: []Spec{{ID: "s", Template: Template{Driver: DriverProcess, Command: "x", Ports: map[string]int{PortAgentServer: 0}}}}})
	do("u", &SandboxCreateBody{ID: "sb", KeyRef: SecretRef{"p", 1}, KeyHash: hash64})
	do("u", &SandboxPauseBody{ID: "sb"})
	do("u", &StartTaskCreateBody{ID: "t1", ConversationID: "c1"})
	do("", &StartTaskBindBody{ID: "t1", SandboxID: "sb"})
	do("", &StartTaskAdvanceBody{ID: "t1", Status: StartTaskStartingConversation})
	do("", &StartTaskFinishBody{ID: "t1", Conversation: Conversation{ID: "c1", SandboxID: "sb"}})
	var buf bytes.Buffer
	if err := s.Snapshot().Persist(&buf); err != nil {
		t.Fatal(err)
	}
	t.Log(buf.String())
	n := NewStore()
	if err := n.Restore(&buf); err != nil {
		t.Fatal(err)
	}
	if n.Checksum() != s.Checksum() {
		t.Fatal("checksum")
	}
	if cs, _ := n.View().Conversations("u", ConversationFilter{}, Page{}); len(cs) != 1 {
		t.Fatal(cs)
	}
}

package llmtoken

import (
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

func TestToken_IsGoodForOneConversationOfOneStart(t *testing.T) {
	t.Parallel()
	row := &fsm.Sandbox{ID: "sb-1", UserID: "alice", Generation: 3, Desired: fsm.DesiredRunning}
	token := New("key", row, "c1")
	claim, ok := Parse(token)
	if !ok || claim.Sandbox != "sb-1" || claim.Conversation != "c1" || !claim.Valid("key", row) {
		t.Fatalf("%q is %+v, %t", token, claim, ok)
	}
	change := func(f func(*fsm.Sandbox)) *fsm.Sandbox {
		other := *row
		f(&other)
		return &other
	}
	for name, valid := range map[string]bool{
		"another key":      claim.Valid("other", row),
		"no key":           claim.Valid("", row),
		"a later start":    claim.Valid("key", change(func(s *fsm.Sandbox) { s.Generation++ })),
		"a paused sandbox": claim.Valid("key", change(func(s *fsm.Sandbox) { s.Desired = fsm.DesiredPaused })),
		"another sandbox":  claim.Valid("key", change(func(s *fsm.Sandbox) { s.ID = "sb-2" })),
		"another owner":    claim.Valid("key", change(func(s *fsm.Sandbox) { s.UserID = "bob" })),
		"another conversation": func() bool {
			forged, ok := Parse(strings.Replace(token, ".c1.", ".c2.", 1))
			return ok && forged.Valid("key", row)
		}(),
	} {
		if valid {
			t.Errorf("%s: the token is good", name)
		}
	}
}

func TestToken_ParseRefusesWhatCanNotBeOne(t *testing.T) {
	t.Parallel()
	whole := New("key", &fsm.Sandbox{ID: "sb-1"}, "c1")
	for _, text := range []string{
		"",
		"sk-1",
		"bvllm...",
		"bvllm.a.b.",
		whole + "A",
		whole + ".x",
		whole[:len(whole)-1],
		strings.Replace(whole, prefix, "x", 1),
		"bvllm.a.b." + strings.Repeat("A", 1<<16),
	} {
		if c, ok := Parse(text); ok {
			t.Errorf("%.60q is %+v", text, c)
		}
	}
}

package fsm

import (
	"strings"
	"testing"
)

// TestStartTaskCreate_Size: below protocol version 3 a start has the bound of the nodes of that
// time, or they would refuse what the others apply. From version 3 on it has the log's.
func TestStartTaskCreate_Size(t *testing.T) {
	t.Parallel()
	start := func(id string, bytes int) *StartTaskCreateBody {
		m := &Message{Role: "user", Content: []ContentBlock{{Type: "image", ImageURLs: []string{strings.Repeat("A", bytes)}}}}
		return &StartTaskCreateBody{
			ID:             id,
			ConversationID: "c" + id,
			Request:        StartRequest{SandboxID: ptr("sb"), InitialMessage: m},
		}
	}
	f := newFixture(t).open()
	f.sandbox("ada", "sb")
	f.do("ada", start("1", 2<<20-2000))
	_ = f.fails(CodeInvalid, "ada", start("2", 2<<20))
	if err := f.store.View().StartAdmission("ada", &start("3", 2<<20).Request, f.now); err == nil ||
		err.Code != CodeInvalid {
		t.Errorf("admission: %v", err)
	}
	f.do("", &ProtocolRaiseBody{Version: ProtocolVersion})
	large := start("4", 6<<20)
	if err := f.store.View().StartAdmission("ada", &large.Request, f.now); err != nil {
		t.Errorf("admission: %v", err)
	}
	f.do("ada", large)
	if _, err := f.command("ada", large).Encode(); err != nil {
		t.Errorf("it does not fit the log: %v", err)
	}
	if _, err := f.command("ada", start("5", MaxCommandBytes)).Encode(); CodeOf(err) != CodeInvalid {
		t.Errorf("more than the log takes: %v", err)
	}
}

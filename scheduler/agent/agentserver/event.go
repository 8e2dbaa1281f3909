package agentserver

import (
	"crypto/rand"
	"encoding/hex"

	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
)

// eventTime is the format of event times: UTC without a zone, as the protocol requires. All have
// the same length, so they compare as text.
const eventTime = "2006-01-02T15:04:05.000000"

// The kinds of event that this server creates.
const (
	kindMessage     = "MessageEvent"
	kindStateUpdate = "ConversationStateUpdateEvent"
	kindPause       = "PauseEvent"
	kindError       = "ConversationErrorEvent"
)

const modelNotCalled = "This agent server does not call a model yet: the message is kept, and nothing was run."

func newEvent(kind, source string) map[string]any {
	return map[string]any{"id": newUUID(), "timestamp": now().Format(eventTime), "kind": kind, "source": source}
}

func messageEvent(m agent.Message) map[string]any {
	source := "user"
	if m.Role == "assistant" {
		source = "agent"
	}
	e := newEvent(kindMessage, source)
	e["llm_message"] = map[string]any{"role": m.Role, "content": m.Content}
	e["activated_skills"] = []string{}
	e["extended_content"] = []string{}
	return e
}

func statusEvent(status string) map[string]any {
	e := newEvent(kindStateUpdate, "environment")
	e["key"], e["value"] = "execution_status", status
	return e
}

// runEvents are the events of a run: the error that no model is called, and the status idle.
func runEvents() []map[string]any {
	e := newEvent(kindError, "environment")
	e["code"], e["detail"] = "ModelNotCalled", modelNotCalled
	return []map[string]any{e, statusEvent(statusIdle)}
}

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return decode.Dashed(hex.EncodeToString(b[:]))
}

package e2e

import (
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// otherModelKey is the owner's key for the other server of models.
const otherModelKey = "sk-of-the-other-server-0123456789"

// TestWork_StaysAtItsServer: a conversation whose owner's settings name another server of models goes on
// at its own, with that one's key. Its owner moves it, and the history goes along. Neither key enters
// the sandbox.
func TestWork_StaysAtItsServer(t *testing.T) {
	w := startWork(t, agentPath(t), workScript())
	script := workScript()
	script.Key = otherModelKey
	other := modeltest.New(t, script)
	w.start(nil)
	// asks returns how many requests an answer cost each server.
	asks := func(text string) (own, others int) {
		t.Helper()
		before, beforeOther := len(w.model.Requests()), len(other.Requests())
		w.say(text)
		w.becomes("finished")
		w.says("It still passes.")
		return len(w.model.Requests()) - before, len(other.Requests()) - beforeOther
	}
	if own, others := asks("the first confidential question"); own == 0 || others > 0 {
		t.Fatalf("%d requests at its server, %d at the other", own, others)
	}
	w.isCalled("Mend the greeting") // the last request of the first answer
	w.Sure(t, http.MethodPost, "/api/settings",
		map[string]any{"llm_api_key": otherModelKey, "llm_base_url": other.BaseURL()}, nil)
	if own, others := asks("the second confidential question"); own == 0 || others > 0 {
		t.Errorf("with other settings %d requests at its server, %d at the other", own, others)
	}
	w.Sure(t, http.MethodPost, "/api/v1/app-conversations/"+w.conversation+"/switch_llm", map[string]any{}, nil)
	if own, others := asks("the third question"); own > 0 || others == 0 {
		t.Errorf("after its owner moved it %d requests at its first server, %d at the other", own, others)
	}
	for _, server := range []struct {
		*modeltest.Server
		key string
	}{{w.model, workModelKey}, {other, otherModelKey}} {
		for _, r := range server.Requests() {
			if r.Key != server.key {
				t.Errorf("a server got the key %q", r.Key)
			}
		}
	}
	if all := other.Requests(); len(all) == 0 || !strings.Contains(string(all[len(all)-1].Body),
		"the first confidential question") {
		t.Error("the history did not go along")
	}
	w.keepsNoKey(otherModelKey)
}

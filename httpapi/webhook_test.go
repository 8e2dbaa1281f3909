package httpapi

import (
	"fmt"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
)

// A title change is an entry of the log: a sandbox has a limiter of its own.
func TestWebhook_TitlesOfOneSandboxAreLimited(t *testing.T) {
	h := newHarness(t).newest().withSpec()
	send := func(sandbox, id string, n int) reply {
		key := h.secrets.last(fsm.SandboxKeyPath(sandbox))["key"]
		return h.do(key, "POST", pathWebhooks+"/conversations",
			fmt.Sprintf(`{"id":%q,"title":"title %d"}`, decode.Dashed(id), n))
	}
	busy, calm := h.createSandbox(h.alice), h.createSandbox(h.alice)
	first, second := h.conversation("alice", busy), h.conversation("alice", calm)
	taken := 0
	for n := range 1000 {
		res := send(busy, first, n)
		if res.status == 200 {
			taken++
		} else if res.want(t, 429).header.Get("Retry-After") != "10" {
			t.Fatalf("%v", res.header)
		}
	}
	if taken < titleBurst || taken > 2*titleBurst {
		t.Errorf("%d of 1000 changes are taken", taken)
	}
	send(calm, second, 1).want(t, 200)
	send(calm, second, 1).want(t, 200) // no change is none
}

// A title stands among others in lists and on terminals.
func TestTitles_HaveNoControlsOfDirection(t *testing.T) {
	h := newHarness(t).newest().withSpec().withSettings()
	sb := h.createSandbox(h.alice)
	id := h.conversation("alice", sb)
	key := h.secrets.last(fsm.SandboxKeyPath(sb))["key"]
	for _, control := range []string{`\u202e`, `\u2066`, `\u200f`, `\u061c`, "\u202d"} {
		for _, tt := range []struct{ key, method, path, body string }{
			{h.alice, "PATCH", pathConversations + "/" + id, `{"title":"a%sb"}`},
			{h.alice, "POST", pathConversations, `{"title":"a%sb"}`},
			{h.alice, "POST", "/api/conversations", `{"create_microagent":{"repo":"a/b","title":"a%sb"}}`},
			{key, "POST", pathWebhooks + "/conversations", `{"id":"` + id + `","title":"a%sb"}`},
		} {
			res := h.do(tt.key, tt.method, tt.path, fmt.Sprintf(tt.body, control)).want(t, 422)
			if !strings.Contains(string(res.body), "direction") {
				t.Errorf("%s %s: %s", tt.method, tt.path, res.body)
			}
		}
	}
	h.do(h.alice, "PATCH", pathConversations+"/"+id, `{"title":"שלום 👩‍💻"}`).want(t, 200)
}

// TestWebhook_Title: an agent server names its own conversation, unless a user has.
func TestWebhook_Title(t *testing.T) {
	h := newHarness(t).newest().withSpec()
	sb := h.createSandbox(h.alice)
	key := h.secrets.last(fsm.SandboxKeyPath(sb))["key"]
	id := h.conversation("alice", sb)
	const path = pathWebhooks + "/conversations"
	send := func(key, title string) reply {
		return h.do(key, "POST", path,
			fmt.Sprintf(`{"id":%q,"title":%s,"execution_status":"running","tags":{"a":"b"}}`, decode.Dashed(id), title))
	}
	title := func(want string) {
		t.Helper()
		var list []struct{ Title string }
		h.do(h.alice, "GET", pathConversations+"?ids="+id, "").want(t, 200).json(t, &list)
		if len(list) != 1 || list[0].Title != want {
			t.Fatalf("the title is %+v, want %q", list, want)
		}
	}
	// The sandbox is STARTING: an agent server may be sooner than its report.
	send(key, `null`).want(t, 200)
	title("Conversation " + id[:5])
	send(key, `"Mend the greeting"`).want(t, 200).is(t, `{"success":true}`)
	title("Mend the greeting")
	send(key, `"Mend it well"`).want(t, 200)
	title("Mend it well")

	h.do(h.alice, "PATCH", pathConversations+"/"+id, `{"title":"Mine"}`).want(t, 200)
	send(key, `"Theirs"`).want(t, 200)
	title("Mine")

	h.do("", "POST", path, `{}`).want(t, 401)
	send(h.alice, `"x"`).want(t, 401)
	send(key, `5`).want(t, 422)
	send(key, `"`+strings.Repeat("x", 201)+`"`).want(t, 422)
	h.do(key, "POST", path, `{"title":"x"}`).want(t, 422)
	h.do(key, "POST", path, `{"id":"x"}`).want(t, 422)
	h.do(key, "POST", path, fmt.Sprintf(`{"id":%q,"title":"x"}`, newHexID())).want(t, 404)
	other := h.createSandbox(h.bob)
	send(h.secrets.last(fsm.SandboxKeyPath(other))["key"], `"x"`).want(t, 404)
	second := h.createSandbox(h.alice)
	send(h.secrets.last(fsm.SandboxKeyPath(second))["key"], `"x"`).want(t, 404)
	title("Mine")
	h.do(h.alice, "DELETE", pathSandboxes+"/"+sb, "").want(t, 200)
	send(key, `"x"`).want(t, 401)
}

// TestWebhook_UserWasFaster: a title that a user gives while the webhook is under way stays.
func TestWebhook_UserWasFaster(t *testing.T) {
	h := newHarness(t).newest().withSpec()
	id := h.conversation("alice", h.createSandbox(h.alice))
	mine, theirs := "Mine", "Theirs"
	h.apply("alice", &fsm.ConversationUpdateBody{ID: id, Set: []string{"title"}, Title: &mine})
	h.apply("alice", &fsm.ConversationUpdateBody{ID: id, Set: []string{"title"}, Title: &theirs, Automatic: true})
	if got := h.do(h.alice, "GET", pathConversations+"?ids="+id,
		"").want(t, 200); !strings.Contains(string(got.body), `"title":"Mine"`) {
		t.Errorf("the conversation is %s", got.body)
	}
}

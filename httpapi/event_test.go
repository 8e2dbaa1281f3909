package httpapi

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/eventin"
)

// sending is a sandbox of alice that sends events of its conversation.
type sending struct {
	*harness
	sandbox, key, talk string
}

func newSending(t *testing.T) sending {
	h := newHarness(t).newest().withSpec()
	s := sending{harness: h, sandbox: h.createSandbox(h.alice)}
	s.key, s.talk = h.secrets.last(fsm.SandboxKeyPath(s.sandbox))["key"], h.conversation("alice", s.sandbox)
	return s
}

// sentAs is an event as an agent server sends it.
func sentAs(id, kind, text string, second int) string {
	return fmt.Sprintf(`{"id":%q,"timestamp":"2026-01-02T03:04:%02d.5","source":"agent","parent_id":null,`+
		`"kind":%q,"new":{"text":%q}}`,
		id, second, kind, text)
}

// withEvent stores an event of a conversation for a route that needs one.
func (h *harness) withEvent(r route, sandbox, conversation string) {
	h.t.Helper()
	if !strings.Contains(r.path, ":event_id") {
		return
	}
	h.newest()
	s := sending{harness: h, sandbox: sandbox, key: h.secrets.last(fsm.SandboxKeyPath(sandbox))["key"]}
	s.post(s.key, conversation, "", sentAs("a", "MessageEvent", "one", 1)).want(h.t, 200)
}

// post sends events to a conversation; position "" is none.
func (s sending) post(key, conversation, position string, events ...string) reply {
	s.t.Helper()
	r := httptest.NewRequest(http.MethodPost, pathWebhooks+"/events/"+conversation,
		strings.NewReader("["+strings.Join(events, ",")+"]"))
	r.Header.Set("X-Session-Api-Key", key)
	if position != "" {
		r.Header.Set(headerPosition, position)
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return reply{status: w.Code, header: w.Header(), body: w.Body.Bytes()}
}

// get reads events of a conversation as a user.
func (s sending) get(key, conversation, rest string) reply {
	s.t.Helper()
	return s.do(key, "GET", "/api/v1/conversation/"+conversation+"/events"+rest, "")
}

// ids are those of a page of events, and its next page.
func (s sending) ids(rest string) (ids, next string) {
	s.t.Helper()
	var page struct {
		Items []struct{ ID string }
		Next  *string `json:"next_page_id"`
	}
	s.get(s.alice, s.talk, rest).want(s.t, 200).json(s.t, &page)
	for _, e := range page.Items {
		ids += e.ID
	}
	return ids, decode.OrZero(page.Next)
}

// TestEvents_InAndOut: what an agent server sends is kept once, unchanged and in its order, and is read
// with the sandbox gone.
func TestEvents_InAndOut(t *testing.T) {
	s := newSending(t)
	one, two := sentAs("a", "MessageEvent", "one", 1), sentAs("b", "ActionEvent", "two", 2)
	three := sentAs("c", "MessageEvent", "three", 3)
	s.post(s.key, s.talk, "", one).want(t, 200).is(t, `{"success":true}`)
	s.post(s.key, decode.Dashed(s.talk), "", one, two,
		sentAs("x", eventin.KindDelta, "piece", 2),
		`{"id":"y","kind":"ConversationStateUpdateEvent","key":"full_state"}`).want(t, 200)
	s.post(s.key, s.talk, "5", three).want(t, 409)
	if res := s.post(s.key, s.talk, "5", three); res.header.Get(headerPosition) != "2" {
		t.Errorf("the position after a gap: %v", res.header)
	}
	s.post(s.key, s.talk, "1", two, three).want(t, 200)
	s.do(s.alice, "DELETE", pathSandboxes+"/"+s.sandbox, "").want(t, 200)
	s.post(s.key, s.talk, "", sentAs("d", "MessageEvent", "late", 4)).want(t, 401)

	s.get(s.alice, s.talk, "/search").want(t, 200).is(t, `{"items":[`+one+`,`+two+`,`+three+`],"next_page_id":null}`)
	for rest, want := range map[string]string{
		"/search": "abc", "/search?limit=2": "ab", "/search?sort_order=TIMESTAMP_DESC": "cba",
		"/search?kind__eq=MessageEvent":              "ac",
		"/search?timestamp__gte=2026-01-02T03:04:02": "bc", "/search?timestamp__lt=2026-01-02T03:04:02.5": "a",
		"/search?sort_order=TIMESTAMP_DESC&limit=1&kind__eq=ActionEvent": "b", "/search?kind__eq=PauseEvent": "",
	} {
		if got, _ := s.ids(rest); got != want {
			t.Errorf("%s: %q, want %q", rest, got, want)
		}
	}
	for _, order := range []string{"", "&sort_order=TIMESTAMP_DESC"} {
		all, token := "", ""
		for range 3 {
			got, next := s.ids("/search?limit=1" + order + token)
			all += got
			token = "&page_id=" + next
		}
		if want := map[string]string{"": "abc"}[order]; all != want && want != "" || token != "&page_id=" || len(all) != 3 {
			t.Errorf("by pages%s: %q, and then %q", order, all, token)
		}
	}
	s.get(s.alice, s.talk, "/count").want(t, 200).is(t, `3`)
	s.get(s.alice, s.talk, "/count?kind__eq=MessageEvent").want(t, 200).is(t, `2`)
	s.get(s.alice, s.talk, "?id=c&id=nope&id=a").want(t, 200).is(t, `[`+three+`,null,`+one+`]`)
	s.get(s.alice, s.talk, "/b").want(t, 200).is(t, two)
	s.get(s.alice, s.talk, "/nope").want(t, 404).is(t, `{"detail":"Event not found"}`)
}

// TestEvents_AreTheSandboxsOwn: forged events of other conversations, and what is no event, are refused.
func TestEvents_AreTheSandboxsOwn(t *testing.T) {
	s := newSending(t)
	other := s.createSandbox(s.bob)
	foreign := s.harness.conversation("bob", other)
	good := sentAs("a", "MessageEvent", "one", 1)
	s.post(s.key, foreign, "", good).want(t, 404)
	s.post(s.key, newHexID(), "", good).want(t, 404)
	s.post("", s.talk, "", good).want(t, 401)
	for id, status := range map[string]int{s.sandbox: 200, other: 401, "nonsense": 401} { // as [0.62] has it
		r := httptest.NewRequest(http.MethodPost, pathWebhooks+"/"+id+"/events/"+s.talk, strings.NewReader("[]"))
		r.Header.Set("X-Session-Api-Key", s.key)
		w := httptest.NewRecorder()
		if s.handler.ServeHTTP(w, r); w.Code != status {
			t.Errorf("the path of %s: %d", id, w.Code)
		}
	}
	s.post(s.alice, s.talk, "", good).want(t, 401)
	s.post(s.key, "nonsense", "", good).want(t, 422)
	s.post(s.key, s.talk, "first", good).want(t, 422)
	for _, bad := range []string{`5`, `{"kind":"MessageEvent"}`, `{"id":7}`, `{"id":"` + strings.Repeat("x", 300) + `"}`} {
		s.post(s.key, s.talk, "", bad).want(t, 422)
	}
	s.post(s.key, s.talk, "").want(t, 200)
	s.post(s.key, s.talk, "", good).want(t, 200)
	// Others read an empty conversation, as they do one that does not exist.
	for _, conversation := range []string{s.talk, newHexID()} {
		s.get(s.bob, conversation, "/search").want(t, 200).is(t, `{"items":[],"next_page_id":null}`)
		s.get(s.bob, conversation, "/count").want(t, 200).is(t, `0`)
		s.get(s.bob, conversation, "?id=a").want(t, 200).is(t, `[null]`)
		s.get(s.bob, conversation, "/a").want(t, 404)
	}
	s.get(s.alice, "nonsense", "/search").want(t, 422)
	s.get(s.alice, s.talk, "/search?kind__eq=Nonsense").want(t, 422)
	s.get(s.alice, s.talk, "").want(t, 422)
	s.get(s.alice, s.talk, "?"+strings.Repeat("id=a&", 101)).want(t, 400)
	s.get("", s.talk, "/search").want(t, 401)
}

// TestEvents_AreSealed: the log and the nodes have no text of a message, and without the key nobody
// reads one.
func TestEvents_AreSealed(t *testing.T) {
	s := newSending(t)
	const canary = "the canary sings of its user"
	s.post(s.key, s.talk, "", sentAs("a", "MessageEvent", canary, 1)).want(t, 200)
	for _, entry := range s.cluster.log {
		if bytes.Contains(entry, []byte(canary)) {
			t.Error("the log has the text of a message")
		}
	}
	chain := s.cluster.store.View().EventChain("alice", s.talk)
	for _, stored := range s.cluster.stored(chain.Key) {
		if bytes.Contains(stored, []byte(canary)) || !bytes.Contains(stored, []byte("MessageEvent")) {
			t.Errorf("stored is %q", stored)
		}
	}
	s.get(s.alice, s.talk, "/count?kind__eq=MessageEvent").want(t, 200).is(t, `1`)
	if err := s.secrets.Delete(t.Context(), fsm.EventKeyPath("alice")); err != nil {
		t.Fatal(err)
	}
	if res := s.get(s.alice, s.talk, "/search"); res.status != 503 || bytes.Contains(res.body, []byte(canary)) {
		t.Errorf("without the key: %d %s", res.status, res.body)
	}
}

// TestEvents_Download has all events with the sandbox gone, in parts, and one at a time.
func TestEvents_Download(t *testing.T) {
	s := newSending(t)
	var want []string
	for i := range 9 {
		one := sentAs(fmt.Sprintf("e-%d", i), "MessageEvent", strings.Repeat("x", 300<<10), i)
		s.post(s.key, s.talk, "", one).want(t, 200)
		want = append(want, one)
	}
	s.do(s.alice, "DELETE", pathSandboxes+"/"+s.sandbox, "").want(t, 200)
	of := pathConversations + "/" + s.talk + "/download"
	res := s.do(s.alice, "GET", of, "").want(t, 200)
	archive, err := zip.NewReader(bytes.NewReader(res.body), int64(len(res.body)))
	if err != nil {
		t.Fatal(err)
	}
	for i, file := range archive.File {
		r, err := file.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		switch {
		case err != nil:
			t.Fatal(err)
		case i == 0:
			if file.Name != "meta.json" || !bytes.Contains(text, []byte(s.talk)) {
				t.Errorf("%s is %s", file.Name, text)
			}
		case file.Name != fmt.Sprintf("event_%06d_e-%d.json", i-1, i-1) || string(text) != want[i-1]:
			t.Errorf("file %d is %s with %d bytes", i, file.Name, len(text))
		}
	}
	if len(archive.File) != 10 {
		t.Errorf("%d files", len(archive.File))
	}
	s.do(s.bob, "GET", of, "").want(t, 404)
	s.server.downloads.Store("alice/"+s.talk, true)
	s.do(s.alice, "GET", of, "").want(t, 409)
	s.server.downloads.Delete("alice/" + s.talk)
	if err := s.secrets.Delete(t.Context(), fsm.EventKeyPath("alice")); err != nil {
		t.Fatal(err)
	}
	s.do(s.alice, "GET", of, "").want(t, 503)
}

// TestEvents_PagesEndAt4MiB, and go on behind their last event.
func TestEvents_PagesEndAt4MiB(t *testing.T) {
	s := newSending(t)
	for i := range 5 {
		s.post(s.key, s.talk, "", sentAs(fmt.Sprint(i), "MessageEvent", strings.Repeat("x", 1500<<10), i)).want(t, 200)
	}
	got, token := "", ""
	for range 3 {
		ids, next := s.ids("/search?limit=100" + token)
		if len(ids) > 2 {
			t.Errorf("a page of %d large events", len(ids))
		}
		got += ids
		token = "&page_id=" + next
	}
	if got != "01234" || token != "&page_id=" {
		t.Errorf("the pages have %q, and then %q", got, token)
	}
}

// TestEvents_AreSentAtARate: a sandbox that sends too often is refused, another is not.
func TestEvents_AreSentAtARate(t *testing.T) {
	s := newSending(t)
	one := sentAs("a", "MessageEvent", "one", 1)
	refused := 0
	for range 2 * eventBurst {
		if res := s.post(s.key, s.talk, "", one); res.status != http.StatusOK {
			res.want(t, http.StatusTooManyRequests)
			refused++
		}
	}
	if refused == 0 {
		t.Error("nothing was refused")
	}
	other := s.createSandbox(s.bob)
	talk := s.harness.conversation("bob", other)
	s.post(s.secrets.last(fsm.SandboxKeyPath(other))["key"], talk, "", one).want(t, 200)
}

// TestEvents_AreLimited: more than a user may keep is refused with its reason, and what was sent before
// is still answered 200. A deleted conversation makes room.
func TestEvents_AreLimited(t *testing.T) {
	s := newSending(t)
	s.limited(fsm.Installation{PerUser: fsm.Limits{EventBytes: 1000}})
	first := sentAs("a", "MessageEvent", strings.Repeat("x", 300), 1)
	s.post(s.key, s.talk, "0", first).want(t, 200)
	more := sentAs("b", "MessageEvent", strings.Repeat("y", 600), 2)
	s.post(s.key, s.talk, "1", more).refused(t, "user_event_bytes")
	s.post(s.key, s.talk, "0", first).want(t, 200)
	if ids, _ := s.ids("/search"); ids != "a" {
		t.Errorf("the events are %q", ids)
	}
	other := s.conversation("alice", s.sandbox)
	s.post(s.key, other, "0", more).refused(t, "user_event_bytes")
	s.apply("alice", &fsm.ConversationDeleteBody{ID: s.talk})
	s.post(s.key, other, "0", more).want(t, 200)
}

// TestEvents_AreCut: an event of 6 MiB is kept as it is, and one of 7 with its text cut.
func TestEvents_AreCut(t *testing.T) {
	s := newSending(t)
	whole := sentAs("a", "MessageEvent", strings.Repeat("x", 6<<20-300), 1)
	s.post(s.key, s.talk, "", whole).want(t, 200)
	s.post(s.key, s.talk, "", sentAs("b", "MessageEvent", strings.Repeat("y", 7<<20), 2)).want(t, 200)
	s.get(s.alice, s.talk, "?id=a").want(t, 200).is(t, `[`+whole+`]`)
	got := string(s.get(s.alice, s.talk, "?id=b").want(t, 200).body)
	if !strings.Contains(got, fmt.Sprintf("[cut: %d of %d bytes are kept]", 1<<20, 7<<20)) {
		t.Errorf("%d bytes: %.200s", len(got), got)
	}
}

// TestEvents_BelowTheVersion: nothing is kept, so the agent server sends it again.
func TestEvents_BelowTheVersion(t *testing.T) {
	h := newHarness(t).withSpec()
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.VersionEvents - 1})
	s := sending{harness: h, sandbox: h.createSandbox(h.alice)}
	s.key, s.talk = h.secrets.last(fsm.SandboxKeyPath(s.sandbox))["key"], h.conversation("alice", s.sandbox)
	s.post(s.key, s.talk, "", sentAs("a", "MessageEvent", "one", 1)).want(t, 409)
	s.get(s.alice, s.talk, "/search").want(t, 200).is(t, `{"items":[],"next_page_id":null}`)
	s.do(s.root, "PUT", "/api/v1/operator/users/alice", `{"policy":null,"limits":{"event_bytes":5}}`).want(t, 409)
	s.do(s.root, "PUT", "/api/v1/operator/users/alice", `{"policy":null,"limits":{"event_bytes":0}}`).want(t, 200)
	var row map[string]json.RawMessage
	text := asJSONText(t, h.cluster.store.View().User("alice"))
	if err := json.Unmarshal([]byte(text), &row); err != nil || row["event_key"] != nil {
		t.Errorf("the user's row is %v, %v", row, err)
	}
}

func asJSONText(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

package httpapi

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
)

const oneMessage = `{"content":[{"type":"text","text":"go on"}]}`

// talking gives alice a conversation in a running sandbox. It returns the path for messages and the
// messages that arrive.
func (h *harness) talking() (sb, conv, path, arrives string) {
	h.t.Helper()
	sb = h.createSandbox(h.alice)
	h.observe(sb, running())
	conv = h.conversation("alice", sb)
	key := h.secrets.last(fsm.SandboxKeyPath(sb))["key"]
	return sb, conv, pathConversations + "/" + conv + "/send-message", sprint("http://10.1.2.3:21000 %s %s go on true",
		key, conv)
}

func TestSendMessage(t *testing.T) {
	h := newHarness(t).withSpec()
	_, conv, path, arrives := h.talking()
	h.do(h.alice, "POST", path, oneMessage).want(t, 200).is(t,
		`{"success":true,"sandbox_status":"RUNNING","message":null}`)
	h.do(h.alice, "POST", pathConversations+"/"+strings.ToUpper(decode.Dashed(conv))+"/send-message",
		`{"role":"user","content":[{"text":"go on"}],"run":false,"x":1}`).want(t, 200)
	if diff := cmp.Diff([]string{arrives, strings.TrimSuffix(arrives, "true") + "false"}, h.agents.sent()); diff != "" {
		t.Fatal(diff)
	}
	for body, want := range map[string]string{
		``:                               "body missing",
		`{}`:                             "body.content missing",
		`{"content":null}`:               "body.content list_type",
		`{"content":[]}`:                 "body.content too_short",
		`{"content":["x"]}`:              "body.content.0 model_attributes_type",
		`{"content":[{"type":"video"}]}`: "body.content.0.type enum",
		`{"content":[{"text":"a"}],"role":"assistant"}`: "body.role enum",
		`{"content":[{"text":"a"}],"run":"perhaps"}`:    "body.run bool_parsing",
	} {
		got := summary(h.do(h.alice, "POST", path, body).problems(t))
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s: %v, want %s", body, got, want)
		}
	}
	if got := summary(h.do(h.alice, "POST", pathConversations+"/x/send-message",
		oneMessage).problems(t)); got[0] != "path.conversation_id uuid_parsing" {
		t.Error(got)
	}
	h.do(h.alice, "POST", pathConversations+"/"+newHexID()+"/send-message", oneMessage).want(t, 404).is(t,
		`{"detail":"Conversation not found"}`)
	if n := len(h.agents.sent()); n != 2 {
		t.Fatalf("%d messages", n)
	}
}

func TestSendMessage_AgentServerFails(t *testing.T) {
	h := newHarness(t).withSpec()
	_, _, path, _ := h.talking()
	for _, tt := range []struct {
		err  error
		want string
	}{
		{&AgentError{Status: 500, Cause: errors.New("boom")}, `{"detail":"Agent server error: 500"}`},
		{&AgentError{Cause: errors.New("refused")}, `{"detail":"Failed to reach agent server."}`},
		{errors.New("gone"), `{"detail":"Failed to reach agent server."}`},
	} {
		h.agents.sendErr = tt.err
		h.do(h.alice, "POST", path, oneMessage).want(t, 502).is(t, tt.want)
		// An undelivered message is not recorded.
		h.do(h.alice, "POST", path, oneMessage, "Idempotency-Key", "k").want(t, 502)
	}
	h.agents.sendErr = nil
	h.do(h.alice, "POST", path, oneMessage, "Idempotency-Key", "k").want(t, 200)
	h.do(h.alice, "POST", path, oneMessage, "Idempotency-Key", "k").want(t, 200)
	if n := len(h.agents.sent()); n != 1 {
		t.Fatalf("%d messages", n)
	}
}

// An image may be as large as the body, whichever way it arrives: front ends allow files of 3 MiB,
// which are 4 MiB of base64.
func TestMessage_Pictures(t *testing.T) {
	t.Parallel()
	h := newHarness(t).withSpec().raised()
	sb, _, path, _ := h.talking()
	picture := func(bytes int) string {
		return `{"type":"image","image_urls":["data:image/png;base64,` + strings.Repeat("A", bytes) + `"]}`
	}
	h.do(h.alice, "POST", path, `{"content":[`+picture(4<<20)+`]}`).want(t, 200)
	h.do(h.alice, "POST", path, `{"content":[`+picture(6<<20)+`]}`).want(t, 413)
	start := func(blocks ...string) string {
		return sprint(`{"sandbox_id":%q,"initial_message":{"content":[%s]}}`, sb, strings.Join(blocks, ","))
	}
	full := int(DefaultConfig().MaxBodyBytes) - len(start(picture(0)))
	h.do(h.alice, "POST", pathConversations, start(picture(full))).want(t, 200)
	h.do(h.alice, "POST", pathConversations, start(picture(full+1))).want(t, 413)
	h.do(h.alice, "POST", pathConversations, start(picture(2<<20), picture(2<<20))).want(t, 200)
}

// TestStart_OneMeasure: the size of a start in the log is checked before its secrets are stored, in
// the log's own bytes, and the error says what to do.
func TestStart_OneMeasure(t *testing.T) {
	t.Parallel()
	text := func(s string, count int) string { return sprint(`{"type":"text","text":%q}`, strings.Repeat(s, count)) }
	for name, test := range map[string]struct {
		blocks []string
		status int
	}{
		"small":                               {[]string{text("<", 1000)}, 200},
		"escapes that fit":                    {[]string{text("<", 1<<20)}, 200},
		"1.3 MiB of escapes, 7.8 MiB as JSON": {[]string{text("<", 650<<10), text("&", 650<<10)}, 422},
		"as many bytes that need no escape":   {[]string{text("x", 650<<10), text("y", 650<<10)}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t).withSpec().raised()
			for _, secrets := range []string{`"secrets":{"TOKEN":"s3cret"},`, ""} {
				body := sprint(`{%s"initial_message":{"content":[%s]}}`, secrets, strings.Join(test.blocks, ","))
				answer := h.do(h.alice, "POST", pathConversations, body)
				answer.want(t, test.status)
				if test.status == 200 {
					continue
				}
				for _, part := range []string{sprint("which takes %d", fsm.MaxCommandBytes), "with send-message"} {
					if !strings.Contains(string(answer.body), part) {
						t.Errorf("the answer does not say %q: %.300s", part, answer.body)
					}
				}
				if n := h.secrets.written(); n != 0 {
					t.Errorf("%d secrets were written for a start that the log does not take", n)
				}
			}
		})
	}
}

// A message updates its conversation's updated_at: at once through the API, soon after through the
// sandbox's port.
func TestMessage_MovesUpdatedAt(t *testing.T) {
	h := newHarness(t).withSpec()
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	_, conv, path, _ := h.talking()
	row := func() *fsm.Conversation { return h.cluster.store.View().Conversation("alice", conv) }
	for _, headers := range [][]string{nil, {request.HeaderIdempotencyKey, "k"}} {
		before := row().UpdatedAt
		h.do(h.alice, "POST", path, oneMessage, headers...).want(t, 200)
		if got := row().UpdatedAt; !got.After(before) {
			t.Errorf("%v: updated_at is %s, was %s", headers, got, before)
		}
	}
	// The message was delivered, so a failure to record its time is no error.
	h.cluster.set(func(c *fakeCluster) { c.proposeErr = fsm.Errorf(fsm.CodeNoLeader, "no leader") })
	h.do(h.alice, "POST", path, oneMessage).want(t, 200)
	h.do(h.alice, "POST", path, oneMessage, request.HeaderIdempotencyKey, "other").want(t, 503)
}

// awaitDesired waits for a sandbox's desired state.
func (h *harness) awaitDesired(sb string, want fsm.Desired) {
	for {
		v := h.cluster.store.View()
		if v.SandboxAny(sb).Desired == want {
			return
		}
		<-v.Changed()
	}
}

func TestSendMessage_WakesAPausedSandbox(t *testing.T) {
	h := newHarness(t).withSpec()
	sb, _, path, arrives := h.talking()
	h.do(h.alice, "POST", pathSandboxes+"/"+sb+"/pause", "").want(t, 200)
	h.observe(sb, fsm.SandboxStatus{State: fsm.SandboxPaused})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { h.do(h.alice, "POST", path, oneMessage).want(t, 200) })
	}
	h.awaitDesired(sb, fsm.DesiredRunning)
	h.observe(sb, running())
	wg.Wait()
	if got := h.agents.sent(); len(got) != 3 || got[0] != arrives {
		t.Fatalf("%v", got)
	}
	if g := h.cluster.store.View().SandboxAny(sb).Generation; g != 3 {
		t.Fatalf("generation %d: it was resumed more than once", g)
	}
}

func TestSendMessage_StatesThatCanNotReceive(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Proxy.StartWait = time.Second }).withSpec()
	sb, _, path, _ := h.talking()
	unavailable := func(text string) {
		t.Helper()
		res := h.do(h.alice, "POST", path, oneMessage).want(t, 503)
		if !strings.Contains(string(res.body), text) || res.header.Get("Retry-After") == "" {
			t.Fatalf("%s", res.body)
		}
	}
	h.observe(sb, fsm.SandboxStatus{State: fsm.SandboxError, Reason: fsm.ReasonCrashed})
	unavailable("it is ERROR")
	h.do(h.alice, "POST", pathSandboxes+"/"+sb+"/pause", "").want(t, 200)
	unavailable("being paused")
	h.observe(sb, fsm.SandboxStatus{State: fsm.SandboxPaused})
	unavailable("starting") // resumed, but not RUNNING in time
	h.limited(fsm.Installation{PerUser: fsm.Limits{Running: 1}})
	h.do(h.alice, "POST", pathSandboxes+"/"+sb+"/pause", "").want(t, 200)
	h.observe(sb, fsm.SandboxStatus{State: fsm.SandboxPaused})
	h.createSandbox(h.alice)
	h.do(h.alice, "POST", path, oneMessage).refused(t, "user_running_sandboxes")
	h.do(h.alice, "DELETE", pathSandboxes+"/"+sb, "").want(t, 200)
	h.do(h.alice, "POST", path, oneMessage).want(t, 410).is(t,
		`{"detail":"Conversation is archived. The sandbox no longer exists."}`)
	if n := len(h.agents.sent()); n != 0 {
		t.Fatalf("%d messages", n)
	}

	quiet := newHarness(t, func(c *Config) { c.Proxy.Wake = false }).withSpec()
	sb, _, path, _ = quiet.talking()
	quiet.do(quiet.alice, "POST", pathSandboxes+"/"+sb+"/pause", "").want(t, 200)
	quiet.observe(sb, fsm.SandboxStatus{State: fsm.SandboxPaused})
	quiet.do(quiet.alice, "POST", path, oneMessage).want(t, http.StatusConflict).
		is(t, sprint(`{"detail":"Sandbox is PAUSED. Use POST /api/v1/sandboxes/%s/resume to resume it first."}`, sb))
}

func TestConversationUpdate(t *testing.T) {
	h := newHarness(t).withSpec()
	_, conv, _, _ := h.talking()
	path := pathConversations + "/" + conv
	type shown struct {
		ID, Title, Repository, Branch, Provider, Status any
	}
	patch := func(body string) shown {
		t.Helper()
		var m map[string]any
		h.do(h.alice, "PATCH", path, body).want(t, 200).json(t, &m)
		return shown{
			m["id"],
			m["title"],
			m["selected_repository"],
			m["selected_branch"],
			m["git_provider"],
			m["sandbox_status"],
		}
	}
	patch(`{"title":"New","selected_repository":"octo/app","selected_branch":"main",` +
		`"git_provider":"github","public":true}`)
	if got, want := patch(`{"selected_branch":null,"unknown":1}`), (shown{
		conv,
		"New",
		"octo/app",
		nil,
		"github",
		"RUNNING",
	}); got != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
	if got, want := patch(`{"selected_repository":null,"selected_branch":null,"git_provider":null,"title":null}`), (shown{
		conv,
		nil,
		nil,
		nil,
		nil,
		"RUNNING",
	}); got != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
	patch(`{}`)
	for _, body := range []string{
		``, `[]`, `{"title":5}`, `{"title":"` + strings.Repeat("x", 201) + `"}`, `{"public":"perhaps"}`,
		`{"git_provider":"svn"}`,
		`{"selected_repository":"app"}`, `{"selected_repository":"octo/app;rm -rf"}`, `{"selected_repository":"octo/.."}`,
		`{"selected_repository":"-x/app"}`,
		`{"selected_repository":"octo/$(id)"}`, `{"selected_repository":"octo/app","selected_branch":"a b"}`,
		`{"selected_repository":"octo/app","selected_branch":"../x"}`,
		`{"selected_repository":"octo/app","selected_branch":"-d"}`,
		`{"selected_repository":"octo/app","selected_branch":"x.lock"}`,
		`{"selected_repository":null,"selected_branch":"main"}`, `{"selected_branch":"main"}`, `{"git_provider":"github"}`,
	} {
		h.do(h.alice, "PATCH", path, body).want(t, 422)
	}
	h.do(h.alice, "PATCH", pathConversations+"/"+newHexID(), `{"title":"x"}`).want(t, 404).is(t,
		`{"detail":"unknown_app_conversation"}`)
	h.do(h.alice, "PATCH", pathConversations+"/x", `{"title":"x"}`).want(t, 422)
	h.do(h.alice, "GET", path, "").want(t, 405)
}

func TestConversationDelete(t *testing.T) {
	h := newHarness(t).withSpec()
	sb, conv, _, _ := h.talking()
	shared := h.conversation("alice", sb)
	child := h.conversation("alice", sb, func(c *fsm.Conversation) { c.ParentID = &conv })
	h.do(h.alice, "DELETE", pathConversations+"/"+decode.Dashed(conv), "").want(t, 200).is(t, `{"success":true}`)
	v := h.cluster.store.View()
	if v.Conversation("alice", child) != nil || v.SandboxAny(sb).Desired != fsm.DesiredRunning {
		t.Fatal("the sub-conversation stays, or the shared sandbox goes")
	}
	h.do(h.alice, "DELETE", pathConversations+"/"+conv, "").want(t, 404).is(t, `{"detail":"Conversation not found"}`)
	h.do(h.alice, "DELETE", pathConversations+"/x", "").want(t, 400).is(t, `{"detail":"Invalid conversation ID format"}`)
	h.do(h.alice, "DELETE", pathConversations+"/"+shared, "").want(t, 200)
	if h.cluster.store.View().SandboxAny(sb).Desired != fsm.DesiredDeleted {
		t.Fatal("the sandbox nobody uses stays")
	}
}

// TestWrites_AreNotDeniedAfterwards: an applied write is reported as applied even if the leader is
// lost right after it.
func TestWrites_AreNotDeniedAfterwards(t *testing.T) {
	for _, route := range routes() {
		if route.method != "PATCH" && route.method != "PUT" {
			continue
		}
		t.Run(route.name, func(t *testing.T) {
			h := newHarness(t).withSpec().withSettings()
			sb := h.createSandbox(h.alice)
			h.questioned(route, sb)
			req, known := map[string]struct{ key, path, body string }{
				"conversation.update": {h.alice, pathConversations + "/" + h.conversation("alice", sb), `{"title":"new"}`},
				"secret.update":       {h.alice, pathSecrets + "/NPM", `{"name":"B"}`},
				"config.set":          {h.root, pathOperator + "/config", `{"limits":{"user":{"total_sandboxes":7}}}`},
				"user.configure":      {h.root, pathOperator + "/users/alice", `{"limits":{"total_sandboxes":7}}`},
				"member.transfer":     {h.root, pathOperator + "/transfer-leader", `{"to":"n2"}`},
				"member.remove":       {h.root, pathOperator + "/remove", `{"name":"n2"}`},
				"member.allow":        {h.root, pathOperator + "/allow", `{"name":"n2"}`},
				"member.replace":      {h.root, pathOperator + "/replace", `{"old":"n2","new":"n3"}`},
				"protocol.set":        {h.root, pathOperator + "/protocol", `{"version":2}`},
			}[route.name]
			if !known {
				t.Fatal("this route has no test of a leader that is lost after the write")
			}
			h.cluster.set(func(c *fakeCluster) { c.viewErrLater = fsm.Errorf(fsm.CodeNoLeader, "no leader") })
			written := func() int { return h.cluster.count() + len(h.cluster.members) }
			before := written()
			h.do(req.key, route.method, req.path, req.body).want(t, 200)
			if written() != before+1 {
				t.Error("nothing was written")
			}
		})
	}
}

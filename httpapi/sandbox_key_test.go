package httpapi

import (
	"fmt"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/response"
)

// rotations are the routes by which the key of alice's sandbox is replaced.
func (h *harness) rotations(id string) map[string]func() reply {
	return map[string]func() reply{
		"by its owner":   func() reply { return h.do(h.alice, "POST", pathSandboxes+"/"+id+"/rotate-key", "") },
		"by an operator": func() reply { return h.do(h.root, "POST", pathOperator+"/sandboxes/"+id+"/rotate-key", "") },
	}
}

// TestRotateKey: with the key replaced, whatever came from the old one opens nothing, open streams
// end, and the new one is shown once the sandbox runs with it.
func TestRotateKey(t *testing.T) {
	for _, by := range []string{"by its owner", "by an operator"} {
		t.Run(by, func(t *testing.T) {
			h, behind := newProxyHarness(t, withDomain)
			behind.serve(echoes)
			h.raised()
			secrets := pathSandboxes + "/" + h.id + "/settings/secrets"
			cookie, _ := cookieOf(t,
				h.ask("GET", h.front.URL, "", "Host", h.host("VSCODE"), proxy.HeaderKey, h.key).want(t, 200))
			requests := map[string]func() reply{
				"a command": func() reply {
					return h.ask("POST", h.at("AGENT_SERVER", "/api/bash/execute_bash_command"), `{"command":"id"}`, proxy.HeaderKey,
						h.key)
				},
				"a page": func() reply {
					return h.ask("GET", h.front.URL+"/x", "", "Host", h.host("WORKER_1"), proxy.HeaderKey, h.key)
				},
				"secrets":  func() reply { return h.do(h.key, "GET", secrets, "") },
				"a cookie": func() reply { return h.ask("GET", h.front.URL+"/x", "", "Host", h.host("VSCODE"), "Cookie", cookie) },
			}
			for what, ask := range requests {
				if got := ask(); got.status/100 == 4 {
					t.Fatalf("before, %s: %d %s", what, got.status, got.body)
				}
			}
			h.do(h.alice, "POST", pathSandboxes+"/"+h.id+"/ports/WORKER_1/share", "{}").want(t, 200)
			_, code, there := strings.Cut(h.shown("VSCODE"), "#"+proxy.FragmentCode+"=")
			if !there {
				t.Fatal("the page's URL has no code")
			}
			stream := h.mustDial("AGENT_SERVER", eventSocket, proxy.HeaderKey, h.key)
			h.rotations(h.id)[by]().want(t, 200).is(t, `{"success":true}`)
			if code := ended(t, stream); code == -1 {
				t.Error("the stream by the old key was not ended")
			}
			arrived := behind.count()
			for what, ask := range requests {
				if got := ask(); got.status != 401 {
					t.Errorf("%s: %d %s", what, got.status, got.body)
				}
			}
			h.ask("POST", h.front.URL+"/.bivouac/open", fmt.Sprintf(`{"code":%q}`, code), "Host", h.host("VSCODE")).want(t, 401)
			if n := behind.count() - arrived; n != 0 {
				t.Errorf("%d requests went through", n)
			}
			row := h.cluster.store.View().SandboxAny(h.id)
			if row.State() != fsm.SandboxStarting || len(row.Shares) != 0 {
				t.Errorf("after it: %s, shares %v", row.State(), row.Shares)
			}
			h.place()
			entry := h.secrets.last(fsm.SandboxKeyPath(h.id))
			if shown := string(h.do(h.alice, "GET", pathSandboxes+"?id="+h.id,
				"").want(t, 200).body); !strings.Contains(shown, entry["key"]) || entry["key"] == h.key {
				t.Errorf("shown %s", shown)
			}
			h.do(entry["key"], "GET", secrets, "").want(t, 200)
			if got := say(t, h.mustDial("AGENT_SERVER", eventSocket, proxy.HeaderKey, entry["key"]), "one"); got != "echo one" {
				t.Errorf("by the new key it came back as %q", got)
			}
		})
	}
}

// TestRotateKey_KeepsTheKeyOfTheData: the agent server's data stays readable.
func TestRotateKey_KeepsTheKeyOfTheData(t *testing.T) {
	h := newHarness(t).withSpec().raised()
	id := h.createSandbox(h.alice)
	was := h.secrets.last(fsm.SandboxKeyPath(id))
	h.do(h.alice, "POST", pathSandboxes+"/"+id+"/rotate-key", "").want(t, 200)
	now := h.secrets.last(fsm.SandboxKeyPath(id))
	if now[fsm.MemberSecretKey] == "" || now[fsm.MemberSecretKey] != was[fsm.MemberSecretKey] ||
		now[fsm.MemberKey] == was[fsm.MemberKey] || len(now) != len(was) {
		t.Errorf("before %v, then %v", was, now)
	}
	row := h.cluster.store.View().SandboxAny(id)
	if row.KeyHash != apikey.Hash(now[fsm.MemberKey]) || row.Rotations != 1 {
		t.Errorf("the row has %s after %d rotations", row.KeyHash, row.Rotations)
	}
}

func TestRotateKey_Refused(t *testing.T) {
	h := newHarness(t).withSpec()
	id := h.createSandbox(h.alice)
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.VersionAccess})
	writes := h.secrets.written()
	for _, ask := range h.rotations(id) {
		ask().want(t, 409)
	}
	h.raised()
	h.do(h.bob, "POST", pathSandboxes+"/"+id+"/rotate-key", "").want(t, 404)
	h.do(h.alice, "POST", pathOperator+"/sandboxes/"+id+"/rotate-key", "").want(t, 403)
	h.do(h.alice, "POST", pathSandboxes+"/nope/rotate-key", "").want(t, 404)
	h.do(h.root, "POST", pathOperator+"/sandboxes/nope/rotate-key", "").want(t, 404)
	h.do(h.secrets.last(fsm.SandboxKeyPath(id))["key"], "POST", pathSandboxes+"/"+id+"/rotate-key", "").want(t, 401)
	h.do(h.alice, "DELETE", pathSandboxes+"/"+id, "").want(t, 200)
	for _, ask := range h.rotations(id) {
		ask().want(t, 404)
	}
	if n := h.secrets.written() - writes; n != 0 {
		t.Errorf("%d secrets written", n)
	}
	root := h.cluster.store.View().APIKeyByLookup(apikey.LookupOf(h.root))
	line := fmt.Sprintf(`"msg":"operator acts for a user","act":"rotate the key of a sandbox","key":%d,`, root.ID)
	if !strings.Contains(h.logs.String(), line) {
		t.Errorf("the log lacks %s", line)
	}
}

// TestRotateKey_FormerEntryIsGone: who read the sandbox's row before another key, and its key after
// the former entry was deleted, is no internal error.
func TestRotateKey_FormerEntryIsGone(t *testing.T) {
	h := newHarness(t).withSpec().raised()
	id := h.createSandbox(h.alice)
	share := pathSandboxes + "/" + id + "/ports/VSCODE/share"
	h.do(h.alice, "POST", share, "{}", "Idempotency-Key", "k").want(t, 200)
	row := h.cluster.store.View().SandboxAny(id)
	h.do(h.alice, "POST", pathSandboxes+"/"+id+"/rotate-key", "").want(t, 200)
	h.secrets.deleteFormer(fsm.SandboxKeyPath(id))
	entry, err := h.server.sandboxEntry(t.Context(), row)
	if now := h.secrets.last(fsm.SandboxKeyPath(id)); err != nil || entry[fsm.MemberKey] != now[fsm.MemberKey] {
		t.Errorf("the entry by the former row: %v, %v", entry, err)
	}
	if _, err := h.server.forProxy().SandboxKey(t.Context(),
		row.KeyRef); response.FailureOf(err, response.FormatDetail, "").Status != 503 {
		t.Errorf("the proxy's key by the former row: %v", err)
	}
	again := h.do(h.alice, "POST", share, "{}", "Idempotency-Key", "k").want(t, 409)
	if !strings.Contains(string(again.body), "Idempotency-Key") {
		t.Errorf("the repeated share: %s", again.body)
	}
	h.do(h.alice, "DELETE", pathSandboxes+"/"+id, "").want(t, 200)
	h.do(h.alice, "POST", share, "{}", "Idempotency-Key", "k").want(t, 404)
	if _, err := h.server.sandboxEntry(t.Context(), row); response.FailureOf(err, response.FormatDetail,
		"").Status != 404 {
		t.Errorf("the entry of a deleted sandbox: %v", err)
	}
}

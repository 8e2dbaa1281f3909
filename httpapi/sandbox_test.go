package httpapi

import (
	"regexp"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
)

func TestSandboxAcceptWorkspace_OwnerAndOperator(t *testing.T) {
	h := newHarness(t).withSpec()
	sb := h.createSandbox(h.alice)
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	h.observe(sb, running())
	own, ops := pathSandboxes+"/"+sb+"/accept-workspace", pathOperator+"/sandboxes/"+sb+"/accept-workspace"
	h.do(h.alice, "POST", own, "").want(t, 409)
	h.observe(sb, fsm.SandboxStatus{State: fsm.SandboxError, Reason: fsm.ReasonWorkspace})
	h.do(h.bob, "POST", own, "").want(t, 404)
	h.do(h.root, "POST", own, "").want(t, 404)
	h.do(h.alice, "POST", ops, "").want(t, 403)
	h.do(h.alice, "POST", own, "").want(t, 200).is(t, `{"success":true}`)
	h.do(h.root, "POST", ops, "").want(t, 200).is(t, `{"success":true}`)
	h.do(h.root, "POST", pathOperator+"/sandboxes/nope/accept-workspace", "").want(t, 404)
	h.do(h.alice, "POST", pathSandboxes+"/"+sb+"/resume", "").want(t, 200)
}

func TestSandbox_Create(t *testing.T) {
	h := newHarness(t).withSpec()
	res := h.do(h.alice, "POST", "/api/v1/sandboxes", "").want(t, 200).golden(t, "sandbox_create")
	var sb struct{ ID string }
	res.json(t, &sb)
	entry := h.secrets.last("sandboxes/" + sb.ID + "/session")
	if len(entry["key"]) != apikey.SandboxKeyLen || len(entry["secret_key"]) != apikey.SandboxKeyLen ||
		entry["key"] == entry["secret_key"] {
		t.Fatalf("session entry %v", entry)
	}
	if strings.Contains(string(res.body), entry["key"]) {
		t.Fatal("the key is shown before the sandbox runs")
	}
}

func TestSandbox_Create_BodyIsIgnored(t *testing.T) {
	h := newHarness(t).withSpec()
	for _, body := range []string{"", "{}", "null", "[1", "  "} {
		h.do(h.alice, "POST", "/api/v1/sandboxes?sandbox_spec_id=small", body).want(t, 200)
	}
}

func TestSandbox_Create_UnknownSpec(t *testing.T) {
	h := newHarness(t).withSpec()
	h.do(h.alice, "POST", "/api/v1/sandboxes?sandbox_spec_id=nope", "").want(t, 404).is(t,
		`{"detail":"Sandbox Spec not found"}`)
	if h.secrets.written() != 0 {
		t.Fatal("a key was stored for a spec that does not exist")
	}
}

func TestSandbox_Search_ShowsKeyAndURLsOnlyWhileRunning(t *testing.T) {
	h := newHarness(t).withSpec().raised()
	id := h.createSandbox(h.alice)
	h.observe(id, running())
	key := h.secrets.last("sandboxes/" + id + "/session")["key"]
	res := h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").want(t, 200)
	if strings.Count(string(res.body), key) != 1 {
		t.Fatalf("the key should stand in session_api_key alone: %s", res.body)
	}
	res.body = []byte(regexp.MustCompile(`#bivouac=[\w.-]+`).ReplaceAllString(strings.ReplaceAll(string(res.body), key,
		"S3ss"), "#bivouac=<code>"))
	res.golden(t, "sandbox_search_running")

	h.do(h.alice, "POST", "/api/v1/sandboxes/"+id+"/pause", "{}").want(t, 200).is(t, `{"success":true}`)
	h.observe(id, fsm.SandboxStatus{State: fsm.SandboxPaused})
	res = h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").want(t, 200).golden(t, "sandbox_search_paused")
	if strings.Contains(string(res.body), key) {
		t.Fatal("a paused sandbox shows its key")
	}
}

func TestSandbox_PauseResumeDelete(t *testing.T) {
	h := newHarness(t).withSpec()
	id := h.createSandbox(h.alice)
	h.observe(id, running())
	for _, step := range []string{"pause", "pause", "resume", "resume"} {
		h.do(h.alice, "POST", "/api/v1/sandboxes/"+id+"/"+step, "").want(t, 200).is(t, `{"success":true}`)
	}
	h.do(h.alice, "DELETE", "/api/v1/sandboxes/"+id, "").want(t, 200).is(t, `{"success":true}`)
	h.do(h.alice, "DELETE", "/api/v1/sandboxes/"+id, "").want(t, 404).is(t, `{"detail":"Not Found"}`)
	h.do(h.alice, "POST", "/api/v1/sandboxes/"+id+"/pause", "").want(t, 404).is(t, `{"detail":"Not Found"}`)
	h.do(h.alice, "GET", "/api/v1/sandboxes?id="+id, "").want(t, 200).is(t, `[null]`)
}

func TestSandbox_Delete_QueryIDWins(t *testing.T) {
	h := newHarness(t).withSpec()
	a, b := h.createSandbox(h.alice), h.createSandbox(h.alice)
	h.do(h.alice, "DELETE", "/api/v1/sandboxes/"+a+"?sandbox_id="+b, "").want(t, 200)
	h.do(h.alice, "GET", "/api/v1/sandboxes?id="+b, "").is(t, `[null]`)
	h.do(h.alice, "DELETE", "/api/v1/sandboxes/"+a+"?sandbox_id="+a, "").want(t, 200)
}

func TestSandbox_Get_KeepsOrderAndNulls(t *testing.T) {
	h := newHarness(t).withSpec()
	a, b := h.createSandbox(h.alice), h.createSandbox(h.bob)
	var got []*struct{ ID string }
	h.do(h.alice, "GET", "/api/v1/sandboxes?id=x&id="+a+"&id="+b+"&id="+a, "").want(t, 200).json(t, &got)
	if len(got) != 4 || got[0] != nil || got[1] == nil || got[1].ID != a || got[2] != nil || got[3] == nil {
		t.Fatalf("got %v", got)
	}
	many := strings.Repeat("&id=x", 101)[1:]
	h.do(h.alice, "GET", "/api/v1/sandboxes?"+many, "").want(t, 400).
		is(t, `{"detail":"Cannot request more than 100 sandboxes at once, got 101"}`)
}

func TestSandbox_SecretStoreAway(t *testing.T) {
	h := newHarness(t).withSpec()
	id := h.createSandbox(h.alice)
	h.observe(id, running())
	h.secrets.set(func(s *fakeSecrets) { s.err = errStoreAway })
	h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").want(t, 200).golden(t, "sandbox_search_no_secrets")
	before := h.cluster.count()
	res := h.do(h.alice, "POST", "/api/v1/sandboxes", "").want(t, 503)
	if res.header.Get("Retry-After") == "" || h.cluster.count() != before {
		t.Fatalf("Retry-After %q, %d commands", res.header.Get("Retry-After"), h.cluster.count()-before)
	}
	h.do(h.alice, "POST", "/api/v1/sandboxes/"+id+"/pause", "").want(t, 200)
}

func TestSandbox_Search_Pages(t *testing.T) {
	h := newHarness(t).withSpec()
	want := map[string]bool{}
	for range 7 {
		want[h.createSandbox(h.alice)] = true
	}
	h.createSandbox(h.bob)
	token, pages := "", 0
	for {
		var p struct {
			Items      []struct{ ID string }
			NextPageID *string `json:"next_page_id"`
		}
		h.do(h.alice, "GET", "/api/v1/sandboxes/search?limit=3&page_id="+token, "").want(t, 200).json(t, &p)
		pages++
		for _, one := range p.Items {
			if !want[one.ID] {
				t.Fatalf("%s twice or not ours", one.ID)
			}
			delete(want, one.ID)
		}
		if p.NextPageID == nil {
			break
		}
		token = *p.NextPageID
	}
	if pages != 3 || len(want) != 0 {
		t.Fatalf("%d pages, %d left", pages, len(want))
	}
	var p struct{ Items []struct{ ID string } }
	h.do(h.alice, "GET", "/api/v1/sandboxes/search?page_id=%2Fjunk%21", "").want(t, 200).json(t, &p)
	if len(p.Items) != 7 {
		t.Fatalf("a junk token gave %d", len(p.Items))
	}
}

package httpapi

import (
	"fmt"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
)

// ownedPage is a page of the operators' listings.
type ownedPage struct {
	Items []struct {
		ID     string `json:"id"`
		UserID string `json:"user_id"`
		Status string `json:"status"`
	} `json:"items"`
	NextPageID *string `json:"next_page_id"`
}

// owned lists on pages of two.
func (h *harness) owned(path string) (ids []string) {
	h.t.Helper()
	for next := ""; ; {
		var p ownedPage
		h.do(h.root, "GET", path+"limit=2&page_id="+next, "").want(h.t, 200).json(h.t, &p)
		for _, one := range p.Items {
			ids = append(ids, one.UserID+" "+one.ID)
		}
		if p.NextPageID == nil || len(ids) > 20 {
			return ids
		}
		next = *p.NextPageID
	}
}

func TestOperator_SandboxesOfAllUsers(t *testing.T) {
	h := newHarness(t, withLogs(&fakeLogs{})).withSpec().raised()
	of := map[string]bool{}
	for range 3 {
		of["alice "+h.createSandbox(h.alice)] = true
	}
	bobs := h.createSandbox(h.bob)
	of["bob "+bobs] = true
	list := h.owned(pathOperator + "/sandboxes?")
	for _, one := range list {
		if !of[one] {
			t.Errorf("listed %s", one)
		}
		delete(of, one)
	}
	if len(of) > 0 || len(list) != 4 {
		t.Errorf("listed %v, and not %v", list, of)
	}
	if list := h.owned(pathOperator + "/sandboxes?user=bob&"); len(list) != 1 || list[0] != "bob "+bobs {
		t.Errorf("bob's: %v", list)
	}
	path := pathOperator + "/sandboxes/" + bobs
	h.observe(bobs, running())
	if body := string(h.do(h.root, "GET", path, "").want(t, 200).body); !strings.Contains(body, `"user_id":"bob"`) ||
		!strings.Contains(body,
			`"nomad_client":"m1"`) || strings.Contains(body, h.secrets.last(fsm.SandboxKeyPath(bobs))["key"]) {
		t.Errorf("shown: %s", body)
	}
	if body := string(h.do(h.root, "GET", path+"/logs",
		"").want(t, 200).body); body != "==> stdout <==\nstdout of "+bobs+"\n==> stderr <==\nstderr of "+bobs {
		t.Errorf("logs %q", body)
	}
	h.do(h.root, "POST", path+"/pause", "").want(t, 200).is(t, `{"success":true}`)
	if sb := h.cluster.store.View().SandboxAny(bobs); sb.Desired != fsm.DesiredPaused || sb.UserID != "bob" {
		t.Errorf("after the pause: %+v", sb)
	}
	h.do(h.root, "POST", path+"/resume", "").want(t, 200)
	if sb := h.cluster.store.View().SandboxAny(bobs); sb.Desired != fsm.DesiredRunning || sb.UserID != "bob" {
		t.Errorf("after the resume: %+v", sb)
	}
	h.do(h.root, "DELETE", path, "").want(t, 200)
	h.do(h.root, "GET", path, "").want(t, 404)
	h.do(h.root, "POST", path+"/pause", "").want(t, 404)
	h.do(h.bob, "GET", pathSandboxes+"?id="+bobs, "").want(t, 200).is(t, `[null]`)
	root := h.cluster.store.View().APIKeyByLookup(apikey.LookupOf(h.root))
	for _, act := range []string{
		"list sandboxes",
		"show sandbox",
		"read logs",
		"pause sandbox",
		"resume sandbox",
		"delete sandbox",
	} {
		if line := fmt.Sprintf(`"msg":"operator acts for a user","act":%q,"key":%d,`, act,
			root.ID); !strings.Contains(h.logs.String(), line) {
			t.Errorf("the log lacks %s", line)
		}
	}
}

func TestOperator_ConversationsOfAllUsers(t *testing.T) {
	h := newHarness(t).withSpec().raised()
	sb := h.createSandbox(h.bob)
	id := h.conversation("bob", sb)
	if list := h.owned(pathOperator + "/app-conversations?"); len(list) != 1 || list[0] != "bob "+id {
		t.Errorf("all: %v", list)
	}
	if list := h.owned(pathOperator + "/app-conversations?user=alice&"); len(list) != 0 {
		t.Errorf("alice's: %v", list)
	}
	path := pathOperator + "/app-conversations/" + id
	h.do(h.root, "GET", path, "").want(t, 422)
	h.do(h.root, "GET", path+"?user=alice", "").want(t, 404)
	h.do(h.root, "GET", path+"?user=bob", "").want(t, 200)
	h.do(h.root, "DELETE", path+"?user=alice", "").want(t, 404)
	h.do(h.root, "DELETE", path+"?user=bob", "").want(t, 200)
	h.do(h.root, "GET", path+"?user=bob", "").want(t, 404)
	if sb := h.cluster.store.View().SandboxAny(sb); sb.Desired != fsm.DesiredDeleted {
		t.Errorf("its sandbox: %+v", sb)
	}
}

// TestOperator_UsersHaveNoSuchRoutes: neither by the route, nor by a command that says so.
func TestOperator_UsersHaveNoSuchRoutes(t *testing.T) {
	h := newHarness(t).withSpec().raised()
	sb := h.createSandbox(h.bob)
	for _, r := range []string{"GET /sandboxes", "GET /sandboxes/" + sb, "POST /sandboxes/" + sb + "/pause",
		"POST /sandboxes/" + sb + "/resume",
		"DELETE /sandboxes/" + sb, "GET /sandboxes/" + sb + "/logs", "GET /app-conversations"} {
		method, path, _ := strings.Cut(r, " ")
		h.do(h.alice, method, pathOperator+path, "").want(t, 403)
	}
	if got := h.cluster.store.View().SandboxAny(sb).Desired; got != fsm.DesiredRunning {
		t.Errorf("bob's sandbox is to be %s", got)
	}
}

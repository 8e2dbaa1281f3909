package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// lost moves a sandbox from the lost client "gone", which still has its volume v-1.
func (h *harness) lost(sb string) {
	h.t.Helper()
	h.apply("", &fsm.SandboxMoveBody{ID: sb, From: "gone"})
	h.apply("",
		&fsm.SandboxMovedBody{ID: sb, Attempt: 1, Home: fsm.Home{Volume: "v-2", Client: "other", Lost: true}, Left: "v-1"})
}

// TestOrphans_Lost: what a lost client still has is listed with its owner and its end, is counted to the
// owner, outlives its sandbox, is restored as another one of its owner, and goes when an operator deletes it.
func TestOrphans_Lost(t *testing.T) {
	h := newHarness(t).withSpec().withSettings()
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	sb := h.createSandbox(h.alice)
	h.observe(sb, running())
	before := h.cluster.store.View().Usage("alice").StateBytes
	h.lost(sb)
	if now := h.cluster.store.View().Usage("alice").StateBytes; now < before+512 {
		t.Errorf("alice keeps %d bytes with it, %d before", now, before)
	}
	r := string(h.do(h.root, "GET", pathOperator+"/orphans", "").want(t, 200).body)
	for _, want := range []string{
		`"kind":"lost"`,
		`"sandbox":"` + sb + `"`,
		`"owner":"alice"`,
		`"client":"gone"`,
		`"volume":"v-1"`,
		`"delete":false`,
	} {
		if !strings.Contains(strings.ReplaceAll(r, ": ", ":"), want) {
			t.Errorf("the list lacks %s: %s", want, r)
		}
	}
	h.do(h.root, "DELETE", pathOperator+"/orphans/lost/v-9", "").want(t, 404)
	path := pathOperator + "/orphans/lost/v-1"
	for route, status := range map[string]int{
		"/orphans/lost/v-9/restore":             404,
		"/orphans/workspace/" + sb + "/restore": 404,
	} {
		h.do(h.root, "POST", pathOperator+route, "").want(t, status)
	}
	h.do(h.alice, "POST", path+"/restore", "").want(t, 403)
	first := h.do(h.root, "POST", path+"/restore", "", "Idempotency-Key", "once").want(t, 200)
	var made struct{ Sandbox, Owner string }
	first.json(t, &made)
	if row := h.cluster.store.View().Sandbox("alice", made.Sandbox); row == nil || row.Move == nil ||
		row.Move.Orphan != "v-1" || made.Owner != "alice" {
		t.Errorf("%s made %+v", first.body, row)
	}
	was, is := h.secrets.last(fsm.SandboxKeyPath(sb)), h.secrets.last(fsm.SandboxKeyPath(made.Sandbox))
	if is[fsm.MemberKey] == was[fsm.MemberKey] || is[fsm.MemberSecretKey] != was[fsm.MemberSecretKey] {
		t.Error("the sandbox has the former one's key, or can't read its data")
	}
	if again := h.do(h.root, "POST", path+"/restore", "", "Idempotency-Key",
		"once").want(t, 200); string(again.body) != string(first.body) {
		t.Errorf("repeated it says %s, at first %s", again.body, first.body)
	}
	written := h.secrets.written()
	if res := h.do(h.root, "POST", path+"/restore", ""); res.status != http.StatusConflict ||
		h.secrets.written() != written {
		t.Errorf("a second one: %d %s, %d secrets", res.status, res.body, h.secrets.written()-written)
	}
	h.do(h.root, "DELETE", path, "").want(t, 409)
	h.apply("", &fsm.SandboxMovedBody{ID: made.Sandbox, Attempt: 1, Home: fsm.Home{Volume: "v-3", Client: "other"}})
	if row := h.cluster.store.View().SandboxAny(made.Sandbox); !strings.Contains(movedDetail(row),
		"the Nomad client gone, which was lost, has of another sandbox") {
		t.Errorf("it says %q", movedDetail(row))
	}
	h.do(h.alice, "DELETE", "/api/v1/sandboxes/"+made.Sandbox, "").want(t, 200)
	h.do(h.alice, "DELETE", "/api/v1/sandboxes/"+sb, "").want(t, 200)
	h.apply("", &fsm.SandboxRemoveBody{ID: sb})
	h.do(h.root, "DELETE", path, "").want(t, 200)
	h.do(h.root, "POST", path+"/restore", "").want(t, 409)
	if o := h.cluster.store.View().Orphan(fsm.OrphanLost, "v-1"); o == nil || !o.Delete {
		t.Errorf("on record is %+v", o)
	}
}

// TestCopies_List: operators alone see where the copies of workspaces are.
func TestCopies_List(t *testing.T) {
	h := newHarness(t).withSpec().withSettings()
	sb := h.createSandbox(h.alice)
	h.createSandbox(h.alice)
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	sum := strings.Repeat("ab", 32)
	h.apply("", &fsm.SandboxCopiedBody{ID: sb, Copy: fsm.Copy{ID: "00000001-ab", Sum: sum, Files: 2, Bytes: 5}})
	var page struct{ Items []map[string]any }
	h.do(h.root, "GET", pathOperator+"/copies", "").want(t, 200).json(t, &page)
	if len(page.Items) != 1 || page.Items[0]["sandbox"] != sb || page.Items[0]["owner"] != "alice" ||
		page.Items[0]["sum"] != sum || page.Items[0]["cluster"] != h.cluster.store.View().ClusterID() {
		t.Errorf("%v", page.Items)
	}
	h.do(h.alice, "GET", pathOperator+"/copies", "").want(t, http.StatusForbidden)
}

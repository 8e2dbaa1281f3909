package httpapi

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/fsm"
)

func TestOperator_Members(t *testing.T) {
	h := newHarness(t)
	const path = "/api/v1/operator/"
	h.do(h.root, "GET", path+"members", "").want(t, 200).golden(t, "operator_members")
	for _, one := range []struct{ path, body string }{
		{"transfer-leader", `{}`}, {"transfer-leader", `{"to":"n2"}`},
		{"remove", `{"name":"n2"}`}, {"remove", `{"name":"n2","force":true,"revoke":true,"fingerprint":"ff"}`},
		{"replace", `{"old":"n2","new":"n3"}`},
	} {
		h.do(h.root, "PUT", path+one.path, one.body).want(t, 200).is(t, `{"success":true}`)
	}
	want := []string{
		"transfer ", "transfer n2", "remove n2 {Force:false Revoke:false Fingerprint:}",
		"remove n2 {Force:true Revoke:true Fingerprint:ff}", "replace n2 n3 {Force:false Revoke:false Fingerprint:}",
	}
	if diff := cmp.Diff(want, h.cluster.members); diff != "" {
		t.Errorf("changes (-want +got)\n%s", diff)
	}
	for _, one := range []struct{ path, body string }{
		{"transfer-leader", `{"to":5}`}, {"remove", `{}`}, {"remove", `{"name":"n2","force":"x"}`}, {"replace", `{"old":"n2"}`}, {"replace", ``},
	} {
		h.do(h.root, "PUT", path+one.path, one.body).want(t, 422)
	}
	for err, status := range map[*fsm.Error]int{
		fsm.Errorf(fsm.CodeConflict, "too few would be left"):     409,
		fsm.Errorf(fsm.CodeNotFound, "no node n2 in the cluster"): 404,
		fsm.Errorf(fsm.CodeNoLeader, "none"):                      503,
	} {
		h.cluster.set(func(c *fakeCluster) { c.memberErr = err })
		res := h.do(h.root, "PUT", path+"remove", `{"name":"n2"}`).want(t, status)
		if status != 503 && !strings.Contains(string(res.body), err.Message) {
			t.Errorf("%d: %s", status, res.body)
		}
	}
	if n := len(h.cluster.members); n != len(want) {
		t.Errorf("%d changes, want %d", n, len(want))
	}
}

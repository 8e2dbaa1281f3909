package httpapi

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/fsm"
)

// TestOperator_Protocol: the report names what each member knows and what newer versions bring, and
// the version is the membership's to set.
func TestOperator_Protocol(t *testing.T) {
	h := newHarness(t)
	const path = "/api/v1/operator/protocol"
	h.do(h.root, "GET", path, "").want(t, 200).golden(t, "operator_protocol")
	h.do(h.alice, "GET", path, "").want(t, 403)
	h.do(h.alice, "PUT", path, `{"version":2}`).want(t, 403)
	for _, body := range []string{``, `{}`, `{"version":"x"}`, `{"version":null}`, `{"version":1.5}`} {
		h.do(h.root, "PUT", path, body).want(t, 422)
	}
	for _, version := range []string{"2", "-1", "9223372036854775807"} {
		h.do(h.root, "PUT", path, `{"version":`+version+`}`).want(t, 200)
	}
	if diff := cmp.Diff([]string{"protocol 2", "protocol 0", "protocol 1073741824"}, h.cluster.members); diff != "" {
		t.Errorf("changes (-want +got)\n%s", diff)
	}
	h.cluster.set(func(c *fakeCluster) { c.memberErr = fsm.Errorf(fsm.CodeConflict, "node n3 knows protocol version 1") })
	if res := h.do(h.root, "PUT", path, `{"version":2}`).want(t, 409); !strings.Contains(string(res.body), "node n3") {
		t.Errorf("%s", res.body)
	}
}

// TestOperator_WhatIsTooNewNamesTheVersionAndTheCommand: below its protocol version.
func TestOperator_WhatIsTooNewNamesTheVersionAndTheCommand(t *testing.T) {
	h := newHarness(t)
	for method, path := range map[string]string{
		"DELETE": "/api/v1/operator/orphans/job/x",
		"GET":    "/api/v1/operator/sandboxes",
	} {
		res := h.do(h.root, method, path, "").want(t, 409)
		if text := string(res.body); !strings.Contains(text, "needs protocol version") ||
			!strings.Contains(text, "the cluster is at 1") || !strings.Contains(text, "bivouac operator protocol set") {
			t.Errorf("%s %s: %s", method, path, text)
		}
	}
}

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
		{"transfer-leader", `{"to":5}`}, {"remove", `{}`}, {
			"remove",
			`{"name":"n2","force":"x"}`,
		}, {"replace", `{"old":"n2"}`}, {"replace", ``},
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

package httpapi

import (
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/httpapi/wire"
)

func TestOperator_Keys(t *testing.T) {
	h := newHarness(t)
	res := h.do(h.root, "POST", "/api/v1/operator/keys", `{"user":"carol","name":"laptop"}`).want(t, 201)
	var made struct {
		ID  int
		Key string
	}
	res.json(t, &made)
	res.golden(t, "operator_key_create")
	h.do(made.Key, "GET", "/api/v1/sandboxes/search", "").want(t, 200)
	list := h.do(h.root, "GET", "/api/v1/operator/keys", "").want(t, 200).golden(t, "operator_keys")
	if strings.Contains(string(list.body), made.Key) {
		t.Fatal("the listing shows a key")
	}
	h.do(h.root, "DELETE", sprint("/api/v1/operator/keys/%d", made.ID), "").want(t, 200).is(t, `{"success":true}`)
	h.do(made.Key, "GET", "/api/v1/sandboxes/search", "").want(t, 401)
	h.do(h.root, "DELETE", sprint("/api/v1/operator/keys/%d", made.ID), "").want(t, 200)
	for _, id := range []string{"99", "0", "-1", "x", "99999999999999999999"} {
		h.do(h.root, "DELETE", "/api/v1/operator/keys/"+id, "").want(t, 404).is(t, `{"detail":"Not Found"}`)
	}
	h.do(h.root, "POST", "/api/v1/operator/keys", `{"name":"x"}`).want(t, 422)
	h.do(h.root, "POST", "/api/v1/operator/keys", `{"user":"Not A User","name":"x"}`).want(t, 422)
}

// TestAPIKeyCreate_Repeated: a key's value is random and shown once. A repeated request is told that
// the key was made, also with another operator's key.
func TestAPIKeyCreate_Repeated(t *testing.T) {
	h := newHarness(t)
	body := `{"user":"carol","name":"laptop"}`
	ask := func(key, once string) reply {
		return h.do(key, "POST", "/api/v1/operator/keys", body, "Idempotency-Key", once)
	}
	ask(h.root, "k").want(t, 201)
	keys := len(h.cluster.store.View().APIKeys())
	for _, key := range []string{h.root, h.issue("root", true)} {
		ask(key, "k").want(t, 409).is(t,
			sprint(`{"detail":"the key %d was made by the first request with this Idempotency-Key, `+
				`and its value is shown only once: `+
				`if it is lost, revoke the key and create another with another Idempotency-Key"}`, keys))
	}
	if n := len(h.cluster.store.View().APIKeys()); n != keys+1 { // root's other key
		t.Errorf("%d keys, want %d", n, keys+1)
	}
	// Equal requests of equal callers make different keys.
	twin := newHarness(t)
	var a, b struct{ Key string }
	ask(h.root, "same").want(t, 201).json(t, &a)
	twin.do(twin.root, "POST", "/api/v1/operator/keys", body, "Idempotency-Key", "same").want(t, 201).json(t, &b)
	if a.Key == b.Key || a.Key == "" {
		t.Errorf("the keys are %q and %q", a.Key, b.Key)
	}
}

func TestOperator_Specs(t *testing.T) {
	h := newHarness(t)
	h.do(h.root, "GET", "/api/v1/operator/specs", "").want(t, 200).is(t, `{"items":[]}`)
	h.do(h.root, "POST", "/api/v1/operator/specs", `{"specs":[{"id":"ghcr.io/a/b:1","template":{"driver":"docker",
		"image":"ghcr.io/a/b:1",
	  "args":["--port","8000"],"working_dir":"/workspace/project","env":{"A":"b"},"cpu":500,"memory":512,
	  "ports":{"AGENT_SERVER":8000},
	  "network_mode":"bridge","volume_path":"/workspace"}},
	  {"id":"plain","template":{"driver":"raw_exec","isolation":"none","command":"/bin/agent","working_dir":"project",
	  "cpu":1,"memory":16,"ports":{"AGENT_SERVER":0}}}],
	  "replace":true}`).want(t, 200).is(t, `{"success":true}`)
	h.do(h.root, "GET", "/api/v1/operator/specs", "").want(t, 200).golden(t, "operator_specs")
	if body := h.do(h.root, "GET", "/api/v1/operator/status",
		"").want(t, 200).body; !strings.Contains(string(body), `"specs_without_isolation":["plain"]`) {
		t.Errorf("the status does not name the spec without isolation: %s", body)
	}
	h.do(h.root, "POST", "/api/v1/operator/specs", `{"specs":[{"id":"open","template":{"driver":"raw_exec",
		"command":"/bin/agent",
	  "working_dir":"project","cpu":1,"memory":16,"ports":{"AGENT_SERVER":0}}}]}`).want(t, 422)
	h.do(h.alice, "GET", "/api/v1/sandbox-specs/search", "").want(t, 200).golden(t, "spec_search")
	h.do(h.root, "POST", "/api/v1/operator/specs", `{"specs":[{"id":"x","agents":[{"id":"opencode"}],
		"template":{"driver":"raw_exec","command":"/bin/agent",
		"working_dir":"project","cpu":500,"memory":512,"ports":{"AGENT_SERVER":0}}}]}`).want(t, 409).is(t,
		`{"detail":"agents of a spec needs protocol version 8 and the cluster is at 1: upgrade every node, `+
			`then \"bivouac operator protocol set 8\""}`)
	h.do(h.alice, "GET", "/api/v1/sandbox-specs?id=plain&id=x", "").want(t, 200).golden(t, "spec_batch")
	h.do(h.alice, "GET", "/api/v1/sandbox-specs", "").want(t, 422)
	h.do(h.alice, "GET", "/api/v1/sandbox-specs?"+strings.Repeat("&id=x", 101)[1:], "").want(t, 400)
	var p struct {
		Items []struct{ ID string }
		Next  *string `json:"next_page_id"`
	}
	h.do(h.alice, "GET", "/api/v1/sandbox-specs/search?limit=1", "").json(t, &p)
	if len(p.Items) != 1 || p.Items[0].ID != "ghcr.io/a/b:1" || p.Next == nil {
		t.Fatalf("first page %+v", p)
	}
	next := *p.Next
	p.Next = nil
	h.do(h.alice, "GET", "/api/v1/sandbox-specs/search?limit=1&page_id="+next, "").json(t, &p)
	if len(p.Items) != 1 || p.Items[0].ID != "plain" || p.Next != nil {
		t.Fatalf("second page %+v", p)
	}
	for _, body := range []string{
		`{}`, `{"specs":{}}`, `{"specs":[1]}`, `{"specs":[{"id":5}]}`, `{"specs":[{"id":"x"}]}`,
		`{"specs":[{"id":"x","template":{"cpu":"many"}}]}`,
	} {
		h.do(h.root, "POST", "/api/v1/operator/specs", body).want(t, 422)
	}
	h.do(h.root, "DELETE", "/api/v1/operator/specs/ghcr.io%2Fa%2Fb:1", "").want(t, 200).is(t, `{"success":true}`)
	h.do(h.root, "DELETE", "/api/v1/operator/specs/ghcr.io/a/b:1", "").want(t, 404).is(t,
		`{"detail":"Sandbox Spec not found"}`)
}

func TestOperator_Users(t *testing.T) {
	h := newHarness(t).withSpec()
	h.createSandbox(h.alice)
	const path = "/api/v1/operator/users"
	h.do(h.root, "PUT", path+"/alice",
		`{"policy":{"idle_timeout":"90m","delete_paused_after":"never"},"limits":{"running_sandboxes":1,"cpu":"1000"}}`).
		want(t, 200).golden(t, "operator_user")
	h.do(h.alice, "POST", pathSandboxes, "").refused(t, "user_running_sandboxes")
	h.do(h.bob, "POST", pathSandboxes, "").want(t, 200)
	h.do(h.root, "GET", path, "").want(t, 200).golden(t, "operator_users")
	h.do(h.root, "PUT", path+"/alice", `{}`).want(t, 200)
	h.do(h.alice, "POST", pathSandboxes, "").want(t, 200)
	if u := h.cluster.store.View().User("alice"); u.Policy != nil || u.Limits != nil {
		t.Fatalf("%+v", u)
	}
	h.do(h.root, "PUT", path+"/nobody", `{}`).want(t, 404).is(t, `{"detail":"User not found"}`)
	h.do(h.root, "PUT", path+"/No%20User", `{}`).want(t, 404)
	h.do(h.alice, "PUT", path+"/alice", `{}`).want(t, 403)
	for _, body := range []string{
		``, `[]`, `{"policy":"1h"}`, `{"policy":{"idle_timeout":60}}`, `{"policy":{"idle_timeout":"0s"}}`,
		`{"policy":{"idle_timeout":"-1h"}}`,
		`{"policy":{"idle":"1h"}}`, `{"policy":{"max_running":"9000000h"}}`, `{"limits":[]}`, `{"limits":{"cpu":-1}}`,
		`{"limits":{"disk":1}}`, `{"limits":{"starts_per_minute":10001}}`,
	} {
		h.do(h.root, "PUT", path+"/alice", body).want(t, 422)
	}
}

func TestOperator_Pool(t *testing.T) {
	h := newHarness(t).withSpec()
	const image = "ghcr.io/openhands/agent-server:1.44.0-python"
	path := "/api/v1/operator/specs/" + image + "/pool"
	h.do(h.root, "POST", path, `{"size":2}`).want(t, 200).is(t, `{"success":true}`)
	h.warm(2)
	h.createSandbox(h.alice)
	var list struct {
		Items []struct {
			ID      string
			Pool    int
			Members wire.Pool `json:"pool_members"`
		}
	}
	h.do(h.root, "GET", "/api/v1/operator/specs", "").want(t, 200).json(t, &list)
	if one := list.Items[0]; one.ID != image || one.Pool != 2 || one.Members != (wire.Pool{Ready: 1, All: 1}) {
		t.Fatalf("%+v", list.Items)
	}
	h.do(h.root, "POST", "/api/v1/operator/specs/none/pool", `{"size":2}`).want(t, 404).is(t,
		`{"detail":"Sandbox Spec not found"}`)
	h.do(h.root, "POST", "/api/v1/operator/specs/small", `{"size":2}`).want(t, 404).is(t, `{"detail":"Not Found"}`)
	h.do(h.alice, "POST", path, `{"size":2}`).want(t, 403)
	for _, body := range []string{
		``,
		`{}`,
		`{"size":null}`,
		`{"size":-1}`,
		`{"size":100000}`,
		`{"size":9223372036854775807}`,
		`{"size":"x"}`,
	} {
		h.do(h.root, "POST", path, body).want(t, 422)
	}
}

func TestOperator_Status(t *testing.T) {
	h := newHarness(t)
	h.cluster.set(func(c *fakeCluster) { c.contact = time.Time{} })
	h.do(h.root, "GET", "/api/v1/operator/status", "").want(t, 200).golden(t, "operator_status")
}

package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
)

// TestOwnKeys makes, lists, uses and deletes keys of a user's own.
func TestOwnKeys(t *testing.T) {
	h := newHarness(t)
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	type key struct {
		ID     int
		Name   string
		Key    string
		UserID string `json:"user_id"`
		OrgID  string `json:"org_id"`
	}
	var made, current key
	h.do(h.alice, "POST", "/api/keys", `{"name":"laptop","expires_at":"2999-01-01T00:00:00Z"}`).want(t, 200).json(t, &made)
	h.do(made.Key, "GET", "/api/keys/current", "").want(t, 200).json(t, &current)
	if current.ID != made.ID || current.Name != "laptop" || current.UserID != "alice" || current.OrgID != "alice" {
		t.Errorf("made %+v, is %+v", made, current)
	}
	none := h.do(made.Key, "GET", "/api/keys/current", "", "X-Session-API-Key", "")
	if got := string(none.body); strings.Contains(got, "laptop") {
		t.Errorf("without a key: %s", got)
	}
	list := h.do(h.alice, "GET", "/api/keys", "").want(t, 200)
	var keys []map[string]any
	list.json(t, &keys)
	if len(keys) != 2 || keys[1]["name"] != "laptop" || keys[1]["expires_at"] != "2999-01-01T00:00:00Z" ||
		strings.Contains(string(list.body), made.Key) || strings.Contains(string(list.body), apikey.Hash(made.Key)) {
		t.Errorf("the keys are %s", list.body)
	}
	for _, name := range []string{"id", "name", "created_at", "last_used_at", "not_before", "expires_at", "org_id",
		"disabled", "suspended_at"} {
		if _, has := keys[0][name]; !has || len(keys[0]) != 9 {
			t.Errorf("%s is missing, or there is more: %v", name, keys[0])
		}
	}
	// A key that a user makes is no operator's, whoever the user is.
	var roots key
	h.do(h.root, "POST", "/api/keys", `{"operator":true,"org_id":"root"}`).want(t, 200).json(t, &roots)
	h.do(roots.Key, "GET", "/api/v1/operator/keys", "").want(t, 403)
	first := h.cluster.store.View().APIKeyByLookup(apikey.LookupOf(h.root)).ID
	for _, c := range []struct {
		key  string
		id   any
		want int
	}{
		{h.bob, made.ID, 404}, {roots.Key, first, 403}, {h.alice, 9999, 404}, {h.alice, "x", 404},
		{h.alice, fmt.Sprint("+", made.ID), 404}, {h.alice, fmt.Sprint("0", made.ID), 404}, {h.alice, made.ID, 200},
		{h.alice, made.ID, 404}, {h.root, roots.ID, 200},
	} {
		h.do(c.key, "DELETE", fmt.Sprint("/api/keys/", c.id), "").want(t, c.want)
	}
	h.do(made.Key, "GET", "/api/keys/current", "").want(t, 401)
	for _, body := range []string{`{"expires_at":"2001-01-01T00:00:00Z"}`, `{"expires_at":"x"}`, `{"org_id":"bob"}`,
		`{"not_before":"2999-01-01T00:00:00Z"}`, `{"name":1}`} {
		h.do(h.alice, "POST", "/api/keys", body).want(t, 422)
	}
}

// TestOwnKeys_Bound: a user who has many keys makes no more.
func TestOwnKeys_Bound(t *testing.T) {
	h := newHarness(t)
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	for range fsm.MaxOwnKeys - 1 {
		h.issue("alice", false)
	}
	res := h.do(h.alice, "POST", "/api/keys", "{}").want(t, 409)
	if !json.Valid(res.body) || !strings.Contains(string(res.body), "delete one") {
		t.Errorf("the refusal is %s", res.body)
	}
}

// TestOwnKeys_OfASession: a key that a page makes ends with the session's week.
func TestOwnKeys_OfASession(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	b.signIn(`{"key":"` + b.alice + `"}`)
	var made keyBody
	b.ask("POST", "/api/keys", "{}").want(t, 200).json(t, &made)
	if end := made.ExpiresAt; end == nil || end.After(time.Now().Add(fsm.SessionAge)) {
		t.Errorf("the key ends at %v", end)
	}
	b.ask("POST", "/api/keys", `{"expires_at":"2999-01-01T00:00:00Z"}`).want(t, 422)
}

// TestOwnKeys_ThatDoNotOpen: a list tells a key that an operator has disabled, and one that a restore
// has brought back, from a good one.
func TestOwnKeys_ThatDoNotOpen(t *testing.T) {
	h := newHarness(t).raised()
	row := func(key string) *fsm.APIKey { return h.cluster.store.View().APIKeyByLookup(apikey.LookupOf(key)) }
	suspended := h.issue("carol", false)
	h.apply("", &fsm.TermOpenBody{Term: 1, Node: "n1", ClusterID: "test"})
	h.cluster.set(func(c *fakeCluster) {
		c.index += 10
		_, err := c.store.Succeed(fsm.Succession{
			ID: "act", At: time.Now(), Kind: fsm.FindingRestored, Index: c.index, SuspendKeys: true, KeepKey: row(h.root),
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	good, disabled := h.issue("carol", false), h.issue("carol", false)
	h.apply("", &fsm.APIKeyDisableBody{ID: row(disabled).ID})
	var keys []struct {
		ID          int
		Disabled    bool
		SuspendedAt *time.Time `json:"suspended_at"`
	}
	h.do(good, "GET", "/api/keys", "").want(t, 200).json(t, &keys)
	for _, k := range keys {
		if k.Disabled != (k.ID == row(disabled).ID) || (k.SuspendedAt != nil) != (k.ID == row(suspended).ID) {
			t.Errorf("the list has %+v", k)
		}
	}
	if len(keys) != 3 {
		t.Errorf("%d keys", len(keys))
	}
}

package httpapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// FuzzDecode feeds any bytes to every decoder: none may panic, and what is
// wrong must be a validation error that can be written as JSON.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(contractSettings))
	f.Add([]byte(everyStartField))
	for _, r := range canaryBodies() {
		f.Add([]byte(r.body))
	}
	f.Add([]byte(`{"policy":{"idle_timeout":"1h","max_running":"never"},"limits":{"cpu":"5","memory":1e999}}`))
	f.Add([]byte(`{"role":"user","content":[{"text":"hi"},{"type":"image","image_urls":["x"]}],"run":"no"}`))
	f.Add([]byte(`{"title":null,"public":1,"selected_repository":"octo/app","selected_branch":"a/b","git_provider":"github"}`))
	for _, s := range []string{``, `{}`, `[]`, `null`, `{"a":}`, `{"max_iterations":1e999}`, `{"pr_number":[1e308]}`, "\xff", `{"initial_message":{"content":[{}]}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for name, decode := range map[string]func(object){
			"settings":  func(o object) { readSettings(o) },
			"start":     func(o object) { readStart(o) },
			"v0":        func(o object) { readV0Start(o, principal{}) },
			"providers": func(o object) { readMCPConfig(o); readProviders(o) },
			"specs":     func(o object) { readSpecs(o) },
			"message":   func(o object) { readSentMessage(o) },
			"change":    func(o object) { readConversationUpdate(o) },
			"user":      func(o object) { readPolicy(o); readLimits(o, "limits") },
		} {
			p := &problems{}
			o := decodeObject(p, "application/json", body)
			decode(o)
			if len(p.list) > maxProblems {
				t.Fatalf("%s: %d problems", name, len(p.list))
			}
			if len(body) > 0 && !json.Valid(body) && len(p.list) == 0 {
				t.Fatalf("%s: took what is no JSON: %q", name, body)
			}
			b, err := encodeJSON(p.list)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, one := range p.list {
				if len(one.Loc) == 0 || one.Type == "" || one.Msg == "" {
					t.Fatalf("%s: problem %s", name, b)
				}
			}
		}
	})
}

// FuzzRouter asks for any path with any method: never a panic, never a
// redirect, and a 405 says what is allowed.
func FuzzRouter(f *testing.F) {
	for _, r := range routes() {
		f.Add(r.method, r.path)
	}
	f.Add("GET", "//api//settings")
	f.Add("BREW", "/api/v1/sandboxes/%2e%2e/pause")
	f.Add("DELETE", "/api/v1/operator/specs/a/b/c")
	f.Add("POST", "/api/v1/operator/specs/a/b/pool")
	rt := newRouter(nil, routes())
	f.Fuzz(func(t *testing.T, method, path string) {
		found, params := rt.lookup(method, path)
		if found != nil {
			if found.method != method {
				t.Fatalf("%s %s gave %s", method, path, found.name)
			}
			if !strings.ContainsAny(found.path, ":*") && found.path != path {
				t.Fatalf("%s gave %s", path, found.path)
			}
			for _, p := range params {
				if p.Value == "" {
					t.Fatalf("%s gave an empty %s", path, p.Key)
				}
			}
		}
		for _, m := range rt.allowed(path) {
			if r, _ := rt.lookup(m, path); r == nil && m != http.MethodHead {
				t.Fatalf("%s is said to be allowed on %s", m, path)
			}
		}
	})
}

// FuzzAuthorization: no header may panic or let a stranger in.
func FuzzAuthorization(f *testing.F) {
	f.Add("Bearer x", "y")
	f.Add("", "bvk_aaaaaaaaaaaa_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	f.Fuzz(func(t *testing.T, authorization, key string) {
		r := &http.Request{Header: http.Header{"Authorization": {authorization}, "X-Session-Api-Key": {key}}}
		value, bearer := bearerOf(r)
		if !bearer {
			value = key
		}
		if lookup := lookupOf(value); lookup != "" && len(lookup) != lookupLen {
			t.Fatalf("lookup %q", lookup)
		}
		if matches(nil, value) {
			t.Fatal("nobody's key matches")
		}
	})
}

package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/julienschmidt/httprouter"

	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/git"
	"bivouac.dev/bivouac/httpapi/legacy"
	"bivouac.dev/bivouac/httpapi/operators"
	"bivouac.dev/bivouac/httpapi/response"
)

// FuzzDecode feeds arbitrary bytes to every decoder. None may panic, and every error is a
// validation error that can be encoded as JSON.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(contractSettings))
	f.Add([]byte(everyStartField))
	for _, r := range canaryBodies() {
		f.Add([]byte(r.body))
	}
	f.Add([]byte(`{"policy":{"idle_timeout":"1h","max_running":"never"},"limits":{"cpu":"5","memory":1e999}}`))
	f.Add([]byte(`{"role":"user","content":[{"text":"hi"},{"type":"image","image_urls":["x"]}],"run":"no"}`))
	f.Add([]byte(`{"title":null,"public":1,"selected_repository":"octo/app",` +
		`"selected_branch":"a/b","git_provider":"github"}`))
	for _, s := range []string{
		``,
		`{}`,
		`[]`,
		`null`,
		`{"a":}`,
		`{"max_iterations":1e999}`,
		`{"pr_number":[1e308]}`,
		"\xff",
		`{"initial_message":{"content":[{}]}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		readsLikeEncodingJSON(t, body)
		for name, read := range map[string]func(decode.Object){
			"settings":  func(o decode.Object) { readSettings(o) },
			"start":     func(o decode.Object) { readStart(o) },
			"v0":        func(o decode.Object) { legacy.ReadStart(o, false); readMCPConfig(o) },
			"providers": func(o decode.Object) { readMCPConfig(o); git.ReadTokens(o) },
			"specs":     func(o decode.Object) { operators.ReadSpecs(o) },
			"message":   func(o decode.Object) { readSentMessage(o) },
			"change":    func(o decode.Object) { readConversationUpdate(o) },
			"user":      func(o decode.Object) { operators.ReadPolicy(o); operators.ReadLimits(o, "limits") },
		} {
			p := &decode.Problems{}
			o := decode.Body(p, "application/json", body)
			read(o)
			if len(p.List) > decode.MaxProblems {
				t.Fatalf("%s: %d problems", name, len(p.List))
			}
			if len(body) > 0 && !json.Valid(body) && len(p.List) == 0 {
				t.Fatalf("%s: took what is no JSON: %q", name, body)
			}
			b, err := response.Encode(p.List)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, one := range p.List {
				if len(one.Loc) == 0 || one.Type == "" || one.Msg == "" {
					t.Fatalf("%s: problem %s", name, b)
				}
			}
		}
	})
}

// readsLikeEncodingJSON compares the members of a body that is taken with what encoding/json reads.
func readsLikeEncodingJSON(t *testing.T, body []byte) {
	t.Helper()
	p := &decode.Problems{}
	o := decode.Body(p, "application/json", body)
	if len(p.List) > 0 {
		return
	}
	var want map[string]any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&want); err != nil || !reflect.DeepEqual(want, o.Members) {
		t.Fatalf("%q is read as %#v, want %#v, %v", body, o.Members, want, err)
	}
}

// FuzzRouter looks up arbitrary methods and paths: no panic, the route fits the method and the
// path, no parameter is empty, and every allowed method finds a route.
func FuzzRouter(f *testing.F) {
	for _, r := range routes() {
		f.Add(r.method, r.path)
	}
	f.Add("GET", "//api//settings")
	f.Add("BREW", "/api/v1/sandboxes/%2e%2e/pause")
	f.Add("DELETE", "/api/v1/operator/specs/a/b/c")
	f.Add("POST", "/api/v1/operator/specs/a/b/pool")
	f.Fuzz(func(t *testing.T, method, path string) {
		var found *route
		rt := newRouter(func(r *route, _ httprouter.Params, _ http.ResponseWriter, _ *http.Request) { found = r }, routes())
		hit, params := rt.lookup(method, path)
		if hit.serve != nil {
			hit.serve(nil, nil, params)
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
			if r, _ := rt.lookup(m, path); r.serve == nil && m != http.MethodHead {
				t.Fatalf("%s is said to be allowed on %s", m, path)
			}
		}
	})
}

// FuzzAuthorization: no header causes a panic or grants access.
func FuzzAuthorization(f *testing.F) {
	f.Add("Bearer x", "y")
	f.Add("", "bvk_aaaaaaaaaaaa_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	f.Fuzz(func(t *testing.T, authorization, key string) {
		r := &http.Request{Header: http.Header{"Authorization": {authorization}, "X-Session-Api-Key": {key}}}
		value, bearer := apikey.Bearer(r)
		if !bearer {
			value = key
		}
		if lookup := apikey.LookupOf(value); lookup != "" && len(lookup) != apikey.LookupLen {
			t.Fatalf("lookup %q", lookup)
		}
		if apikey.Matches(nil, value) {
			t.Fatal("nobody's key matches")
		}
	})
}

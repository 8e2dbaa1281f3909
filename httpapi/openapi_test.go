package httpapi

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"bivouac.dev/bivouac/fsm"
)

func loadDescription(t testing.TB) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(Description())
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context(), openapi3.DisableExamplesValidation()); err != nil {
		t.Fatal(err)
	}
	return doc
}

// describedPath is a route's path in OpenAPI's notation.
func describedPath(r route) string {
	path := regexp.MustCompile(`[:*]([a-z_]+)`).ReplaceAllString(r.path, "{$1}")
	if r.name == "spec.pool" {
		path += "/pool" // ids contain slashes, so the route matches the rest of the path
	}
	return path
}

// TestDescription_IsTheRouteTable: exactly the routes are described, each with its required access.
func TestDescription_IsTheRouteTable(t *testing.T) {
	doc := loadDescription(t)
	described := map[string]string{}
	security := map[string]*openapi3.Operation{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			described[op.OperationID] = method + " " + path
			security[op.OperationID] = op
		}
	}
	for _, r := range routes() {
		if want := r.method + " " + describedPath(r); described[r.name] != want {
			t.Errorf("%s is %q, described as %q", r.name, want, described[r.name])
			continue
		}
		op := security[r.name]
		delete(described, r.name)
		var schemes []string
		for _, one := range *op.Security {
			for name := range one {
				schemes = append(schemes, name)
			}
		}
		slices.Sort(schemes)
		want := map[access]string{
			open:       "",
			user:       "bearer cookie session",
			operator:   "bearer session",
			sandboxKey: "sandbox",
		}[r.access]
		if got := strings.Join(schemes, " "); got != want {
			t.Errorf("%s is described with the keys %q, want %q", r.name, got, want)
		}
		if (r.access == operator) != (op.Extensions["x-operator"] == true) {
			t.Errorf("%s: whether it is for operators alone is described wrongly", r.name)
		}
	}
	for name, where := range described {
		t.Errorf("%s (%s) is described and is no route", name, where)
	}
}

// TestDescription_HoldsForEveryRoute: every route's responses to a valid request, to no key and to
// nonsense, also in an unknown coding, match the description.
func TestDescription_HoldsForEveryRoute(t *testing.T) {
	t.Parallel()
	doc := loadDescription(t)
	ops := map[string]*openapi3.Operation{}
	for _, item := range doc.Paths.Map() {
		for _, op := range item.Operations() {
			ops[op.OperationID] = op
		}
	}
	for _, r := range routes() {
		t.Run(r.name, func(t *testing.T) {
			h := newHarness(t, withAgentServers, func(c *Config) { c.Logs = endedLogs{} }).withSpec().withSettings()
			sb := h.createSandbox(h.alice)
			h.observe(sb, running())
			h.starting()
			talk := h.conversation("alice", sb, speaksACP)
			h.withEvent(r, sb, talk)
			method, path, body := sampleRequest(r, sb, talk)
			if r.name == "spec.pool" {
				path += "/pool"
			}
			key := map[access]string{
				user:       h.alice,
				operator:   h.root,
				sandboxKey: h.secrets.last(fsm.SandboxKeyPath(sb))["key"],
			}[r.access]
			for _, one := range []struct{ key, body string }{{key, body}, {"", body}, {key, `{"a":`}, {key, `[]`}} {
				checkDescribed(t, ops[r.name], h.do(one.key, method, path, one.body))
			}
			checkDescribed(t, ops[r.name], h.do(key, method, path, "{}", "Content-Encoding", "br"))
		})
	}
}

// checkDescribed compares one response with its description.
func checkDescribed(t *testing.T, op *openapi3.Operation, res reply) {
	t.Helper()
	ref := op.Responses.Status(res.status)
	if ref == nil {
		t.Fatalf("%s answers %d, which is not described: %s", op.OperationID, res.status, res.body)
	}
	if res.status == http.StatusNoContent {
		return
	}
	media := ref.Value.Content.Get(res.header.Get("Content-Type"))
	if media == nil {
		t.Fatalf("%s answers %d with %s, which is not described", op.OperationID, res.status, res.header.Get("Content-Type"))
	}
	if !strings.HasPrefix(res.header.Get("Content-Type"), "application/json") {
		return
	}
	var v any
	if err := json.Unmarshal(res.body, &v); err != nil {
		t.Fatal(err)
	}
	if err := media.Schema.Value.VisitJSON(v, openapi3.VisitAsResponse(), openapi3.EnableFormatValidation()); err != nil {
		t.Fatalf("%s answers %d with %s: %v", op.OperationID, res.status, res.body, err)
	}
}

func TestDescription_IsServed(t *testing.T) {
	h := newHarness(t)
	res := h.do("", "GET", "/openapi.json", "").want(t, http.StatusOK)
	if string(res.body) != string(Description()) || res.header.Get("Content-Type") != "application/json" {
		t.Fatalf("%s: %.100s", res.header.Get("Content-Type"), res.body)
	}
}

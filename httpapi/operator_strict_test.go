package httpapi

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestOperator_BodiesAreStrict: an operator's request with a member that its route does not know
// changes nothing. A key that is asked for with a scope or a misspelt expiry must not become one
// without.
func TestOperator_BodiesAreStrict(t *testing.T) {
	h := newHarness(t)
	for _, r := range routes() {
		if r.access != operator || r.upload || r.method == http.MethodGet {
			continue
		}
		path := strings.NewReplacer("*id", "x/pool", ":id", "1", ":sandbox_id", "x", ":client_id", "x", ":kind",
			"job").Replace(r.path)
		before := h.cluster.count()
		got := summary(h.do(h.root, r.method, path, `{"scope":"read-only"}`).problems(t))
		if !slices.Contains(got, "body.scope extra_forbidden") {
			t.Errorf("%s: %s", r.name, got)
		}
		if h.cluster.count() != before {
			t.Errorf("%s proposed a command", r.name)
		}
	}
}

package agentserver

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documented are the routes that PROTOCOL.md names, as METHOD PATH.
func documented(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("../../../../scheduler/agent/PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, m := range regexp.MustCompile("`([A-Z]+ /[^`?]*)[^`]*`").FindAllStringSubmatch(string(b), -1) {
		list = append(list, m[1])
	}
	return list
}

// TestRules_NameEveryRoute compares PROTOCOL.md with the route table.
func TestRules_NameEveryRoute(t *testing.T) {
	text := documented(t)
	for _, r := range (&Server{}).table() {
		if name := r.method + " " + strings.TrimSuffix(r.path, "{$}"); !slices.Contains(text, name) {
			t.Errorf("PROTOCOL.md does not name %s", name)
		}
	}
}

// TestRules_NameNoOtherRoute: a route that is gone, or spelled otherwise, stays in no text.
func TestRules_NameNoOtherRoute(t *testing.T) {
	elsewhere := []string{"GET /api/init", "POST /api/init", "POST /llm/token"} // a deferred server's, a node's
	var table []string
	for _, r := range (&Server{}).table() {
		table = append(table, r.method+" "+strings.TrimSuffix(r.path, "{$}"))
	}
	for _, name := range documented(t) {
		if !slices.Contains(table, name) && !slices.Contains(elsewhere, name) {
			t.Errorf("PROTOCOL.md names %s, which is not in the route table", name)
		}
	}
}

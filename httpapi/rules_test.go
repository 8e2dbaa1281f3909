package httpapi

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestRules_NameEveryRoute compares API.md with the route table, both ways.
func TestRules_NameEveryRoute(t *testing.T) {
	b, err := os.ReadFile("API.md")
	if err != nil {
		t.Fatal(err)
	}
	text, known := string(b), map[string]bool{}
	parameter := regexp.MustCompile(`[:*](\w+)`)
	for _, r := range routes() {
		name := r.method + " " + parameter.ReplaceAllString(r.path, "{$1}")
		if r.name == "spec.pool" {
			name += "/pool" // the router's pattern includes it in the id
		}
		known[name] = true
		if !strings.Contains(text, "`"+name+"`") && !strings.Contains(text, "`"+name+"?") {
			t.Errorf("API.md does not name %s", name)
		}
	}
	named := regexp.MustCompile("`((?:GET|POST|PUT|PATCH|DELETE) /api[^`?]*)[`?]")
	for _, m := range named.FindAllStringSubmatch(text, -1) {
		if !known[m[1]] {
			t.Errorf("API.md names %s, which is no route", m[1])
		}
	}
}

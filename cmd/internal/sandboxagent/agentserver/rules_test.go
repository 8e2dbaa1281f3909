package agentserver

import (
	"os"
	"strings"
	"testing"
)

// TestRules_NameEveryRoute compares PROTOCOL.md with the route table.
func TestRules_NameEveryRoute(t *testing.T) {
	b, err := os.ReadFile("../../../../scheduler/agent/PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, r := range (&Server{}).table() {
		name := r.method + " " + strings.TrimSuffix(r.pattern, "{$}")
		if !strings.Contains(text, "`"+name+"`") && !strings.Contains(text, "`"+name+"?") {
			t.Errorf("PROTOCOL.md does not name %s", name)
		}
	}
}

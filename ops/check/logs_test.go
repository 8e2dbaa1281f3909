package check

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestLogs_TheListOfKeysIsThePages compares .golangci.yml with the table of ops/LOGS.md.
func TestLogs_TheListOfKeysIsThePages(t *testing.T) {
	page, err := os.ReadFile("../LOGS.md")
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile("../../.golangci.yml")
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		keys = append(keys, m[1])
	}
	_, rest, found := strings.Cut(string(config), "allowed-keys: [ # ops/LOGS.md")
	list, _, closed := strings.Cut(rest, "]")
	if !found || !closed {
		t.Fatal(".golangci.yml has no list of keys")
	}
	allowed := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' })
	slices.Sort(keys)
	slices.Sort(allowed)
	if !slices.Equal(keys, allowed) {
		t.Errorf("ops/LOGS.md has %v\n.golangci.yml allows %v", keys, allowed)
	}
}

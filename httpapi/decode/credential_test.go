package decode

import (
	"fmt"
	"strings"
	"testing"
)

// faults returns the problems that read finds in the member "x" with a value.
func faults(value any, read func(o Object)) []Problem {
	p := &Problems{}
	read(Object{Members: map[string]any{"x": value}, Problems: p, Loc: []string{"body"}})
	return p.List
}

// TestRepository_HoldsNoCredential: what stands before a repository's host and what follows it never
// reaches the log.
func TestRepository_HoldsNoCredential(t *testing.T) {
	for _, good := range []string{
		"owner/name", "host.example/owner/name", "https://host.example/owner/name.git", "git@host.example:owner/name.git",
		"owner/na@me", "ssh://host.example/owner/name", "owner/sk-learn-contrib",
	} {
		if got := faults(good, func(o Object) { o.Repository("x", 200) }); got != nil {
			t.Errorf("%s: %v", good, got)
		}
	}
	for _, bad := range []string{
		"CANARY@host.example/owner/name", "CANARY@host/a/b", " CANARY@host/a", "me:CANARY@host/a/b",
		"https://CANARY@host/a/b",
		"https://host/a/b?private_token=CANARY", "https://host/a/b#CANARY", "host/a/b?token=CANARY",
	} {
		got := faults(bad, func(o Object) { o.Repository("x", 200) })
		if len(got) != 1 || strings.Contains(fmt.Sprint(got), "CANARY") {
			t.Errorf("%s: %v", bad, got)
		}
	}
}

// TestEndpoint_HoldsNoCredential: a model's URL has no parameter that may be a key.
func TestEndpoint_HoldsNoCredential(t *testing.T) {
	for _, good := range []string{
		"https://m.example/v1",
		"https://m.example/openai?api-version=2024-10-21",
		"https://m.example/v1?",
	} {
		if got := faults(good, func(o Object) { o.Endpoint("x", 200) }); got != nil {
			t.Errorf("%s: %v", good, got)
		}
	}
	for _, bad := range []string{
		"https://m.example/v1?key=CANARY", "https://m.example/v1?CANARY", "https://m.example/v1?api-version=1&code=CANARY",
		"https://m.example/v1?api-version=1#CANARY", "https://me:CANARY@m.example/v1",
	} {
		got := faults(bad, func(o Object) { o.Endpoint("x", 200) })
		if len(got) != 1 || strings.Contains(fmt.Sprint(got), "CANARY") {
			t.Errorf("%s: %v", bad, got)
		}
	}
}

// TestHoldsCredential: an agent's command line is stored as it is, so it must hold no key.
func TestHoldsCredential(t *testing.T) {
	for _, good := range [][]string{
		nil, {"opencode", "acp"}, {"agent", "--api-key", "{{llm_api_key}}"}, {"agent", "--api-key={{llm_api_key}}"},
		{
			"agent",
			"--token",
			"--verbose",
		}, {"env", "KEY_FILE=/run/x", "agent"}, {"agent", "--max-tokens", "100"}, {"agent", "--key="},
	} {
		if HoldsCredential(good) {
			t.Errorf("%q has no credential", good)
		}
	}
	for _, bad := range [][]string{
		{"agent", "--api-key", "x"}, {"agent", "--api-key=x"}, {
			"env",
			"OPENAI_API_KEY=x",
			"agent",
		}, {"agent", "sk-0123456789"},
		{
			"agent",
			"--header",
			"Authorization: Bearer abcdefgh12",
		}, {"agent", "-password", "x"}, {"agent", "https://me:pw@host/"},
		{"agent", "https://host/?token=abc"},
	} {
		if !HoldsCredential(bad) {
			t.Errorf("%q has a credential", bad)
		}
	}
}

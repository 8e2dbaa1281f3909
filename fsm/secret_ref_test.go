package fsm

import (
	"fmt"
	"testing"
)

// TestView_SecretRef_IsTheNewest: when the store assigned a version number twice, the ref is that
// of the version created last.
func TestView_SecretRef_IsTheNewest(t *testing.T) {
	t.Parallel()
	s := NewStore()
	index := uint64(0)
	apply := func(body Body) {
		t.Helper()
		index++
		if _, err := s.Apply(index, NewCommand(fmt.Sprint("c", index), testEpoch, "ada", body)); err != nil {
			t.Fatal(err)
		}
	}
	apply(&TermOpenBody{Term: 1, Node: "n1", ClusterID: "test"})
	ref := SecretRef{Path: "users/ada/settings/llm_api_key", Version: 2}
	for _, created := range []string{"", "2026-01-02T03:04:05.1Z", "2026-01-02T03:04:06Z"} {
		ref.Created = created
		apply(&SettingsPutBody{LLMAPIKey: &ref})
		if got, ok := s.View().SecretRef(ref.Path, ref.Version); !ok || got != ref {
			t.Errorf("%+v, %t; want %+v", got, ok, ref)
		}
	}
	if got, ok := s.View().SecretRef(ref.Path, 1); ok {
		t.Errorf("%+v", got)
	}
	long := ref
	long.Created = string(make([]byte, 1000))
	if err := Validate(&SettingsPutBody{LLMAPIKey: &long}); err == nil {
		t.Error("any text is taken for a time")
	}
}

// TestView_OldestSecret: what a write to the secret store must not push out.
func TestView_OldestSecret(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	put := func(path string, version int) {
		f.do("ada",
			&SettingsPutBody{CustomSecrets: []CustomSecret{{Name: "A", Ref: SecretRef{Path: path, Version: version}}}})
	}
	for _, tc := range []struct{ version, want int }{{3, 3}, {300, 300}, {70000, 70000}} {
		put("users/ada/custom/A", tc.version)
		if got := f.store.View().OldestSecret("users/ada/custom/A"); got != tc.want {
			t.Errorf("version %d after %d was put", got, tc.version)
		}
	}
	for _, path := range []string{"users/ada/custom", "users/ada/custom/", "users/ada/custom/AB", ""} {
		if got := f.store.View().OldestSecret(path); got != 0 {
			t.Errorf("%q has version %d in use", path, got)
		}
	}
}

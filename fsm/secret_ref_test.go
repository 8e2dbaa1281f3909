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

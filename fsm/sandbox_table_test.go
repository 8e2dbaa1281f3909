package fsm

import (
	"slices"
	"testing"
	"time"
)

func TestView_SandboxesFolded(t *testing.T) {
	s := NewStore()
	index := uint64(0)
	apply := func(user string, body Body) {
		t.Helper()
		index++
		if _, err := s.Apply(index, NewCommand(string(rune('a'+index)), time.Unix(1, 0), user, body)); err != nil {
			t.Fatal(err)
		}
	}
	apply("", &SpecApplyBody{Specs: []Spec{{ID: "s", Template: Template{Driver: DriverRawExec, Isolation: IsolationNone,
		Command: "/bin/x",
		CPU:     1, Memory: 1, Ports: map[string]int{PortAgentServer: 0}}}}})
	for i, id := range []string{"Ab1", "aB1", "ab12", "ab"} {
		hash := slices.Repeat([]byte{byte('0' + i)}, 64)
		apply("alice",
			&SandboxCreateBody{ID: id, SpecID: "s", KeyRef: SecretRef{Path: "p/" + id, Version: 1}, KeyHash: string(hash)})
	}
	for id, want := range map[string][]string{
		"ab1": {"Ab1", "aB1"}, "AB1": {"Ab1", "aB1"}, "AB12": {"ab12"}, "ab": {"ab"}, "a": {}, "": {}, "ab1\x00": {},
	} {
		got := []string{}
		for _, b := range s.View().SandboxesFolded(id) {
			got = append(got, b.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", id, got, want)
		}
	}
}

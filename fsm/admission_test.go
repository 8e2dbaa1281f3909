package fsm

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// Admission predicts the result of Apply.
func TestAdmission_SaysWhatApplyWillSay(t *testing.T) {
	t.Parallel()
	spec, compared := dockerSpec("p1"), map[string]int{}
	spec.Pool = 3
	rapid.Check(t, func(r *rapid.T) {
		s, index := NewStore(), uint64(1)
		if _, err := s.Apply(index, NewCommand("spec", testEpoch, "", &SpecApplyBody{Specs: []Spec{spec}})); err != nil {
			r.Fatal(err)
		}
		l := &life{r: r, now: testEpoch}
		for range rapid.IntRange(1, 60).Draw(r, "commands") {
			v := s.View()
			cmd := l.next(v)
			index++
			_, err := s.Apply(index, cmd)
			if err != nil && CodeOf(err) != CodeLimit {
				continue // CodePoolEmpty too: a cold start follows
			}
			var said *Error
			switch b := cmd.Body.(type) {
			case *SandboxCreateBody:
				said = v.Admission(cmd.UserID, b.SpecID, b.Warm, cmd.Time)
			case *StartTaskCreateBody:
				said = v.StartAdmission(cmd.UserID, &b.Request, cmd.Time)
			default:
				continue
			}
			compared[words(cmd.Type, codeOf(said))]++
			switch {
			case (said == nil) != (err == nil):
				r.Fatalf("Admission says %v, Apply %v", said, err)
			case said != nil && !reflect.DeepEqual(said, err):
				r.Fatalf("Admission says %+v, Apply %+v", *said, err)
			}
		}
	})
	if t.Log(compared); len(compared) != 4 {
		t.Error("no start fitted, or none was over a limit")
	}
}

package fsm

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// What Admission says of a start is what Apply says when it comes.
func TestAdmission_SaysWhatApplyWillSay(t *testing.T) {
	spec, compared := dockerSpec("p1"), map[bool]int{}
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
			create, isCreate := cmd.Body.(*SandboxCreateBody)
			index++
			_, err := s.Apply(index, cmd)
			waiting := slices.ContainsFunc(v.OpenStartTasks(), func(t *StartTask) bool { return t.SandboxID == "" })
			if !isCreate || waiting || err != nil && CodeOf(err) != CodeLimit {
				continue
			}
			member := ""
			if create.Claim != nil {
				member = create.Claim.Member
			}
			said := v.Admission(cmd.UserID, create.SpecID, member, cmd.Time)
			compared[said == nil]++
			switch {
			case (said == nil) != (err == nil):
				r.Fatalf("Admission says %v, Apply %v", said, err)
			case said != nil && !reflect.DeepEqual(said, err):
				r.Fatalf("Admission says %+v, Apply %+v", *said, err)
			}
		}
	})
	if t.Log(compared); compared[true] == 0 || compared[false] == 0 {
		t.Error("no start fitted, or none was over a limit")
	}
}

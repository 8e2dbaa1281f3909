package fsm

import (
	"reflect"
	"testing"
)

// Below VersionAccess some nodes drop what they do not know of a template, so all do.
func TestSpecApply_ConfinementComesWithItsVersion(t *testing.T) {
	f := newFixture(t).open()
	s := dockerSpec("py")
	s.Template.CapAdd, s.Template.Runtime, s.Template.ReadonlyRootfs = []string{"CHOWN"}, "runsc", true
	s.Template.Isolation = IsolationStandard
	for version, want := range map[int]Template{VersionCharacters: dockerSpec("py").Template, VersionAccess: s.Template} {
		f := newFixture(t).open()
		f.do("", &ProtocolRaiseBody{Version: version})
		f.do("", &SpecApplyBody{Specs: []Spec{s}})
		if got := restored(t, f.store).View().Spec("py").Template; !reflect.DeepEqual(got, want) {
			t.Errorf("version %d: stored %+v, want %+v", version, got, want)
		}
	}
	// What was stored before is shown as what its driver gives.
	raw := Spec{ID: "raw", Template: Template{Driver: DriverRawExec, Command: "/agent", CPU: 1, Memory: 1, Ports: map[string]int{PortAgentServer: 0}}}
	f.do("", &SpecApplyBody{Specs: []Spec{raw}})
	if got := f.store.View().Spec("raw").Template; got.Isolation != "" || got.Isolated() != IsolationNone {
		t.Errorf("isolation %q of an earlier spec, shown as %q", got.Isolation, got.Isolated())
	}
	// A rule that an older node does not know refuses nothing either.
	s.Template.CapAdd = []string{"SYS_ADMIN"}
	f.do("", &ProtocolRaiseBody{Version: VersionCharacters})
	f.do("", &SpecApplyBody{Specs: []Spec{s}})
	f.do("", &ProtocolRaiseBody{Version: VersionAccess})
	_ = f.fails(CodeInvalid, "", &SpecApplyBody{Specs: []Spec{s}})
}

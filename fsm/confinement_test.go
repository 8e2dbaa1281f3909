package fsm

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"
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
	raw := Spec{
		ID: "raw",
		Template: Template{
			Driver:  DriverRawExec,
			Command: "/agent",
			CPU:     1,
			Memory:  1,
			Ports:   map[string]int{PortAgentServer: 0},
		},
	}
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

// TestSandbox_NoRequestChangesItsTemplate: whatever users send, in any order, a sandbox has the
// template of a spec, but for the image and the size that the settings may choose.
func TestSandbox_NoRequestChangesItsTemplate(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		store, specs := NewStore(), map[string]bool{}
		bare := func(p Template) string {
			p.Image, p.CPU, p.Memory = "", 0, 0
			return p.Hash()
		}
		seen := map[string]string{}
		for _, e := range genHistory(60).Draw(r, "log") {
			store.ApplyBatch([]Entry{e})
			v := store.View()
			for _, s := range v.Specs() {
				specs[bare(s.Template)] = true
			}
			for sb := range v.AllSandboxes() {
				now := bare(sb.Template)
				if before, ok := seen[sb.ID+sb.Birth.String()]; !ok && !specs[now] || ok && before != now {
					r.Fatalf("after %s the sandbox %s has a template that no spec has: %+v", e.Command.Type, sb.ID, sb.Template)
				}
				seen[sb.ID+sb.Birth.String()] = now
			}
		}
	})
}

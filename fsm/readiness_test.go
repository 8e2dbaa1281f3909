package fsm

import (
	"strings"
	"testing"
)

func TestTemplate_Readiness(t *testing.T) {
	mock := Template{
		Driver: DriverMock, Readiness: ReadinessAllocation, WorkingDir: "project", CPU: 1, Memory: 10,
		Ports: map[string]int{PortAgentServer: 0},
	}
	for name, c := range map[string]struct {
		edit func(*Template)
		want string
	}{
		"mock":                  {func(*Template) {}, ""},
		"mock without the word": {func(p *Template) { p.Readiness = "" }, `mock_driver is only for readiness = "allocation"`},
		"unknown":               {func(p *Template) { p.Readiness = "soon" }, `unknown readiness "soon"`},
		"another driver": {
			func(p *Template) { p.Driver, p.Command, p.Isolation = DriverRawExec, "/agent", IsolationNone },
			"",
		},
		"mock with an image": {func(p *Template) { p.Image = "x" }, "are for docker only"},
	} {
		t.Run(name, func(t *testing.T) {
			p := mock
			c.edit(&p)
			err := Validate(&SpecApplyBody{Specs: []Spec{{ID: "m", Template: p}}})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	plain := dockerSpec("py").Template
	said := plain
	said.Readiness = ReadinessAllocation
	if plain.Hash() == said.Hash() {
		t.Error("readiness makes no difference")
	}
}

// The token of a workspace's marker comes with an observation and is stored like the rest.
func TestSandboxObserve_Workspace(t *testing.T) {
	f := newFixture(t).open()
	f.sandbox("ada", "s1")
	f.do("", &SandboxObserveBody{Observations: []Observation{{ID: "s1", Status: SandboxStatus{
		State: SandboxRunning, Generation: 1, Workspace: "token",
	}}}})
	if got := restored(t, f.store).View().SandboxAny("s1").Status.Workspace; got != "token" {
		t.Errorf("workspace marker %q", got)
	}
}

package fsm

import "testing"

// TestClaim_PassesOverAMemberOfADrainedClient: from VersionDrainedMembers on a member that is being
// stopped because its Nomad client is drained is given to nobody. Earlier programs gave it.
func TestClaim_PassesOverAMemberOfADrainedClient(t *testing.T) {
	for _, test := range []struct {
		version int
		given   bool
	}{{VersionHistory, true}, {VersionDrainedMembers, false}} {
		f := newFixture(t)
		f.do("", &ProtocolRaiseBody{Version: test.version})
		f.do("", &SpecApplyBody{Specs: []Spec{dockerSpec("py")}})
		f.do("", &SpecPoolBody{ID: "py", Size: 1})
		f.do("", newMember("m1", "py"))
		f.do("", &SandboxObserveBody{Observations: []Observation{{ID: "m1", Status: SandboxStatus{
			State: SandboxRunning, Generation: 1, Reason: ReasonClient,
		}}}})
		if m := f.store.View().ClaimableMember("py", "ada", nil); (m != nil) != test.given {
			t.Errorf("version %d: a claim would get %+v", test.version, m)
		}
		if test.given {
			f.do("ada", warmSandboxBody())
			continue
		}
		_ = f.fails(CodePoolEmpty, "ada", warmSandboxBody())
		f.do("",
			&SandboxObserveBody{
				Observations: []Observation{{ID: "m1", Status: SandboxStatus{State: SandboxRunning, Generation: 1}}},
			})
		f.do("ada", warmSandboxBody())
	}
}

package fsm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The file of a leader sets what was never set, an operator all of it, and of two operators that
// read the same configuration the second is refused.
func TestInstallation_SeededOnceThenByIndex(t *testing.T) {
	f := newFixture(t)
	file := func(n int) Installation {
		return Installation{
			PerUser: Limits{Running: n},
			CORS:    CORS{Origins: []string{"https://app.example.org"}},
			Git:     Git{AllowedHosts: []string{"git.example.org"}},
		}
	}
	// An older cluster keeps policies and limits alone.
	f.do("", &InstallationConfigureBody{Installation: file(1), Seed: true, CheckIndex: new(uint64(99))})
	v := f.store.View()
	if diff := cmp.Diff(Installation{PerUser: Limits{Running: 1}}, v.Installation()); diff != "" || v.ConfigIndex() != 0 {
		t.Fatalf("index %d %s", v.ConfigIndex(), diff)
	}
	f.do("", &ProtocolRaiseBody{Version: VersionConfig})
	// What it lacks comes from a leader's file, what it has stays.
	f.do("", &InstallationConfigureBody{Installation: file(2), Seed: true})
	seeded := f.store.View()
	if diff := cmp.Diff(file(1), seeded.Installation()); diff != "" || seeded.ConfigIndex() != seeded.Index() {
		t.Fatalf("index %d of %d %s", seeded.ConfigIndex(), seeded.Index(), diff)
	}
	f.do("", &InstallationConfigureBody{Installation: file(3), Seed: true})
	if v := f.store.View(); v.ConfigIndex() != seeded.ConfigIndex() || v.Installation().PerUser.Running != 1 {
		t.Fatal("a second leader's file came into force")
	}

	at := seeded.ConfigIndex()
	f.do("", &InstallationConfigureBody{Installation: file(4), CheckIndex: &at})
	err := f.fails(CodeConflict, "", &InstallationConfigureBody{Installation: file(5), CheckIndex: &at})
	if want := fmt.Sprintf("index is %d, not %d", f.store.View().ConfigIndex(), at); !strings.Contains(err.Message, want) {
		t.Fatalf("%q lacks %q", err.Message, want)
	}
	if got := f.store.View().Installation().PerUser.Running; got != 4 {
		t.Fatalf("the second operator overwrote the first: %d", got)
	}
	// The same again is no change.
	before := f.store.View().ConfigIndex()
	f.do("", &InstallationConfigureBody{Installation: file(4)})
	if v := f.store.View(); v.ConfigIndex() != before {
		t.Error("the same configuration got another index")
	}
	f.do("", &InstallationConfigureBody{})
	if v := f.store.View(); !v.Installation().Equal(Installation{}) || v.ConfigIndex() == before || !v.Configured() {
		t.Error("an operator can't reset it")
	}
}

// A leader's file seeds the model gateway where the protocol version keeps it, and the vendors' hosts
// are the same as none.
func TestInstallation_TheGatewayIsSeeded(t *testing.T) {
	file := Installation{
		PerUser: Limits{Running: 2},
		LLM:     LLM{Direct: true, Hosts: []string{"10.1.2.0/24"}, Budgets: Budgets{PerTask: 5}},
	}
	for version, want := range map[int]LLM{VersionModels: file.LLM, VersionConfig: {}} {
		f := newFixture(t)
		f.do("", &InstallationConfigureBody{Installation: file}) // a new cluster, before it is raised
		f.do("", &ProtocolRaiseBody{Version: version})
		f.do("", &InstallationConfigureBody{Installation: file, Seed: true})
		if diff := cmp.Diff(want, f.store.View().Installation().LLM); diff != "" {
			t.Errorf("version %d: %s", version, diff)
		}
	}
	vendors := Installation{LLM: LLM{Hosts: []string{HostsVendors}}}
	if !vendors.Equal(Installation{}) || len(vendors.Differences(Installation{})) != 0 {
		t.Error("the vendors' hosts differ from the default")
	}
	f := newFixture(t)
	err := f.fails(CodeInvalid, "",
		&InstallationConfigureBody{Installation: Installation{LLM: LLM{Prices: []Price{{Model: "a"}, {Model: "a"}}}}})
	if !strings.Contains(err.Message, `"a" has two prices: remove one`) {
		t.Error(err)
	}
}

func TestInstallation_DifferencesAndStricter(t *testing.T) {
	has := Installation{Policy: Policy{IdleTimeout: time.Hour, MaxRunning: -1}, PerUser: Limits{Running: 3}}
	wants := Installation{Policy: Policy{IdleTimeout: 2 * time.Hour, MaxRunning: 8 * time.Hour}, OnLimit: OnLimitRefuse,
		PerUser: Limits{Running: 2}, CORS: CORS{
			Origins: []string{"https://a.example", "https://b.example"},
		}, Git: Git{Unverified: true}}
	want := []Difference{
		{
			"policy.idle_timeout",
			"1h0m0s",
			"2h0m0s",
		}, {"policy.max_running", "never", "8h0m0s"}, {"limits.user.running_sandboxes", "3", "2"},
		{"git.verify_tokens", "true", "false"}, {"cors.origins", "[]", "[https://a.example, https://b.example]"},
	}
	if diff := cmp.Diff(want, has.Differences(wants)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]Difference{want[1]}, has.Stricter(wants)); diff != "" {
		t.Error(diff)
	}
	if got := wants.Stricter(has); len(got) != 1 || got[0].Name != "policy.idle_timeout" {
		t.Errorf("%+v", got)
	}
	if got := has.Stricter(Installation{OnLimit: OnLimitPauseOldest}); len(got) != 1 || got[0].Name != "limits.on_limit" {
		t.Errorf("%+v", got)
	}
	// An exact comparison: what is unset is not "never".
	if has.Equal(Installation{Policy: Policy{IdleTimeout: time.Hour}, PerUser: Limits{Running: 3}}) {
		t.Error("max_running: unset equals never")
	}
	for s, good := range map[string]bool{
		"https://app.example.org": true,
		"http://localhost:3000":   true,
		"app.example.org":         false,
		"https://a.example/":      false,
		"https://":                false,
		"https://a b":             false,
		"*":                       false,
	} {
		if (CheckOrigin(s) == nil) != good {
			t.Errorf("CheckOrigin(%q) = %v", s, CheckOrigin(s))
		}
	}
}

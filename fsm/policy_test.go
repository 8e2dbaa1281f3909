package fsm

import (
	"strings"
	"testing"
	"time"
)

func TestPolicyOver(t *testing.T) {
	base := Policy{IdleTimeout: time.Hour, MaxRunning: 2 * time.Hour}
	for _, c := range []struct{ p, want Policy }{
		{Policy{}, base},
		{Policy{IdleTimeout: -1}, Policy{IdleTimeout: -1, MaxRunning: 2 * time.Hour}},
		{Policy{DeletePausedAfter: time.Minute}, Policy{time.Hour, 2 * time.Hour, time.Minute}},
		{Policy{1, 2, 3}, Policy{1, 2, 3}},
	} {
		if got := c.p.Over(base); got != c.want {
			t.Errorf("%+v over %+v gives %+v", c.p, base, got)
		}
	}
}

// TestPolicyOf: user over template over installation, with the user's current policy.
func TestPolicyOf(t *testing.T) {
	f := newFixture(t)
	spec := dockerSpec("py")
	spec.Template.Policy = Policy{MaxRunning: time.Minute, DeletePausedAfter: -1}
	f.do("", &SpecApplyBody{Specs: []Spec{spec}})
	f.do("", &APIKeyCreateBody{Lookup: "a", Hash: sha("a"), UserID: "ada"})
	f.do("", &InstallationConfigureBody{Installation: Installation{Policy: Policy{1, 2, 3}}})
	f.sandbox("ada", "s1")
	check := func(want Policy) {
		t.Helper()
		v := f.store.View()
		if got := v.PolicyOf(v.SandboxAny("s1")); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	check(Policy{1, time.Minute, -1})
	f.do("", &UserConfigureBody{UserID: "ada", Policy: &Policy{DeletePausedAfter: time.Hour}})
	check(Policy{1, time.Minute, time.Hour})
	f.do("", &InstallationConfigureBody{Installation: Installation{Policy: Policy{IdleTimeout: 7}}})
	check(Policy{7, time.Minute, time.Hour})
}

// TestExpireAgainstTouch: in any order, a sandbox that was used after the leader's check is not
// paused as idle, and a touch does not resume a paused one.
func TestExpireAgainstTouch(t *testing.T) {
	for _, used := range []bool{false, true} {
		for _, touchFirst := range []bool{false, true} {
			f := newFixture(t).open()
			f.sandbox("ada", "s1")
			f.do("",
				&SandboxObserveBody{Observations: []Observation{{"s1", SandboxStatus{State: SandboxRunning, Generation: 1}}}})
			if used {
				f.do("", &SandboxTouchBody{Touches: []Touch{{ID: "s1", At: f.now}}})
			}
			seen := f.store.View().SandboxAny("s1")
			f.now = f.now.Add(time.Hour)
			touch := &SandboxTouchBody{Touches: []Touch{{ID: "s1", At: f.now}}}
			expire := &SandboxExpireBody{ID: "s1", Generation: seen.Generation, Action: ExpirePause, Reason: PausedByIdle,
				NotActiveSince: seen.Status.LastActive}
			want := DesiredPaused
			if touchFirst {
				f.do("", touch)
				want = DesiredRunning
			}
			if r := f.do("", expire); (r.Sandbox != nil) == touchFirst {
				t.Errorf("used %v, touched first %v: the answer is %+v", used, touchFirst, r.Sandbox)
			}
			f.do("", touch)
			f.do("", expire) // of an older generation, or after the use
			if s := f.store.View().SandboxAny("s1"); s.Desired != want {
				t.Errorf("used %v, touched first %v: %s", used, touchFirst, s.Desired)
			}
		}
	}
}

// TestExpiryCountsAnew: a change without a change of state (a claim, a pause that was taken back
// before it happened) starts the time again.
func TestExpiryCountsAnew(t *testing.T) {
	f := newFixture(t).open()
	f.do("",
		&InstallationConfigureBody{Installation: Installation{Policy: Policy{IdleTimeout: time.Hour, MaxRunning: time.Hour}}})
	f.do("", &SpecPoolBody{ID: "py", Size: 1})
	f.do("", newMember("m1", "py"))
	running := func(generation uint64) {
		f.do("",
			&SandboxObserveBody{
				Observations: []Observation{{"m1", SandboxStatus{State: SandboxRunning, Generation: generation}}},
			})
	}
	expiry := func() (time.Time, bool) {
		v := f.store.View()
		at, _, _, ok := v.Expiry(v.SandboxAny("m1"))
		return at, ok
	}
	running(1)
	if _, ok := expiry(); ok {
		t.Error("a member of a pool expires")
	}
	f.now = f.now.Add(24 * time.Hour)
	if r := f.do("ada", warmSandboxBody()); r.Sandbox.ID != "m1" {
		t.Fatal("not claimed")
	}
	claimed := f.now
	running(2)
	if at, ok := expiry(); !ok || at != claimed.Add(time.Hour) {
		t.Errorf("expires at %v, claimed at %v", at, claimed)
	}
	f.do("ada", &SandboxPauseBody{ID: "m1"})
	f.do("ada", &SandboxResumeBody{ID: "m1"})
	resumed := f.now
	running(4)
	if at, ok := expiry(); !ok || at != resumed.Add(time.Hour) {
		t.Errorf("expires at %v, resumed at %v", at, resumed)
	}
}

// TestPoolEmpty_IsNotRemembered: a cold start may reuse the id of the claim that found no member. A
// claim that got a member is replayed.
func TestPoolEmpty_IsNotRemembered(t *testing.T) {
	f := newFixture(t).open()
	claim := f.command("ada", warmSandboxBody())
	if _, err := f.apply(claim); CodeOf(err) != CodePoolEmpty {
		t.Fatalf("without a pool: %v", err)
	}
	cold := f.command("ada", newSandboxBody("s1"))
	cold.ID = claim.ID
	for _, again := range []Command{cold, claim} {
		if r, err := f.apply(again); err != nil || r.Sandbox.ID != "s1" {
			t.Errorf("%+v, %v", r.Sandbox, err)
		}
	}
	f.do("", &SpecPoolBody{ID: "py", Size: 2})
	for _, id := range []string{"m1", "m2"} {
		f.do("", newMember(id, "py"))
		f.do("", &SandboxObserveBody{Observations: []Observation{{id, SandboxStatus{State: SandboxRunning, Generation: 1}}}})
	}
	claim = f.command("ada", warmSandboxBody())
	for range 2 {
		if r, err := f.apply(claim); err != nil || r.Sandbox.ID != "m1" {
			t.Errorf("%+v, %v", r.Sandbox, err)
		}
	}
	// A member whose key has been taken since can't be claimed.
	other := newSandboxBody("s2")
	other.KeyHash = sha("m2")
	f.do("ada", other)
	if e := f.fails(CodePoolEmpty, "ada", warmSandboxBody()); !strings.Contains(e.Message, "py") {
		t.Errorf("it names no spec: %s", e.Message)
	}
}

func goodClaim() Body { return warmSandboxBody() }

func badClaims() map[string]func(Body) {
	set := func(f func(*SandboxCreateBody)) func(Body) { return func(b Body) { f(b.(*SandboxCreateBody)) } }
	return map[string]func(Body){
		"an id":     set(func(b *SandboxCreateBody) { b.ID = "s1" }),
		"a key":     set(func(b *SandboxCreateBody) { b.KeyRef = SecretRef{Path: "p", Version: 1} }),
		"a hash":    set(func(b *SandboxCreateBody) { b.KeyHash = sha("s1") }),
		"long spec": set(func(b *SandboxCreateBody) { b.SpecID = long(MaxName) }),
	}
}

func goodMember() Body {
	return newMember("m1", "py")
}

func badMembers() map[string]func(Body) {
	set := func(f func(*PoolAddBody)) func(Body) { return func(b Body) { f(b.(*PoolAddBody)) } }
	return map[string]func(Body){
		"odd id":   set(func(b *PoolAddBody) { b.ID = "a b" }),
		"no spec":  set(func(b *PoolAddBody) { b.SpecID = "" }),
		"no ref":   set(func(b *PoolAddBody) { b.InitRef = SecretRef{} }),
		"bad ref":  set(func(b *PoolAddBody) { b.InitRef.Version = -1 }),
		"odd hash": set(func(b *PoolAddBody) { b.InitHash = "x" }),
		"no key":   set(func(b *PoolAddBody) { b.KeyRef = SecretRef{} }),
		"bad key":  set(func(b *PoolAddBody) { b.KeyRef.Version = 0 }),
		"keyless":  set(func(b *PoolAddBody) { b.KeyHash = "" }),
	}
}

func badInstallations() map[string]func(Body) {
	set := func(f func(*Installation)) func(Body) {
		return func(b Body) { f(&b.(*InstallationConfigureBody).Installation) }
	}
	return map[string]func(Body){
		"long policy":  set(func(i *Installation) { i.Policy.IdleTimeout = maxPolicy + 1 }),
		"negative":     set(func(i *Installation) { i.PerUser.Memory = -1 }),
		"beyond":       set(func(i *Installation) { i.Overall.Running = maxLimit + 1 }),
		"many starts":  set(func(i *Installation) { i.Overall.StartsPerMinute = MaxStartsPerMinute + 1 }),
		"odd on limit": set(func(i *Installation) { i.OnLimit = OnLimit(strings.Repeat("x", 1000)) }),
	}
}

func badUsers() map[string]func(Body) {
	set := func(f func(*UserConfigureBody)) func(Body) { return func(b Body) { f(b.(*UserConfigureBody)) } }
	return map[string]func(Body){
		"long id":     set(func(b *UserConfigureBody) { b.UserID = long(MaxName) }),
		"long policy": set(func(b *UserConfigureBody) { b.Policy.DeletePausedAfter = maxPolicy + 1 }),
		"negative":    set(func(b *UserConfigureBody) { b.Limits.Total = -1 }),
	}
}

func badTouches() map[string]func(Body) {
	set := func(f func(*SandboxTouchBody)) func(Body) { return func(b Body) { f(b.(*SandboxTouchBody)) } }
	return map[string]func(Body){
		"many":    set(func(b *SandboxTouchBody) { b.Touches = make([]Touch, maxList+1) }),
		"long id": set(func(b *SandboxTouchBody) { b.Touches[0].ID = long(MaxName) }),
	}
}

func badExpiries() map[string]func(Body) {
	set := func(f func(*SandboxExpireBody)) func(Body) { return func(b Body) { f(b.(*SandboxExpireBody)) } }
	return map[string]func(Body){
		"odd id":     set(func(b *SandboxExpireBody) { b.ID = "a b" }),
		"odd action": set(func(b *SandboxExpireBody) { b.Action = "stop" }),
		"no reason":  set(func(b *SandboxExpireBody) { b.Reason = "" }),
	}
}

func badChanges() map[string]func(Body) {
	set := func(f func(*ConversationUpdateBody)) func(Body) {
		return func(b Body) { f(b.(*ConversationUpdateBody)) }
	}
	return map[string]func(Body){
		"long id":    set(func(b *ConversationUpdateBody) { b.ID = long(MaxName) }),
		"odd member": set(func(b *ConversationUpdateBody) { b.Set = []string{"id"} }),
		"many":       set(func(b *ConversationUpdateBody) { b.Set = make([]string, 6) }),
		"long title": set(func(b *ConversationUpdateBody) { b.Title = ptr(long(MaxLine)) }),
		"provider":   set(func(b *ConversationUpdateBody) { b.GitProvider = ptr(ProviderType("svn")) }),
	}
}

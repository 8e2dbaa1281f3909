package fsm

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestModelStarts is TestModel with lives. It fails if the lives don't reach the cases it is for.
func TestModelStarts(t *testing.T) {
	t.Parallel()
	spec := dockerSpec("p1")
	spec.Pool = 3
	wanted := []string{
		"claimed", "paused by limit", "paused by idle", "user_running_sandboxes", "user_total_sandboxes", "user_cpu",
		"user_memory",
		"user_starts_per_minute", "installation_running_sandboxes", "installation_total_sandboxes", "installation_cpu",
		"installation_memory", "installation_starts_per_minute", "start_task.create limit", "start_task.create ",
		"start_task.bind ",
	}
	seen := map[string]int{}
	for round := 0; round < 10 && len(wanted) > 0; round++ {
		rapid.Check(t, func(r *rapid.T) {
			b, l := newModelled(t, spec), &life{r: r, now: testEpoch}
			for range 60 {
				before := b.store.View()
				cmd := l.next(before)
				o := b.run(r, cmd)
				if o.Err != nil {
					seen[o.Err.Limit]++
					keepsPromise(r, before, cmd, o.Err)
				}
				if cmd.Type == StartTaskCreate || cmd.Type == StartTaskBind {
					seen[words(cmd.Type, codeOf(o.Err))]++
				}
				for s := range b.store.View().AllSandboxes() {
					seen["paused by "+s.PausedBy]++
					if s.Claimed {
						seen["claimed"]++
					}
				}
			}
		})
		wanted = slices.DeleteFunc(wanted, func(what string) bool { return seen[what] > 0 })
	}
	t.Log(seen)
	if len(wanted) > 0 {
		t.Errorf("no life reached %v", wanted)
	}
}

// keepsPromise checks that an accepted task gets its sandbox, unless the sandbox now needs more
// than the reservation.
func keepsPromise(r *rapid.T, v *View, cmd Command, err *Error) {
	b, ok := cmd.Body.(*StartTaskBindBody)
	if !ok || b.Create == nil || err.Code != CodeLimit {
		return
	}
	task := first[StartTask](v.txn, tableStartTasks, indexID, []byte(b.ID))
	if now := v.transaction(cmd.Time).reserve(task.UserID); task.Reservation != nil && now.CPU <= task.Reservation.CPU &&
		now.Memory <= task.Reservation.Memory {
		r.Fatalf("the task %+v was accepted and can't have its sandbox: %v", task, err)
	}
}

// TestBurst: many users start sandboxes at once, in batches, with clocks that differ. No limit is
// exceeded at any index, no minute of command time has too many starts, and every refused start
// would have exceeded a limit.
func TestBurst(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		f := newFixture(t).open()
		in := Installation{
			PerUser: genLimits(r),
			Overall: genLimits(r),
			OnLimit: OnLimit(oneOf("refuse", "pause_oldest").Draw(r, "on limit")),
		}
		f.do("", &InstallationConfigureBody{Installation: in})
		accepted := map[string][]time.Time{}
		for range rapid.IntRange(4, 12).Draw(r, "batches") {
			var batch []Entry
			for range rapid.IntRange(3, 8).Draw(r, "commands") {
				f.index++
				at := f.now.Add(time.Duration(rapid.IntRange(-50, 50).Draw(r, "skew")) * time.Second)
				user := fmt.Sprint("user", rapid.IntRange(0, 3).Draw(r, "user"))
				batch = append(batch,
					Entry{f.index, NewCommand(fmt.Sprint(f.index), at, user, newSandboxBody(fmt.Sprint("s", f.index)))})
			}
			f.now = f.now.Add(time.Duration(rapid.IntRange(0, 40).Draw(r, "pass")) * time.Second)
			for i, o := range f.store.ApplyBatch(batch) {
				cmd := batch[i].Command
				if o.Err == nil {
					accepted[cmd.UserID] = append(accepted[cmd.UserID], cmd.Time)
					accepted[""] = append(accepted[""], cmd.Time)
					continue
				}
				if o.Err.Code != CodeLimit || o.Err.Limit == "" || o.Err.RetryAfter <= 0 || o.Err.RetryAfter > 3*time.Minute {
					r.Fatalf("refused with %+v", o.Err)
				}
				if f.store.View().SandboxAny(cmd.Body.(*SandboxCreateBody).ID) != nil {
					r.Fatal("a refused creation left a sandbox behind")
				}
			}
			for scope, u := range recount(f.store.View()) {
				l := in.PerUser
				if scope == "" {
					l = in.Overall
				}
				if beyond(u.Running, l.Running) || beyond(u.Total, l.Total) || beyond(u.CPU, l.CPU) || beyond(u.Memory, l.Memory) ||
					beyond(densest(accepted[scope]), l.StartsPerMinute) {
					r.Fatalf("%q has %+v and %d starts in a minute, the limits are %+v", scope, u, densest(accepted[scope]), l)
				}
			}
		}
	})
}

func beyond(n, limit int) bool { return limit > 0 && n > limit }

// densest returns how many of the times the fullest minute holds.
func densest(times []time.Time) int {
	most := 0
	for _, end := range times {
		n := 0
		for _, x := range times {
			if !x.After(end) && x.After(end.Add(-time.Minute)) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// TestRetryAfterFreesASlot: a client that waits for RetryAfter gets its start.
func TestRetryAfterFreesASlot(t *testing.T) {
	f := newFixture(t).open()
	f.do("", &InstallationConfigureBody{Installation: Installation{PerUser: Limits{StartsPerMinute: 2}}})
	f.sandbox("ada", "s1")
	f.sandbox("ada", "s2")
	e := f.fails(CodeLimit, "ada", newSandboxBody("s3"))
	if e.Limit != "user_starts_per_minute" || e.RetryAfter != 58*time.Second {
		t.Errorf("%+v", e)
	}
	// The next command comes one second later.
	f.now = f.now.Add(e.RetryAfter - 2*time.Second)
	if e := f.fails(CodeLimit, "ada", newSandboxBody("s3")); e.RetryAfter != time.Second {
		t.Error(e.RetryAfter)
	}
	f.sandbox("ada", "s3")
	f.sandbox("bob", "s5")
}

// TestStartsOfOneLogEntryAllCount: an entry may hold several starts with the same microsecond from
// different nodes.
func TestStartsOfOneLogEntryAllCount(t *testing.T) {
	f := newFixture(t).open()
	f.do("", &InstallationConfigureBody{Installation: Installation{
		PerUser: Limits{StartsPerMinute: 2}, Overall: Limits{StartsPerMinute: 4},
	}})
	index := f.store.Index() + 1
	var entries []Entry
	for i, user := range []string{"ada", "bob", "ada", "ada", "bob", "cyd"} {
		entries = append(entries,
			Entry{index, NewCommand(fmt.Sprint("at-once-", i), f.now, user, newSandboxBody(fmt.Sprint("s", i)))})
	}
	var got []string
	for _, o := range f.store.ApplyBatch(entries) {
		answer := "ok"
		if o.Err != nil {
			answer = o.Err.Limit
		}
		got = append(got, answer)
	}
	want := []string{"ok", "ok", "ok", "user_starts_per_minute", "ok", "installation_starts_per_minute"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for user, want := range map[string]int{"ada": 2, "bob": 2, "cyd": 0, "": 4} {
		if n := f.store.View().Usage(user).starts; n != want {
			t.Errorf("%q has %d starts, want %d", user, n, want)
		}
	}
}

// TestLoweredStartsLimit: of the starts that are kept from a higher limit only the latest count.
func TestLoweredStartsLimit(t *testing.T) {
	f := newFixture(t).open()
	limit := func(n int) {
		f.do("", &InstallationConfigureBody{Installation: Installation{PerUser: Limits{StartsPerMinute: n}}})
	}
	limit(3)
	for i := range 3 {
		f.sandbox("ada", fmt.Sprint("s", i))
		f.now = f.now.Add(30 * time.Second)
	}
	limit(1)
	// The oldest is more than a minute ago, the newest is not.
	if e := f.fails(CodeLimit, "ada", newSandboxBody("s3")); e.RetryAfter != 28*time.Second {
		t.Errorf("%+v", e)
	}
	f.now = f.now.Add(28 * time.Second)
	f.sandbox("ada", "s3")
	if n := f.store.View().Usage("ada").starts; n != 1 {
		t.Errorf("%d starts are kept", n)
	}
}

// TestStoppedSandboxesCount: one whose job runs on after a Stop counts until its pause is observed. Only
// what needs its room stops the job before.
func TestStoppedSandboxesCount(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.do("", &ProtocolRaiseBody{Version: VersionStops})
	f.do("", &APIKeyCreateBody{Lookup: "ka", Hash: sha("ka"), UserID: "ada"})
	f.do("", &APIKeyCreateBody{Lookup: "kb", Hash: sha("kb"), UserID: "bob"})
	f.do("", &InstallationConfigureBody{Installation: Installation{
		PerUser: Limits{Running: 2}, Overall: Limits{Running: 3},
	}})
	used := func(of string, want int) {
		t.Helper()
		if got := f.store.View().Usage("ada").Running; got != want {
			t.Errorf("%s: %d sandboxes count as running, want %d", of, got, want)
		}
	}
	stop := func(id string) { f.do("ada", &SandboxPauseBody{ID: id, StopAfter: 30 * time.Second}) }
	ends := func(id string) bool { sb := f.store.View().SandboxAny(id); return sb.StopAt.Equal(sb.DesiredAt) }
	f.sandbox("ada", "s1")
	for range 3 {
		stop("s1")
		used("stopped", 1)
		f.do("ada", &SandboxResumeBody{ID: "s1"})
		used("resumed", 1)
	}
	stop("s1")
	f.sandbox("ada", "s2")
	stop("s2")
	used("two stopped", 2)
	f.store = restored(t, f.store)
	used("restored", 2)
	f.sandbox("ada", "s3")
	used("a third", 2)
	if !ends("s1") || ends("s2") {
		t.Error("a start did not stop the job of the sandbox that was stopped first, and that one only")
	}
	f.sandbox("bob", "s4")
	f.sandbox("bob", "s5")
	used("another's, in the installation's room", 1)
	_ = f.fails(CodeLimit, "bob", newSandboxBody("s6"))
	f.do("bob", &SandboxDeleteBody{ID: "s5"})
	stop("s3")
	f.do("", &SandboxObserveBody{Observations: []Observation{{
		ID: "s3", Status: SandboxStatus{State: SandboxPaused, Generation: f.store.View().SandboxAny("s3").Generation},
	}}})
	used("observed", 0)
}

// TestLimitErrorIsNotRemembered: the same idempotency key works again once there is room.
func TestLimitErrorIsNotRemembered(t *testing.T) {
	f := newFixture(t).open()
	f.do("", &InstallationConfigureBody{Installation: Installation{Overall: Limits{Running: 1}}})
	f.sandbox("bob", "s1")
	send := func() (Result, error) {
		cmd := f.command("ada", newSandboxBody("s2"))
		cmd.ID, cmd.Fingerprint = "mine", "f"
		return f.apply(cmd)
	}
	if _, err := send(); CodeOf(err) != CodeLimit {
		t.Fatal(err)
	}
	f.do("bob", &SandboxPauseBody{ID: "s1"})
	for i := range 2 {
		if r, err := send(); err != nil || r.Sandbox.ID != "s2" || r.Replayed != (i == 1) {
			t.Fatalf("%+v %v", r, err)
		}
	}
}

// TestLimitsSurviveRestart: a restored node's window and counters decide as before.
func TestLimitsSurviveRestart(t *testing.T) {
	f := newFixture(t).open()
	f.do("",
		&InstallationConfigureBody{
			Installation: Installation{PerUser: Limits{Running: 2}, Overall: Limits{StartsPerMinute: 3}},
		})
	f.sandbox("ada", "s1")
	f.sandbox("ada", "s2")
	f.store = restored(t, f.store)
	if e := f.fails(CodeLimit, "ada", newSandboxBody("s3")); e.Limit != "user_running_sandboxes" {
		t.Error(e.Limit)
	}
	f.sandbox("bob", "s4")
	if e := f.fails(CodeLimit, "bob", newSandboxBody("s5")); e.Limit != "installation_starts_per_minute" {
		t.Error(e.Limit)
	}
}

// TestNobodyIsOwnedTwice: in any life a member is claimed by one user permanently, members are
// visible to no user, and the secrets of a claim are the referenced ones.
func TestNobodyIsOwnedTwice(t *testing.T) {
	t.Parallel()
	spec := dockerSpec("p1")
	spec.Pool = 3
	rapid.Check(t, func(r *rapid.T) {
		b, l := newModelled(t, spec), &life{r: r, now: testEpoch}
		owner := map[string]string{}
		for i := range uint64(60) {
			b.store.ApplyBatch([]Entry{{i, l.next(b.store.View())}})
			v := b.store.View()
			var listed []string
			for _, user := range []string{"ada", "bob", ""} {
				page, _ := v.Sandboxes(user, Page{})
				for _, s := range page {
					listed = append(listed, s.ID)
				}
			}
			for s := range v.AllSandboxes() {
				if was := owner[s.ID]; was != "" && was != s.UserID {
					r.Fatalf("%s was %s's and is %s's", s.ID, was, s.UserID)
				}
				owner[s.ID] = s.UserID
				shown := slices.Contains(listed, s.ID) || v.Sandbox(s.UserID, s.ID) != nil
				if shown != (s.UserID != "" && s.Desired != DesiredDeleted) {
					r.Fatalf("%+v: shown: %v", s, shown)
				}
				for _, ref := range s.secretRefs() {
					if !ref.IsZero() && !v.SecretReferenced(ref.Path, ref.Version) {
						r.Fatalf("%s lost its secret %v", s.ID, ref)
					}
				}
			}
			for _, user := range []string{"ada", "bob"} {
				if m := v.ClaimableMember("", user, nil); m != nil && i%10 == 0 {
					l.claims(t, r, b.store, user, m)
				}
			}
		}
	})
}

// TestCreateStaysFlat: limits do not scan all sandboxes for each create.
func TestCreateStaysFlat(t *testing.T) {
	f := newFixture(t).open()
	f.do("",
		&InstallationConfigureBody{
			Installation: Installation{PerUser: Limits{Running: 1 << 20, CPU: 1 << 40}, Overall: Limits{Total: 1 << 20}},
		})
	create := func() { f.sandbox("ada", fmt.Sprint("s", f.index)) }
	for range 100 {
		create()
	}
	few := testing.AllocsPerRun(50, create)
	for range 3000 {
		create()
	}
	if many := testing.AllocsPerRun(50, create); many > 1.5*few {
		t.Errorf("%.0f allocations among a hundred sandboxes, %.0f among thousands", few, many)
	}
}

// BenchmarkCreate measures sandbox.create next to many other sandboxes, which limits must not scan.
func BenchmarkCreate(b *testing.B) {
	for _, others := range []int{0, 10_000} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			f := newFixture(b).open()
			f.do("", &InstallationConfigureBody{Installation: Installation{
				PerUser: Limits{Running: 1 << 30, Total: 1 << 30, StartsPerMinute: 100, CPU: 1 << 40, Memory: 1 << 40},
				Overall: Limits{Running: 1 << 30, Total: 1 << 30, StartsPerMinute: 100, CPU: 1 << 40, Memory: 1 << 40},
			}})
			n := 0
			create := func() {
				n++
				f.index++
				at := testEpoch.Add(time.Duration(n) * time.Second)
				if _, err := f.store.Apply(f.index,
					NewCommand(fmt.Sprint("b", n), at, "ada", newSandboxBody(fmt.Sprint("s", n)))); err != nil {
					b.Fatal(err)
				}
			}
			for range others {
				create()
			}
			b.ReportAllocs()
			for b.Loop() {
				create()
			}
		})
	}
}

// TestLimit_PauseOldestSparesAcceptedStarts: a start that was accepted has its sandbox until it ends,
// and a start that needs its place is refused.
func TestLimit_PauseOldestSparesAcceptedStarts(t *testing.T) {
	t.Parallel()
	f := raised(t)
	f.do("",
		&InstallationConfigureBody{Installation: Installation{PerUser: Limits{Running: 2}, OnLimit: OnLimitPauseOldest}})
	f.do("ada", &StartTaskCreateBody{ID: "t1", ConversationID: "c1"})
	f.do("", &StartTaskBindBody{ID: "t1", SandboxID: "sb1", Create: newSandboxBody("sb1")})
	f.sandbox("ada", "sb2")
	f.do("ada", &StartTaskCreateBody{ID: "t2", ConversationID: "c2"})
	if first, second := f.desired("sb1"), f.desired("sb2"); first != DesiredRunning || second != DesiredPaused {
		t.Fatalf("the sandbox of the accepted start is to be %s and the other %s", first, second)
	}
	f.do("", &StartTaskBindBody{ID: "t2", SandboxID: "sb3", Create: newSandboxBody("sb3")})
	if err := f.fails(CodeLimit, "ada", newSandboxBody("sb4")); err.Limit != LimitOfUser+LimitRunning {
		t.Errorf("refused by %q", err.Limit)
	}
	f.do("", &StartTaskFinishBody{ID: "t1", Conversation: Conversation{ID: "c1", AgentKind: "openhands"}})
	f.do("ada", &StartTaskCreateBody{ID: "t3", ConversationID: "c3", Request: StartRequest{SandboxID: ptr("sb1")}})
	_ = f.fails(CodeLimit, "ada", newSandboxBody("sb4"))
	f.do("", &StartTaskFailBody{ID: "t3", Detail: "x"})
	f.sandbox("ada", "sb4")
	if first, third := f.desired("sb1"), f.desired("sb3"); first != DesiredPaused || third != DesiredRunning {
		t.Errorf("the sandbox without a start is to be %s, the one with a start %s", first, third)
	}
}

package fsm

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// client applies a client's command with a client-chosen id.
func (f *fixture) client(user, id, fingerprint string, body Body) (Result, error) {
	cmd := f.command(user, body)
	cmd.ID, cmd.Fingerprint = id, fingerprint
	return f.apply(cmd)
}

// TestRepeatedCommand: a command that was committed, whose response was lost and that is sent again
// returns its result and is not applied again.
func TestRepeatedCommand(t *testing.T) {
	f := newFixture(t).open()
	cmd := f.command("ada", newSandboxBody("s1"))
	old := f.store.View()
	first, err := f.apply(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, found := old.CommandResult(cmd.ID); found {
		t.Error("a View knows the result of a later command")
	}
	if r, _, _, found := f.store.View().CommandResult(cmd.ID); !found || r.Index != first.Index {
		t.Error("the newest View does not know the result")
	}
	f.do("ada", &SandboxDeleteBody{ID: "s1"})
	f.index++
	again, err := f.apply(cmd)
	if err != nil || !again.Replayed || again.Index != first.Index || again.Sandbox.Desired != DesiredRunning {
		t.Errorf("again: %+v, %v", again, err)
	}
	if f.store.View().SandboxAny("s1").Desired != DesiredDeleted {
		t.Error("it was applied again")
	}
	// Failures are repeated too, even when the command would succeed by now.
	failed := f.command("ada", &SandboxPauseBody{ID: "s2"})
	if _, err := f.apply(failed); CodeOf(err) != CodeNotFound {
		t.Fatal(err)
	}
	f.sandbox("ada", "s2")
	f.index++
	if r, err := f.apply(failed); CodeOf(err) != CodeNotFound || !r.Replayed {
		t.Errorf("the failure again: %+v, %v", r, err)
	}
}

// TestIdempotencyMismatch: an id is bound to its fingerprint and user, in either order, and a
// mismatch is not recorded.
func TestIdempotencyMismatch(t *testing.T) {
	f := newFixture(t).open()
	body := &SandboxDeleteBody{ID: "s1"}
	f.sandbox("ada", "s1")
	if _, err := f.client("ada", "k", "f1", &SandboxPauseBody{ID: "s1"}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ user, fingerprint string }{
		"another fingerprint": {"ada", "f2"}, "no fingerprint": {"ada", ""}, "another user": {"bob", "f1"},
	} {
		if _, err := f.client(c.user, "k", c.fingerprint, body); CodeOf(err) != CodeIdempotencyMismatch {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := f.client("ada", "c1", "f1", body); CodeOf(err) != CodeIdempotencyMismatch {
		t.Errorf("an internal id with a fingerprint: %v", err)
	}
	if r, err := f.client("ada", "k", "f1", &SandboxPauseBody{ID: "s1"}); err != nil || !r.Replayed {
		t.Errorf("the right one again: %+v %v", r, err)
	}
}

// TestInternalWindow: at any rate, internal commands are remembered for as long as a leader may
// accept them again, also across a restart. A forgotten command is refused and not applied again.
func TestInternalWindow(t *testing.T) {
	s := NewStore()
	body := &TermOpenBody{Term: 1, Node: "n1", ClusterID: "x"}
	const perSecond, seconds = 500, 200
	at := func(i int) time.Time { return testEpoch.Add(time.Duration(i) * time.Second / perSecond) }
	for i := range perSecond * seconds {
		if _, err := s.Apply(uint64(i+1), NewCommand(fmt.Sprint("id", i), at(i), "", body)); err != nil {
			t.Fatal(err)
		}
	}
	last := perSecond*seconds - 1
	for _, s := range []*Store{s, restored(t, s)} {
		oldest := last
		for oldest >= 0 {
			if _, _, _, found := s.View().CommandResult(fmt.Sprint("id", oldest)); !found {
				break
			}
			oldest--
		}
		if age := at(last).Sub(at(oldest + 1)); age < InternalResultTTL || age > InternalResultTTL+time.Second {
			t.Errorf("commands of the last %s are remembered", age)
		}
		if s.View().meta.Forgotten != at(oldest) {
			t.Errorf("forgotten up to %s, not %s", s.View().meta.Forgotten, at(oldest))
		}
		again := NewCommand(fmt.Sprint("id", oldest), at(oldest), "ada", &SettingsPutBody{})
		if _, err := s.Apply(uint64(last+2), again); CodeOf(err) != CodeOutcomeUnknown || s.View().Settings("ada") != nil {
			t.Errorf("a command whose id is forgotten: %v", err)
		}
	}
}

// TestNothingIsAppliedTwice: at any rate, with clocks that differ and with restarts, a command that
// arrives a second time while a leader accepts it is replayed or refused, and never applied again.
// With enough room the same holds when a clock is far off for a while.
func TestNothingIsAppliedTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		f := newFixture(t)
		off := time.Duration(rapid.SampledFrom([]int{
			0,
			0,
			1,
			-1,
		}).Draw(r, "off")*rapid.IntRange(1, 1000).Draw(r, "by")) * time.Second
		if off == 0 {
			f.store.commands.room = 8 << 10 // about thirty commands
		}
		var sent []Command
		from, to := rapid.IntRange(0, 400).Draw(r, "from"), rapid.IntRange(0, 400).Draw(r, "to")
		for i := range rapid.IntRange(10, 400).Draw(r, "commands") {
			f.now = f.now.Add(time.Duration(rapid.IntRange(0, 300).Draw(r, "pass")) * time.Millisecond)
			switch {
			case from < to && i == from:
				f.now = f.now.Add(off)
			case from < to && i == to:
				f.now = f.now.Add(-off)
			}
			f.index++
			cmd := NewCommand(fmt.Sprint("c", f.index), f.now.Add(
				time.Duration(rapid.IntRange(-50, 50).Draw(r, "skew"))*time.Second,
			), "ada",
				&SettingsPutBody{Values: SettingsValues{Language: ptr(fmt.Sprint(f.index))}})
			if rapid.IntRange(0, 3).Draw(r, "client") == 0 {
				cmd.Fingerprint = "f"
			}
			if n := len(sent); n > 0 && rapid.IntRange(0, 2).Draw(r, "again") == 0 {
				cmd = sent[rapid.IntRange(max(0, n-200), n-1).Draw(r, "which")]
				if f.now.Sub(cmd.Time).Abs() > MaxCommandAge {
					continue // no leader accepts it
				}
				before := asJSON(t, f.store.View().Settings("ada"))
				res, err := f.apply(cmd)
				if err == nil && !res.Replayed || err != nil && CodeOf(err) != CodeOutcomeUnknown ||
					asJSON(t, f.store.View().Settings("ada")) != before {
					r.Fatalf("%s of %s at %s: %+v %v", cmd.ID, cmd.Time, f.now, res, err)
				}
				continue
			}
			if _, err := f.apply(cmd); err == nil {
				sent = append(sent, cmd)
			} else if CodeOf(err) != CodeOutcomeUnknown {
				r.Fatal(err)
			}
			if rapid.IntRange(0, 30).Draw(r, "restart") == 0 {
				room := f.store.commands.room
				f.store = restored(t, f.store)
				f.store.commands.room = room
			}
		}
	})
}

// TestWrongClocks: a leader whose clock is wrong for a while blocks writes for at most
// InternalResultTTL, and it can open its term.
func TestWrongClocks(t *testing.T) {
	for _, off := range []time.Duration{
		-24 * time.Hour,
		-10 * time.Minute,
		-3 * time.Minute,
		3 * time.Minute,
		10 * time.Minute,
		24 * time.Hour,
	} {
		f := newFixture(t).open()
		refused := 0
		write := func(at time.Time) Code {
			f.index++
			_, err := f.apply(NewCommand(fmt.Sprint("w", f.index), at, "ada", &SettingsPutBody{}))
			if CodeOf(err) == CodeOutcomeUnknown {
				refused++
				return ""
			}
			return CodeOf(err)
		}
		for range 1000 {
			f.now = f.now.Add(time.Second)
			if code := write(f.now); code != "" {
				t.Fatal(code)
			}
		}
		if refused > 0 {
			t.Fatalf("%d were refused while all was well", refused)
		}
		for range 1000 {
			f.now = f.now.Add(time.Second)
			if code := write(f.now.Add(off)); code != "" {
				t.Fatalf("off by %s: %s", off, code)
			}
		}
		if _, err := f.apply(f.command("", &TermOpenBody{Term: 9, Node: "n2", ClusterID: "test"})); err != nil {
			t.Errorf("off by %s: the term does not open: %v", off, err)
		}
		for range 1000 {
			f.now = f.now.Add(time.Second)
			if code := write(f.now); code != "" {
				t.Fatalf("off by %s: right again: %s", off, code)
			}
		}
		if t.Logf("off by %s: %d of 2000 were refused", off, refused); refused > int(InternalResultTTL/time.Second)+1 {
			t.Errorf("off by %s: %d were refused, a second each", off, refused)
		}
	}
}

// TestClientWindow: a client's command is remembered for ClientResultTTL of command time, up to
// ClientResults per user, whatever other users and internal commands do.
func TestClientWindow(t *testing.T) {
	f := newFixture(t)
	body := &SettingsPutBody{}
	if _, err := f.client("bob", "bob-0", "f", body); err != nil {
		t.Fatal(err)
	}
	for i := range ClientResults + 5 {
		f.index++
		cmd := NewCommand(fmt.Sprint("ada-", i), f.now, "ada", body)
		cmd.Fingerprint = "f"
		if _, err := f.store.Apply(f.index, cmd); err != nil {
			t.Fatal(err)
		}
	}
	found := func(id string) bool { _, _, _, ok := f.store.View().CommandResult(id); return ok }
	if !found("ada-4") || !found("ada-5") || !found(fmt.Sprint("ada-", ClientResults+4)) || !found("bob-0") {
		t.Error("one that is young was forgotten")
	}
	f.now = f.now.Add(InternalResultTTL + time.Second)
	f.do("", &TermOpenBody{Term: 1, Node: "n1", ClusterID: "x"})
	if found("ada-4") || !found("ada-5") || !found(fmt.Sprint("ada-", ClientResults+4)) || !found("bob-0") {
		t.Error("the wrong ones are remembered")
	}
	if n := f.store.usageOf("ada").clientCommands; n != ClientResults {
		t.Errorf("%d are counted", n)
	}
	f.now = f.now.Add(ClientResultTTL - InternalResultTTL - time.Minute)
	if r, err := f.client("bob", "bob-0", "f", body); err != nil || !r.Replayed {
		t.Errorf("within a day: %+v %v", r, err)
	}
	f.now = f.now.Add(2 * time.Minute)
	if r, err := f.client("bob", "bob-0", "other", body); err != nil || r.Replayed {
		t.Errorf("after a day: %+v %v", r, err)
	}
	// Each command removes a few expired ones, so that no command is slow.
	for i := range ClientResults/expirePerCommand + 5 {
		if _, err := f.client("bob", fmt.Sprint("bob-", i+1), "f", body); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.store.usageOf("ada").clientCommands; n != 0 {
		t.Errorf("%d expired ones are left", n)
	}
}

// TestHeavyResults: results with large messages are forgotten early and do not fill the memory of
// every node.
func TestHeavyResults(t *testing.T) {
	f := newFixture(t)
	text := string(make([]byte, maxSize))
	message := &Message{Content: []ContentBlock{{Text: text}}}
	var internals []Command
	for i := range 100 {
		id := fmt.Sprint("t", i)
		body := &StartTaskCreateBody{ID: id, ConversationID: id, Request: StartRequest{InitialMessage: message}}
		f.index += 2
		internal := NewCommand("i-"+id, f.now, "ada", body)
		internals = append(internals, internal)
		if _, err := f.store.Apply(f.index-1, internal); err != nil {
			t.Fatal(err)
		}
		client := NewCommand("c-"+id, f.now, "ada",
			&StartTaskCreateBody{ID: "x" + id, ConversationID: "x" + id, Request: body.Request})
		client.Fingerprint = "f"
		if _, err := f.store.Apply(f.index, client); err != nil {
			t.Fatal(err)
		}
	}
	// Internal results are stored without what their rows have, and returned with it.
	if n, w := len(f.store.commands.byID), f.store.commands.weight; n < 130 || w > 4096*n {
		t.Errorf("%d results of %d bytes are kept", n, w)
	}
	if r, err := f.store.Apply(f.index+1, internals[0]); err != nil || !r.Replayed ||
		r.StartTask.Request.InitialMessage.Content[0].Text != text {
		t.Errorf("the first again: %v", err)
	}
	if u := f.store.usageOf("ada"); u.clientCommands < 50 || u.clientCommands > 64 || u.clientWeight > maxClientWeight {
		t.Errorf("%d client results of %d bytes are kept", u.clientCommands, u.clientWeight)
	}
}

// TestBadEnvelope: a command with an incomplete envelope is refused and not recorded.
func TestBadEnvelope(t *testing.T) {
	f := newFixture(t).open()
	good := func() Command { return f.command("ada", newSandboxBody("s1")) }
	for name, change := range map[string]func(*Command){
		"no id":            func(c *Command) { c.ID = "" },
		"long id":          func(c *Command) { c.ID = string(make([]byte, 200)) },
		"no time":          func(c *Command) { c.Time = time.Time{} },
		"far time":         func(c *Command) { c.Time = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"no body":          func(c *Command) { c.Body = nil },
		"another body":     func(c *Command) { c.Body = &SandboxPauseBody{ID: "s1"} },
		"no user":          func(c *Command) { c.UserID = "" },
		"bad user":         func(c *Command) { c.UserID = "Ada" },
		"long fingerprint": func(c *Command) { c.Fingerprint = string(make([]byte, 200)) },
	} {
		cmd := good()
		change(&cmd)
		if _, err := f.store.Apply(f.index, cmd); CodeOf(err) != CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, _, found := f.store.View().CommandResult(cmd.ID); found {
			t.Errorf("%s: it was recorded", name)
		}
	}
	f.sandbox("ada", "s1")
}

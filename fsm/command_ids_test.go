package fsm

import (
	"fmt"
	"testing"
	"time"
)

// client applies a client's command of its own id.
func (f *fixture) client(user, id, fingerprint string, body Body) (Result, error) {
	cmd := f.command(user, body)
	cmd.ID, cmd.Fingerprint = id, fingerprint
	return f.apply(cmd)
}

// TestRepeatedCommand: forwarded, committed, lost on the way back and sent
// again, a command is answered and not applied.
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
	// Failures are repeated too, even when they would succeed by now.
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

// TestIdempotencyMismatch: an id is bound to its fingerprint and user, whichever
// way round, and a mismatch is not recorded.
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

// TestInternalWindow: exactly the newest InternalResults internal commands are
// remembered, across a restart too.
func TestInternalWindow(t *testing.T) {
	s := NewStore()
	body := &TermOpenBody{Term: 1, Node: "n1", ClusterID: "x"}
	n := InternalResults + 100
	for i := 1; i <= n; i++ {
		if _, err := s.Apply(uint64(i), NewCommand(fmt.Sprint("id", i), testEpoch, "", body)); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []*Store{s, restored(t, s)} {
		for i, want := range map[int]bool{1: false, 100: false, 101: true, n: true} {
			if _, _, _, found := s.View().CommandResult(fmt.Sprint("id", i)); found != want {
				t.Errorf("command %d is remembered: %v", i, found)
			}
		}
		if got := len(s.commands.all()); got != InternalResults {
			t.Errorf("%d are remembered", got)
		}
	}
}

// TestClientWindow: a client's command is remembered for ClientResultTTL of
// command time and up to ClientResults per user, whatever other users and
// internal commands do.
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
	if found("ada-4") || !found("ada-5") || !found(fmt.Sprint("ada-", ClientResults+4)) || !found("bob-0") {
		t.Error("the wrong ones are remembered")
	}
	if n := f.store.usageOf("ada").clientCommands; n != ClientResults {
		t.Errorf("%d are counted", n)
	}
	f.now = f.now.Add(ClientResultTTL - time.Minute)
	if r, err := f.client("bob", "bob-0", "f", body); err != nil || !r.Replayed {
		t.Errorf("within a day: %+v %v", r, err)
	}
	f.now = f.now.Add(2 * time.Minute)
	if r, err := f.client("bob", "bob-0", "other", body); err != nil || r.Replayed {
		t.Errorf("after a day: %+v %v", r, err)
	}
	// Expired ones go a few per command, so that no command is slow.
	for i := range ClientResults/expirePerCommand + 5 {
		if _, err := f.client("bob", fmt.Sprint("bob-", i+1), "f", body); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.store.usageOf("ada").clientCommands; n != 0 {
		t.Errorf("%d expired ones are left", n)
	}
}

// TestHeavyResults: results with large messages are forgotten early, instead of
// filling the memory of every node.
func TestHeavyResults(t *testing.T) {
	f := newFixture(t)
	text := string(make([]byte, maxText))
	message := &Message{Content: []ContentBlock{{Text: text}}}
	for i := range 100 {
		id := fmt.Sprint("t", i)
		body := &StartTaskCreateBody{ID: id, ConversationID: id, Request: StartRequest{InitialMessage: message}}
		f.index += 2
		internal := NewCommand("i-"+id, f.now, "ada", body)
		if _, err := f.store.Apply(f.index-1, internal); err != nil {
			t.Fatal(err)
		}
		client := NewCommand("c-"+id, f.now, "ada", &StartTaskCreateBody{ID: "x" + id, ConversationID: "x" + id, Request: body.Request})
		client.Fingerprint = "f"
		if _, err := f.store.Apply(f.index, client); err != nil {
			t.Fatal(err)
		}
	}
	if n, w := f.store.commands.count, f.store.commands.weight; n < 50 || n > 64 || w > maxInternalWeight {
		t.Errorf("%d internal results of %d bytes are kept", n, w)
	}
	if u := f.store.usageOf("ada"); u.clientCommands < 50 || u.clientCommands > 64 || u.clientWeight > maxClientWeight {
		t.Errorf("%d client results of %d bytes are kept", u.clientCommands, u.clientWeight)
	}
}

// TestBadEnvelope: a command without the least it needs is refused and not
// recorded.
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

package fsm

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// recodeAll sends entries through the log's encoding.
func recodeAll(t testing.TB, entries []Entry) []Entry {
	out := make([]Entry, len(entries))
	for i, e := range entries {
		out[i] = Entry{e.Index, recode(t, e.Command)}
	}
	return out
}

// asJSON compares the visible part of a value.
func asJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestReplayIsDeterministic: the same log gives the same results and the same state, one by one or
// in batches of any size, however often a node restarts from its snapshot in between.
func TestReplayIsDeterministic(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		entries := genHistory(60).Draw(r, "log")
		one, batched, restarted := NewStore(), NewStore(), NewStore()
		var want []Outcome
		for i, e := range recodeAll(t, entries) {
			want = append(want, one.ApplyBatch([]Entry{e})...)
			got := restarted.ApplyBatch(recodeAll(t, entries[i:i+1]))
			if d := cmp.Diff(asJSON(t, want[i]), asJSON(t, got[0])); d != "" {
				r.Fatalf("%s at %d after a restart: %s", e.Command.Type, e.Index, d)
			}
			if rapid.IntRange(0, 5).Draw(r, "restart") == 0 {
				restarted = restored(t, restarted)
			}
		}
		rest := recodeAll(t, entries)
		var got []Outcome
		for len(rest) > 0 {
			n := rapid.IntRange(1, len(rest)).Draw(r, "batch")
			got = append(got, batched.ApplyBatch(rest[:n])...)
			rest = rest[n:]
		}
		if d := cmp.Diff(asJSON(t, want), asJSON(t, got)); d != "" {
			r.Fatalf("batched: %s", d)
		}
		for name, s := range map[string]*Store{"batched": batched, "restarted": restarted} {
			if s.Checksum() != one.Checksum() {
				r.Fatalf("the %s state differs:\n%s", name, cmp.Diff(string(persist(t, one)), string(persist(t, s))))
			}
			if d := cmp.Diff(usages(one), usages(s)); d != "" {
				r.Fatalf("the %s counters differ: %s", name, d)
			}
		}
	})
}

// usages returns the derived counters that are not all zero.
func usages(s *Store) map[string][3]int {
	out := map[string][3]int{}
	for user, u := range s.usage {
		if *u != (usage{}) {
			out[user] = [3]int{u.doneTasks, u.clientCommands, u.clientWeight}
		}
	}
	return out
}

// TestErrorsChangeNothing: a command that fails, or is a repetition, changes no row and wakes no
// waiter.
func TestErrorsChangeNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		s := NewStore()
		for _, e := range recodeAll(t, genHistory(60).Draw(r, "log")) {
			before, view := dump(s), s.View()
			o := s.ApplyBatch([]Entry{e})[0]
			if o.Err == nil && !o.Result.Replayed {
				continue
			}
			if d := cmp.Diff(text(before), text(dump(s))); d != "" {
				r.Fatalf("%s answered %v and changed: %s", e.Command.Type, o.Err, d)
			}
			if closed(view.Changed()) {
				r.Fatalf("%s answered %v and woke the scheduler", e.Command.Type, o.Err)
			}
		}
	})
}

// TestChangedIsExact: Changed is closed when a sandbox, a start task, a spec,
// an orphan, the hold or a mark of a client changed, a key was revoked, or a session ended, and only
// then.
func TestChangedIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		s := NewStore()
		for _, e := range recodeAll(t, genHistory(60).Draw(r, "log")) {
			before, view := dump(s), s.View()
			s.ApplyBatch([]Entry{e})
			after := dump(s)
			changed := false
			for name := range union(before, after) {
				watched := slices.Contains([]CommandType{APIKeyRevoke, APIKeyDisable, UserDisable, UserDelete}, e.Command.Type) ||
					bytes.HasPrefix([]byte(name), []byte("sand")) || bytes.HasPrefix([]byte(name), []byte("start")) ||
					bytes.HasPrefix([]byte(name), []byte("spec")) || bytes.HasPrefix([]byte(name), []byte("orphans")) ||
					e.Command.Type == InstallationConfigure || e.Command.Type == ClientMarkSet || e.Command.Type == ClientDrain ||
					strings.HasPrefix(name, "sessions ") && after[name] == nil ||
					e.Command.Type == SandboxMoved || e.Command.Type == HoldBegin || e.Command.Type == HoldRelease
				changed = changed || watched && !bytes.Equal(before[name], after[name])
			}
			// Use only postpones deadlines.
			changed = changed && e.Command.Type != SandboxTouch
			// These may store a row equal to the old one. A false alarm is harmless.
			if got := closed(view.Changed()); got != changed &&
				!(got && (e.Command.Type == SpecApply || e.Command.Type == UserConfigure)) {
				r.Fatalf("%s: Changed closed: %v, something changed: %v", e.Command.Type, got, changed)
			}
		}
	})
}

// TestViewsDoNotChange: a View always shows the same state.
func TestViewsDoNotChange(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		s := NewStore()
		entries := recodeAll(t, genHistory(40).Draw(r, "log"))
		cut := rapid.IntRange(0, len(entries)).Draw(r, "cut")
		s.ApplyBatch(entries[:cut])
		snapshot := s.Snapshot()
		write := func() string {
			var b bytes.Buffer
			if err := snapshot.Persist(&b); err != nil {
				r.Fatal(err)
			}
			return b.String()
		}
		before := write()
		s.ApplyBatch(entries[cut:])
		if d := cmp.Diff(before, write()); d != "" {
			r.Fatalf("the snapshot moved: %s", d)
		}
	})
}

// TestSecretRefsAreCounted: SecretReferenced is true for exactly the refs that some row holds. A version
// is one entry of the secret store, whether or not a ref knows when it was created.
func TestSecretRefsAreCounted(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		s := NewStore()
		s.ApplyBatch(recodeAll(t, genHistory(80).Draw(r, "log")))
		if rapid.Bool().Draw(r, "restart") {
			s = restored(t, s)
		}
		want := map[SecretRef]int{}
		for _, row := range s.Snapshot().rows() {
			if x, ok := row.(referrer); ok {
				for _, ref := range x.secretRefs() {
					if !ref.IsZero() {
						want[SecretRef{Path: ref.Path, Version: ref.Version}]++
					}
				}
			}
		}
		got := map[SecretRef]int{}
		for x := range withPrefix[secretRef](s.View().txn, tableSecretRefs, indexID, nil) {
			got[SecretRef{Path: x.ref.Path, Version: x.ref.Version}] = x.count
		}
		if d := cmp.Diff(want, got); d != "" {
			r.Fatal(d)
		}
		for ref := range want {
			if !s.View().SecretReferenced(ref.Path, ref.Version) || s.View().SecretReferenced(ref.Path, 99) {
				r.Fatalf("SecretReferenced is wrong about %v", ref)
			}
		}
	})
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func text(m map[string]json.RawMessage) map[string]string {
	out := map[string]string{}
	for k, v := range maps.All(m) {
		out[k] = string(v)
	}
	return out
}

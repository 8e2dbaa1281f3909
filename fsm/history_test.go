package fsm

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// fork is a store that continues independently.
type fork struct {
	store *Store
	index uint64
	term  uint64
	name  string
	// births are the births of what this fork created.
	births []Birth
}

func (f *fork) do(t *rapid.T, body Body) {
	f.index++
	cmd := NewCommand(fmt.Sprint(f.name, f.index), testEpoch, "", body)
	if _, err := f.store.Apply(f.index, cmd); err != nil {
		t.Fatalf("%s: %v", body.CommandType(), err)
	}
}

// open begins a term as a leader of this fork does: a no-op, and maybe a membership change, before
// the first command.
func (f *fork) open(t *rapid.T) {
	f.term++
	for range rapid.IntRange(1, 3).Draw(t, "without a command") {
		f.index++
		f.store.SetIndex(f.index)
	}
	f.do(t, &TermOpenBody{Term: f.term, Node: "n1", ClusterID: "test", Nonce: fmt.Sprint(f.name, f.term)})
}

// goOn creates things in some terms of this fork.
func (f *fork) goOn(t *rapid.T, steps int) {
	for range steps {
		switch rapid.IntRange(0, 3).Draw(t, "step") {
		case 0:
			f.open(t)
		case 1: // a membership change, or a no-op
			f.index++
			f.store.SetIndex(f.index)
		default:
			f.do(t, &MarkNoteBody{Store: StoreNomad})
			f.births = append(f.births, f.store.View().Birth())
		}
	}
}

// copyOf returns the fork's state as a copy of its disk holds it.
func (f *fork) copyOf(t testing.TB, name string) *fork {
	return &fork{store: restored(t, f.store), index: f.index, term: f.term, name: name}
}

// TestContains_Forks: two copies of one state continue independently. Each history contains what
// was created before the copy and what it created itself. It contains nothing that the other
// created, whatever their terms and indexes are.
func TestContains_Forks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		trunk := &fork{store: NewStore(), name: "t"}
		trunk.open(r)
		trunk.do(r, &ProtocolRaiseBody{Version: ProtocolVersion})
		trunk.goOn(r, rapid.IntRange(0, 20).Draw(r, "before"))
		before := trunk.births
		a, b := trunk.copyOf(t, "a"), trunk.copyOf(t, "b")
		for _, f := range []*fork{a, b} {
			f.open(r)
			f.goOn(r, rapid.IntRange(0, 30).Draw(r, "after"))
		}
		for _, f := range []*fork{a, b} {
			v := f.store.View()
			for _, birth := range append(before, f.births...) {
				if !v.Contains(birth) {
					r.Fatalf("%s does not contain %s, its own", f.name, birth)
				}
			}
		}
		for _, birth := range b.births {
			if a.store.View().Contains(birth) {
				r.Fatalf("a contains %s, which b made", birth)
			}
		}
	})
}

// TestContains_RolledBack: a state that was rolled back contains nothing that was created after it,
// even when the log has grown past those indexes again.
func TestContains_RolledBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		f := &fork{store: NewStore(), name: "f"}
		f.open(r)
		f.do(r, &ProtocolRaiseBody{Version: ProtocolVersion})
		f.goOn(r, 5)
		old := f.copyOf(t, "old")
		// The same term continues: no election tells the two apart.
		lost := 0
		for range rapid.IntRange(1, 10).Draw(r, "lost") {
			f.do(r, &MarkNoteBody{Store: StoreNomad})
			lost++
		}
		birth := f.store.View().Birth()
		old.open(r)
		for range lost + rapid.IntRange(0, 10).Draw(r, "more") {
			if old.store.View().Contains(birth) {
				r.Fatalf("index %d: it contains %s", old.index, birth)
			}
			old.do(r, &MarkNoteBody{Store: StoreVault})
		}
		if old.store.View().Contains(birth) {
			r.Fatalf("index %d: it contains %s", old.index, birth)
		}
		mark, _ := f.store.View().Mark(testEpoch)
		if got := old.store.View().JudgeMark(StoreNomad, &mark); got != MarkAhead {
			r.Fatalf("the mark is %s", got)
		}
	})
}

// TestParseBirth reads what String wrote, and nothing else.
func TestParseBirth(t *testing.T) {
	want := Birth{"c", "n", 7}
	if got, ok := ParseBirth(want.String()); !ok || got != want {
		t.Errorf("%+v %v", got, ok)
	}
	for _, text := range []string{"", "a/b", "a/b/c", "a/b/-1", "/b/1", "a//1", "a/b/1/2", "a/b/99999999999999999999"} {
		if b, ok := ParseBirth(text); ok {
			t.Errorf("%q gives %+v", text, b)
		}
	}
}

package eventstore

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"bivouac.dev/bivouac/fsm"
)

// state is what a state knows of some chains, and makes the changes of commands.
type state map[string]*Head

// event is a stored event.
func event(id, body string) []byte {
	return fsm.AppendEvent(nil, fsm.EventHead{
		ID: id, Kind: "MessageEvent", Source: "agent", Timestamp: "2026-01-02T03:04:05",
	}, []byte(body))
}

// chain returns a conversation's chain before its first event, from its name.
func chain(name string) Head {
	sum := sha256.Sum256([]byte(name))
	return Head{"ada", name, fsm.ChainKey(sum[:16]).Begin()}
}

// add returns the change that appends events to a conversation.
func (s state) add(name string, events ...[]byte) fsm.EventChange {
	if s[name] == nil {
		s[name] = new(chain(name))
	}
	change := fsm.EventChange{UserID: "ada", ConversationID: name, Before: s[name].Hash, Events: events}
	c := *s[name]
	for _, stored := range events {
		c.Number++
		c.Bytes += uint64(len(stored))
		c.Hash = c.Hash.Next(stored)
	}
	s[name], change.Chain = &c, c.EventChain
	return change
}

// drop returns the change that deletes a conversation.
func (s state) drop(name string) fsm.EventChange {
	c := *s[name]
	delete(s, name)
	return fsm.EventChange{UserID: "ada", ConversationID: name, Chain: c.EventChain, Dropped: true}
}

func open(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func shut(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func write(t testing.TB, s *Store, index uint64, changes ...fsm.EventChange) {
	t.Helper()
	if err := s.Write(index, changes); err != nil {
		t.Fatal(err)
	}
}

// whole fails unless the store has the chains of the state, whole, and no others.
func (s state) whole(t testing.TB, store *Store) {
	t.Helper()
	found := 0
	err := store.Heads(func(head *Head) bool {
		found++
		if want := s[head.ConversationID]; want == nil || *head != *want {
			t.Errorf("the head of %s is %+v, want %+v", head.ConversationID, head, want)
		}
		return true
	})
	if err != nil || found != len(s) {
		t.Errorf("%d heads, want %d, %v", found, len(s), err)
	}
	for name, want := range s {
		if got, err := store.Follow(chain(name).EventChain, want.Number); err != nil || got != want.EventChain {
			t.Errorf("the events of %s make %+v, want %+v, %v", name, got, want, err)
		}
		outlines(t, store, want.EventChain)
	}
}

// outlines fails unless each event of a chain has its outline, and nothing else has one.
func outlines(t testing.TB, store *Store, want fsm.EventChain) {
	t.Helper()
	n := uint64(0)
	err := store.Outlines(want.Key, 0, false, func(at uint64, outline []byte) bool {
		stored, err := store.Event(want.Key, at)
		if err != nil || at != n || !bytes.Equal(outline, fsm.EventOutline(stored)) {
			t.Errorf("outline %d is %q of %d bytes, %v", at, outline, len(stored), err)
		}
		n++
		return true
	})
	if err != nil || n != want.Number {
		t.Errorf("%d outlines of %d events, %v", n, want.Number, err)
	}
}

// TestStore_KeepsWhatWasWritten in its order, over a restart, and again when the log is applied again.
func TestStore_KeepsWhatWasWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, want := open(t, dir, Options{}), state{}
	first := []fsm.EventChange{
		want.add("c1", event("a", "one"), event("b", "two")), want.add("c2", event("a", "other")),
		want.add("c1", event("c", "three")),
	}
	write(t, s, 5, first...)
	second := []fsm.EventChange{want.drop("c2"), want.add("c3", event("x", strings.Repeat("large", 2<<20)))}
	write(t, s, 9, second...)
	want.whole(t, s)
	shut(t, s)
	s = open(t, dir, Options{})
	defer shut(t, s)
	want.whole(t, s)
	if s.Applied() != 9 {
		t.Errorf("applied %d", s.Applied())
	}
	write(t, s, 5, first...)
	write(t, s, 9, second...)
	want.whole(t, s)
	if s.Gapped() {
		t.Error("what was applied again left a gap")
	}
	var ids []string
	for _, backwards := range []bool{false, true} {
		if err := s.Events(chain("c1").Key, 1, backwards, func(at uint64, stored []byte) bool {
			ids = append(ids, fmt.Sprint(at, string(fsm.EventID(stored))))
			return true
		}); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(ids, []string{"1b", "2c", "1b", "0a"}) {
		t.Errorf("from event 1 on and back come %v", ids)
	}
	found, err := s.Find(chain("c1").Key, []string{"c", "nope", "a"})
	if err != nil || len(found) != 2 || found["c"] != 2 || found["a"] != 0 {
		t.Errorf("found %v, %v", found, err)
	}
}

// TestStore_AGapIsFilled: events behind a gap do not count until what is missing came, and a surplus or
// other events are seen.
func TestStore_AGapIsFilled(t *testing.T) {
	t.Parallel()
	s, want := open(t, "events", Options{FS: vfs.NewMem()}), state{}
	defer shut(t, s)
	lost := want.add("c1", event("a", "one"), event("b", "two"))
	write(t, s, 7, want.add("c1", event("c", "three")))
	if head, err := s.Head(chain("c1").Key); err != nil || head.Number != 0 || !s.Gapped() || s.Gapped() {
		t.Fatalf("the head is %+v, %v", head, err)
	}
	if err := s.Put(*want["c1"], 0, lost.Events); err != nil {
		t.Fatal(err)
	}
	whole, err := s.Follow(chain("c1").EventChain, 3)
	if err != nil || whole != want["c1"].EventChain {
		t.Fatalf("followed to %+v, %v", whole, err)
	}
	if err := s.Settle(Head{"ada", "c1", whole}); err != nil {
		t.Fatal(err)
	}
	write(t, s, 8, want.add("c1", event("d", "four")))
	want.whole(t, s)
	// A restore went back to two events.
	former := chain("c1")
	if former.EventChain, err = s.Follow(former.EventChain, 2); err != nil {
		t.Fatal(err)
	}
	if err := s.Settle(former); err != nil {
		t.Fatal(err)
	}
	want["c1"] = &former
	want.whole(t, s)
	if found, err := s.Find(former.Key, []string{"a", "b", "c", "d"}); err != nil || len(found) != 2 {
		t.Errorf("the ids that are left: %v, %v", found, err)
	}
	// The same position with another event: what follows it is no continuation.
	other := state{"c1": new(*want["c1"])}
	write(t, s, 9, other.add("c1", event("x", "else")))
	write(t, s, 10, want.add("c1", event("y", "mine")), want.add("c1", event("z", "more")))
	if head, err := s.Head(former.Key); err != nil || head.Number != 3 || !s.Gapped() {
		t.Errorf("the head is %+v, %v", head, err)
	}
}

// TestStore_OwnsItsApplied: a directory of another node does not say what this one applied.
func TestStore_OwnsItsApplied(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	s, want := open(t, "events", Options{FS: fs}), state{}
	for _, step := range []struct {
		node    string
		applied uint64
	}{{"n1", 0}, {"n1", 12}, {"n2", 0}} {
		if err := s.Own(step.node); err != nil || s.Applied() != step.applied {
			t.Errorf("%s: applied %d, %v", step.node, s.Applied(), err)
		}
		write(t, s, 12, want.add("c1", event(fmt.Sprint("e", s.Applied(), step.node), "x")))
		shut(t, s)
		s = open(t, "events", Options{FS: fs})
	}
	shut(t, s)
}

// TestStore_DeletionGivesRoomBack: the bytes of a deleted conversation leave the disk.
func TestStore_DeletionGivesRoomBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, want := open(t, dir, Options{MemTableBytes: 1 << 20}), state{}
	defer shut(t, s)
	canary := "the words that nobody may find afterwards"
	random := rand.NewChaCha8([32]byte{1})
	body := make([]byte, 32<<10)
	for i := range 200 {
		_, _ = random.Read(body)
		name := []string{"kept", "gone"}[i%2]
		write(t, s, uint64(i+1), want.add(name, event(fmt.Sprint("e", i), name+canary+string(body))))
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	before := used(t, dir)
	pin, err := s.Pin()
	if err != nil {
		t.Fatal(err)
	}
	write(t, s, 201, want.drop("gone"))
	for _, p := range []*Pin{pin, pin} { // the pin keeps the bytes at the first purge
		if err := errors.Join(s.Purge(t.Context()), p.Close()); err != nil {
			t.Fatal(err)
		}
	}
	want.whole(t, s)
	if after := used(t, dir); before < 6<<20 || after > before*2/3 {
		t.Errorf("%d bytes before the deletion and %d after it", before, after)
	}
	if n := occurrences(t, dir, "gone"+canary); n > 0 {
		t.Errorf("the deleted text is in %d files", n)
	}
	dropped := 0
	_ = scan(s.db, []byte{prefixDropped}, nil, false, func([]byte, []byte) (bool, error) { dropped++; return true, nil })
	if dropped > 0 {
		t.Errorf("%d chains still give no room back", dropped)
	}
}

// used is the size of the files of a directory.
func used(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if info, err := f.Info(); err == nil {
			bytes += info.Size()
		}
	}
	return bytes
}

// occurrences counts the files with a text.
func occurrences(t *testing.T, dir, text string) (n int) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if raw, err := os.ReadFile(filepath.Join(dir, f.Name())); err == nil && strings.Contains(string(raw), text) {
			n++
		}
	}
	return n
}

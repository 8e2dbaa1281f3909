package fsm

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// fillConversations stores conversations without their tasks, so that large
// listings are cheap to build.
func fillConversations(s *Store, rows ...*Conversation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &transaction{store: s, txn: s.db.Txn(true)}
	for _, c := range rows {
		put(t, tableConversations, nil, c)
	}
	t.txn.Commit()
	v := *s.View()
	v.index++
	v.txn = s.db.Txn(false)
	s.publish(&v, nil)
}

func ids[T any](rows []*T, id func(*T) string) []string {
	out := []string{}
	for _, r := range rows {
		out = append(out, id(r))
	}
	return out
}

func conversationID(c *Conversation) string { return c.ID }

// TestPagesCoverEverythingOnce: with any page length, and with rows created between two pages, the
// pages together list every earlier row exactly once, newest first, and no row of another user.
func TestPagesCoverEverythingOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		s := NewStore()
		var want []*Conversation
		for i := range rapid.IntRange(0, 40).Draw(r, "rows") {
			c := &Conversation{
				ID: fmt.Sprintf("c%02d", i), UserID: oneOf("a", "ab", "b").Draw(r, "user"),
				CreatedAt: testEpoch.Add(time.Duration(rapid.IntRange(-3, 3).Draw(r, "time")) * time.Hour),
			}
			if rapid.Bool().Draw(r, "child") {
				c.ParentID = ptr("p")
			}
			fillConversations(s, c)
			if c.UserID == "a" {
				want = append(want, c)
			}
		}
		f := ConversationFilter{IncludeSub: rapid.Bool().Draw(r, "sub")}
		want = slices.DeleteFunc(want, func(c *Conversation) bool { return !f.IncludeSub && c.ParentID != nil })
		slices.SortStableFunc(want, func(a, b *Conversation) int { return b.CreatedAt.Compare(a.CreatedAt) })

		got, page := []*Conversation{}, Page{}
		for n := 0; ; n++ {
			page.Limit = rapid.IntRange(1, 10).Draw(r, "limit")
			rows, next := s.View().Conversations("a", f, page)
			if len(rows) > page.Limit || next != "" && len(rows) < page.Limit {
				r.Fatalf("a page of %d has %d rows and the token %q", page.Limit, len(rows), next)
			}
			got = append(got, rows...)
			if page.After = next; next == "" {
				break
			}
			fillConversations(s,
				&Conversation{ID: fmt.Sprintf("new%d", n), UserID: "a", CreatedAt: testEpoch.Add(9 * time.Hour)})
		}
		if d := cmp.Diff(ids(want, conversationID), ids(got, conversationID)); d != "" {
			r.Fatal(d)
		}
	})
}

// TestPageTokenJunk: an invalid token starts from the beginning and never leads into another user's
// rows.
func TestPageTokenJunk(t *testing.T) {
	t.Parallel()
	s := NewStore()
	fillConversations(s, &Conversation{ID: "a1", UserID: "a", CreatedAt: testEpoch},
		&Conversation{ID: "b1", UserID: "b", CreatedAt: testEpoch})
	for _, after := range []string{"x", "100", "====", token([]byte("short")), token(make([]byte, 500)), "\x00"} {
		rows, _ := s.View().Conversations("a", ConversationFilter{}, Page{After: after})
		if d := cmp.Diff([]string{"a1"}, ids(rows, conversationID)); d != "" {
			t.Errorf("%q: %s", after, d)
		}
	}
	// A token past the user's last row, or another user's token, returns only the user's own rows.
	rows, next := s.View().Conversations("a", ConversationFilter{},
		Page{After: token([]byte("\xff\xff\xff\xff\xff\xff\xff\xffzz"))})
	if len(rows) != 0 || next != "" {
		t.Errorf("past the end: %d rows, %q", len(rows), next)
	}
	rapid.Check(t, func(r *rapid.T) {
		after := token(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(r, "token"))
		rows, _ := s.View().Conversations("a", ConversationFilter{}, Page{After: after})
		for _, c := range rows {
			if c.UserID != "a" {
				r.Fatalf("%q shows a row of %s", after, c.UserID)
			}
		}
	})
}

// TestConversationFilter tries each member on its own, and Count with List.
func TestConversationFilter(t *testing.T) {
	s := NewStore()
	at := func(h int) time.Time { return testEpoch.Add(time.Duration(h) * time.Hour) }
	fillConversations(s,
		&Conversation{
			ID:        "c1",
			UserID:    "a",
			Title:     ptr("Fix the README"),
			SandboxID: "s1",
			CreatedAt: at(1),
			UpdatedAt: at(5),
		},
		&Conversation{ID: "c2", UserID: "a", SandboxID: "s2", CreatedAt: at(2), UpdatedAt: at(4)},
		&Conversation{
			ID:        "c3",
			UserID:    "a",
			Title:     ptr("fixtures"),
			SandboxID: "s1",
			ParentID:  ptr("c1"),
			CreatedAt: at(3),
			UpdatedAt: at(3),
		},
		&Conversation{ID: "c4", UserID: "b", Title: ptr("Fix"), CreatedAt: at(3), UpdatedAt: at(3)},
	)
	for name, c := range map[string]struct {
		f    ConversationFilter
		want []string
	}{
		"all":         {ConversationFilter{}, []string{"c2", "c1"}},
		"with sub":    {ConversationFilter{IncludeSub: true}, []string{"c3", "c2", "c1"}},
		"title":       {ConversationFilter{IncludeSub: true, TitleContains: "FIX"}, []string{"c3", "c1"}},
		"sandbox":     {ConversationFilter{IncludeSub: true, SandboxID: "s1"}, []string{"c3", "c1"}},
		"created gte": {ConversationFilter{IncludeSub: true, CreatedGTE: ptr(at(2))}, []string{"c3", "c2"}},
		"created lt":  {ConversationFilter{IncludeSub: true, CreatedLT: ptr(at(2))}, []string{"c1"}},
		"updated gte": {ConversationFilter{IncludeSub: true, UpdatedGTE: ptr(at(4))}, []string{"c2", "c1"}},
		"updated lt":  {ConversationFilter{IncludeSub: true, UpdatedLT: ptr(at(4))}, []string{"c3"}},
	} {
		rows, _ := s.View().Conversations("a", c.f, Page{})
		if d := cmp.Diff(c.want, ids(rows, conversationID)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if n := s.View().CountConversations("a", c.f); n != len(c.want) {
			t.Errorf("%s: counted %d", name, n)
		}
	}
	if d := cmp.Diff([]string{"c3"}, s.View().SubConversations("a", "c1")); d != "" {
		t.Error(d)
	}
}

// TestStartTaskPages walks the tasks in every order.
func TestStartTaskPages(t *testing.T) {
	f := newFixture(t).open()
	for i := range 7 {
		f.do("ada", &StartTaskCreateBody{ID: fmt.Sprintf("t%d", i), ConversationID: fmt.Sprintf("c%d", i)})
	}
	f.do("", &StartTaskAdvanceBody{ID: "t2", Status: StartTaskWorking, Detail: "touched"})
	f.do("bob", &StartTaskCreateBody{ID: "b0", ConversationID: "c0"})
	v := f.store.View()
	for order, want := range map[StartTaskOrder][]string{
		"":                   {"t6", "t5", "t4", "t3", "t2", "t1", "t0"},
		StartTaskCreatedDesc: {"t6", "t5", "t4", "t3", "t2", "t1", "t0"},
		StartTaskCreated:     {"t0", "t1", "t2", "t3", "t4", "t5", "t6"},
		StartTaskUpdated:     {"t0", "t1", "t3", "t4", "t5", "t6", "t2"},
		StartTaskUpdatedDesc: {"t2", "t6", "t5", "t4", "t3", "t1", "t0"},
	} {
		got, p := []string{}, Page{Limit: 3}
		for {
			rows, next := v.StartTasks("ada", StartTaskFilter{Order: order}, p)
			got = append(got, ids(rows, func(t *StartTask) string { return t.ID })...)
			if p.After = next; next == "" {
				break
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q: %s", order, d)
		}
	}
	filter := StartTaskFilter{CreatedGTE: ptr(v.StartTask("ada", "t5").CreatedAt)}
	if n := v.CountStartTasks("ada", filter); n != 2 {
		t.Errorf("%d tasks since t5", n)
	}
	f.conversation("ada", "done")
	v = f.store.View()
	if n := v.CountStartTasks("ada", StartTaskFilter{ConversationID: "done"}); n != 1 {
		t.Errorf("%d tasks of a finished conversation", n)
	}
	// Clients don't know the conversation's id before the task is READY.
	if n := v.CountStartTasks("ada", StartTaskFilter{ConversationID: "c1"}); n != 0 {
		t.Errorf("%d tasks of an unfinished conversation", n)
	}
	if got := v.StartTaskByConversation("ada", "c1"); got == nil || got.ID != "t1" ||
		v.StartTaskByConversation("bob", "c1") != nil {
		t.Errorf("by conversation: %+v", got)
	}
	open := ids(v.OpenStartTasks(), func(t *StartTask) string { return t.ID })
	if d := cmp.Diff([]string{"t0", "t1", "t2", "t3", "t4", "t5", "t6", "b0"}, open); d != "" {
		t.Errorf("open: %s", d)
	}
}

// TestSandboxLookups covers what a user, the scheduler and a sandbox's own key
// see.
func TestSandboxLookups(t *testing.T) {
	f := newFixture(t).open()
	for _, id := range []string{"s1", "s2", "s3"} {
		f.sandbox("ada", id)
	}
	f.sandbox("bob", "s4")
	f.do("ada", &SandboxDeleteBody{ID: "s2"})
	v := f.store.View()
	id := func(s *Sandbox) string { return s.ID }
	rows, next := v.Sandboxes("ada", Page{Limit: 1})
	more, last := v.Sandboxes("ada", Page{Limit: 5, After: next})
	if d := cmp.Diff([]string{"s3", "s1"}, ids(append(rows, more...), id)); d != "" || last != "" {
		t.Errorf("listed: %s %q", d, last)
	}
	if d := cmp.Diff([]string{"s1", "s2", "s3", "s4"}, ids(slices.Collect(v.AllSandboxes()), id)); d != "" {
		t.Errorf("all: %s", d)
	}
	if v.Sandbox("bob", "s1") != nil || v.Sandbox("ada", "s2") != nil || v.Sandbox("ada", "s1") == nil ||
		v.SandboxAny("s2") == nil {
		t.Error("the wrong sandboxes are found")
	}
	if v.SandboxByKeyHash(sha("s1")) == nil || v.SandboxByKeyHash(sha("s2")) != nil || v.SandboxByKeyHash("") != nil {
		t.Error("the wrong keys are found")
	}
}

// TestSmallLookups covers the lookups that no other test covers.
func TestSmallLookups(t *testing.T) {
	f := newFixture(t).open()
	if f.store.View().AnyAPIKey() {
		t.Error("a key is there before any was issued")
	}
	for _, l := range []string{"k1", "k2"} {
		f.do("", &APIKeyCreateBody{Lookup: l, Hash: sha(l), UserID: "ada"})
	}
	f.do("", &APIKeyRevokeBody{ID: 1})
	f.do("ada", &StartTaskCreateBody{ID: "t", ConversationID: "c", V0ID: "mine"})
	f.do("", &StartTaskBindBody{ID: "t", SandboxID: "s", Create: newSandboxBody("s")})
	f.do("", &StartTaskFinishBody{ID: "t", Conversation: Conversation{ID: "c"}})
	v := f.store.View()
	if d := cmp.Diff([]string{"k1", "k2"}, ids(v.APIKeys(), func(k *APIKey) string { return k.Lookup })); d != "" {
		t.Error(d)
	}
	if !v.AnyAPIKey() || v.APIKeyByLookup("k1").RevokedAt == nil || v.APIKeyByLookup("k2").RevokedAt != nil ||
		v.APIKeyByLookup("") != nil {
		t.Error("the wrong keys")
	}
	if conversationByV0ID(v.txn, "ada", "mine") == nil || conversationByV0ID(v.txn, "bob", "mine") != nil ||
		conversationByV0ID(v.txn, "ada", "min") != nil || conversationByV0ID(v.txn, "ada", "") != nil {
		t.Error("the wrong conversation")
	}
	if v.User("ada") == nil || v.User("bob") != nil || v.Settings("ada") != nil || v.Spec("nope") != nil ||
		v.StartTask("bob", "t") != nil || v.Conversation("bob", "c") != nil || f.store.Snapshot().Index() != v.Index() {
		t.Error("the wrong rows")
	}
}

// TestErrors: errors match by code, through wrapping.
func TestErrors(t *testing.T) {
	err := fmt.Errorf("asking: %w", Errorf(CodeNotFound, "no %s", "such thing"))
	if !errors.Is(err, &Error{Code: CodeNotFound}) || errors.Is(err, &Error{Code: CodeConflict}) {
		t.Error("errors.Is")
	}
	if CodeOf(err) != CodeNotFound || CodeOf(nil) != "" || CodeOf(errors.New("x")) != CodeInternal {
		t.Error("CodeOf")
	}
}

// BenchmarkPage shows that page 500 costs the same as page 1.
func BenchmarkPage(b *testing.B) {
	s := NewStore()
	var rows []*Conversation
	for i := range 100_000 {
		rows = append(rows,
			&Conversation{ID: fmt.Sprintf("c%06d", i), UserID: "a", CreatedAt: testEpoch.Add(time.Duration(i) * time.Second)})
	}
	fillConversations(s, rows...)
	v := s.View()
	for _, n := range []int{1, 500} {
		p := Page{Limit: 100}
		for range n - 1 {
			_, p.After = v.Conversations("a", ConversationFilter{}, p)
		}
		b.Run(fmt.Sprintf("page=%d", n), func(b *testing.B) {
			for b.Loop() {
				if rows, _ := v.Conversations("a", ConversationFilter{}, p); len(rows) != 100 {
					b.Fatal(len(rows))
				}
			}
		})
	}
}

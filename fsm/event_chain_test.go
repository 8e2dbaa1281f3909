package fsm

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// storedEvent returns a stored event with an id.
func storedEvent(id, body string) []byte {
	return AppendEvent(nil, EventHead{
		ID: id, Kind: "MessageEvent", Source: "agent", Timestamp: "2026-01-02T03:04:05",
	}, []byte(body))
}

// genEventsAppend draws an append that often fits the conversation.
func genEventsAppend(t *rapid.T) *EventsAppendBody {
	b := &EventsAppendBody{
		ConversationID: genConv().Draw(t, "conversation"), SandboxID: genSandbox().Draw(t, "sandbox"),
		At: rapid.Uint64Range(0, 2).Draw(t, "at"),
	}
	for range rapid.IntRange(0, 2).Draw(t, "events") {
		b.Events = append(b.Events, storedEvent(oneOf("e1", "e2").Draw(t, "event"), "text"))
	}
	if rapid.Bool().Draw(t, "said") {
		b.Facts = EventFacts{
			Status: oneOf("running", "finished").Draw(t, "status"), Title: oneOf("", "a title").Draw(t, "title"),
			Usage: AgentUsage{Prompt: rapid.Int64Range(0, 9).Draw(t, "prompt")},
		}
	}
	return b
}

// TestEvent_CutIsTheInverseOfAppend, and what is cut short is refused.
func TestEvent_CutIsTheInverseOfAppend(t *testing.T) {
	t.Parallel()
	want := EventHead{ID: "e1", Kind: "ActionEvent", Source: "agent", Timestamp: "2026-01-02T03:04:05"}
	stored := AppendEvent(nil, want, []byte("body"))
	head, body, err := CutEvent(stored)
	if err != nil || head != want || string(body) != "body" || string(EventID(stored)) != "e1" {
		t.Errorf("got %+v, %q, %v", head, body, err)
	}
	for end := range len(stored) - len("body") {
		if _, _, err := CutEvent(stored[:end]); err == nil {
			t.Errorf("read from %d bytes", end)
		}
	}
	if _, _, err := CutEvent(append([]byte{2}, stored[1:]...)); err == nil {
		t.Error("another form was read")
	}
}

// eventDisk is a node's store of events as simple as can be.
type eventDisk map[ChainKey][][]byte

// write does what a store of events has to do.
func (d eventDisk) write(t *rapid.T, changes []EventChange) {
	for _, c := range changes {
		if c.Dropped {
			delete(d, c.Chain.Key)
			continue
		}
		if at := c.At(); at != uint64(len(d[c.Chain.Key])) {
			t.Fatalf("events %d and on follow %d events", at, len(d[c.Chain.Key]))
		}
		for _, stored := range c.Events {
			d[c.Chain.Key] = append(d[c.Chain.Key], bytes.Clone(stored))
		}
	}
}

// chained fails unless the chains of the state are those of the events on the disk.
func (d eventDisk) chained(t *rapid.T, v *View) {
	left, bytes := len(d), map[string]int{}
	for row := range v.EventChains() {
		left--
		c := row.Events
		want := c.Key.Begin()
		for _, stored := range d[c.Key] {
			want.Number++
			want.Bytes += uint64(len(stored))
			want.Hash = want.Hash.Next(stored)
		}
		if *c != want {
			t.Fatalf("the state has %+v, the disk %+v", *c, want)
		}
		bytes[row.UserID] += int(c.Bytes)
		bytes[""] += int(c.Bytes)
	}
	if left != 0 {
		t.Fatalf("the disk has %d chains more than the state", left)
	}
	for _, user := range []string{"", "ada", "bob"} {
		if got := v.Usage(user).EventBytes; got != bytes[user] {
			t.Fatalf("%q uses %d bytes of events, counted are %d", user, got, bytes[user])
		}
	}
}

// TestEventChains_AreEqualOnAllNodes: whatever is appended, deleted and made again, in whatever batches
// and over whatever snapshots, all nodes have the chains of the events that they were told.
func TestEventChains_AreEqualOnAllNodes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		f := newFixture(t).open()
		f.do("", &ProtocolRaiseBody{Version: VersionEvents})
		for _, user := range []string{"ada", "bob"} {
			f.do("", &APIKeyCreateBody{Lookup: user + "aaaaaaaaa", Hash: sha(user), UserID: user})
		}
		names := map[string]string{"ada": "c1", "bob": "c2"}
		f.conversation("ada", "c1")
		f.conversation("bob", "c2")
		batched, one := restored(t, f.store), eventDisk{}
		several := eventDisk{}
		var waiting []Entry
		flush := func() {
			if batched.ApplyBatch(recodeAll(t, waiting)); len(waiting) > 0 {
				several.write(r, batched.EventChanges())
			}
			waiting = nil
		}
		apply := func(user string, body Body) {
			cmd := f.command(user, body)
			waiting = append(waiting, Entry{f.index, cmd})
			f.store.ApplyBatch(recodeAll(t, waiting[len(waiting)-1:]))
			one.write(r, f.store.EventChanges())
			one.chained(r, f.store.View())
		}
		ids := 0
		for range rapid.IntRange(1, 30).Draw(r, "commands") {
			user := genUser().Draw(r, "user")
			switch rapid.IntRange(0, 9).Draw(r, "do") {
			case 0:
				apply(user, &ConversationDeleteBody{ID: names[user]})
			case 1:
				task, id := fmt.Sprint("t", f.index), names[user]
				apply(user, &StartTaskCreateBody{ID: task, ConversationID: id, Request: StartRequest{SandboxID: ptr("sb-" + id)}})
				apply("", &StartTaskBindBody{ID: task, SandboxID: "sb-" + id})
				apply("", &StartTaskFinishBody{ID: task, Conversation: Conversation{ID: id, AgentKind: "openhands"}})
			case 2:
				flush()
				batched = restored(t, batched)
			case 3:
				apply("", &UserDeleteBody{UserID: "bob"})
			default:
				b := &EventsAppendBody{ConversationID: names[user], SandboxID: "sb-" + names[user]}
				if c := f.store.View().EventChain(user, b.ConversationID); c != nil {
					b.At = c.Number
				}
				b.At += uint64(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(r, "off by"))
				for range rapid.IntRange(1, 3).Draw(r, "events") {
					ids++
					b.Events = append(b.Events, storedEvent(fmt.Sprint("e", ids), fmt.Sprint("text ", ids)))
				}
				apply(user, b)
			}
		}
		flush()
		if f.store.Checksum() != batched.Checksum() || cmp.Diff(one, several) != "" {
			r.Fatalf("in batches it is another state:\n%s", cmp.Diff(string(persist(t, f.store)), string(persist(t, batched))))
		}
		several.chained(r, batched.View())
	})
}

// TestEventsAppend_OverTheLimit: what a user may keep is bounded, and the refusal names the limit.
func TestEventsAppend_OverTheLimit(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.do("", &ProtocolRaiseBody{Version: VersionEvents})
	f.do("", &APIKeyCreateBody{Lookup: "aaaaaaaaaaaa", Hash: sha("a"), UserID: "ada"})
	f.conversation("ada", "c1")
	f.do("ada", &EventsAppendBody{ConversationID: "c1", SandboxID: "sb-c1", Events: [][]byte{storedEvent("e1", "x")}})
	row := *f.store.View().Conversation("ada", "c1")
	full := *row.Events
	full.Bytes = DefaultUserEventBytes - 100
	row.Events = &full
	view := f.store.View()
	txn := &transaction{store: f.store, txn: f.store.db.Txn(true), meta: view.meta}
	put(txn, tableConversations, view.Conversation("ada", "c1"), &row)
	txn.txn.Commit()
	f.store.publish(&View{index: view.index, meta: view.meta, txn: f.store.db.Txn(false), commands: f.store.commands}, nil)
	more := &EventsAppendBody{
		ConversationID: "c1", SandboxID: "sb-c1", At: 1,
		Events: [][]byte{storedEvent("e2", string(slices.Repeat([]byte("x"), 200)))},
	}
	if err := f.fails(CodeLimit, "ada", more); err.Limit != LimitOfUser+LimitEvents {
		t.Errorf("the limit is %q", err.Limit)
	}
	if c := f.store.View().EventChain("ada", "c1"); *c != full {
		t.Errorf("a refused append changed the chain to %+v", c)
	}
}

// TestEventsAppend_HoldsSixMiB: an event of the largest size fits the log.
func TestEventsAppend_HoldsSixMiB(t *testing.T) {
	t.Parallel()
	body := &EventsAppendBody{
		ConversationID: "c1", SandboxID: "sb1", Events: [][]byte{storedEvent("e1", string(make([]byte, 6<<20)))},
	}
	raw, err := NewCommand("c", testEpoch, "ada", body).EncodeBinary()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeCommand(raw)
	if err != nil || cmp.Diff(Body(body), got.Body) != "" {
		t.Errorf("it is read as another: %v", err)
	}
}

// TestEventsAppend_IsRememberedByItsPosition: a copy of the command is a conflict, and no record of its id
// is kept for it.
func TestEventsAppend_IsRememberedByItsPosition(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.do("", &ProtocolRaiseBody{Version: VersionEvents})
	f.do("", &APIKeyCreateBody{Lookup: "aaaaaaaaaaaa", Hash: sha("a"), UserID: "ada"})
	f.conversation("ada", "c1")
	before := len(f.store.commands.all())
	cmd := NewCommand("the same", time.Now(), "ada",
		&EventsAppendBody{ConversationID: "c1", SandboxID: "sb-c1", Events: [][]byte{storedEvent("e1", "x")}})
	for _, want := range []Code{"", CodeConflict} {
		if _, err := f.store.Apply(f.store.Index()+1, cmd); err != nil && CodeOf(err) != want || err == nil && want != "" {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if after := len(f.store.commands.all()); after != before {
		t.Errorf("%d commands are remembered, and %d were before", after, before)
	}
	if c := f.store.View().EventChain("ada", "c1"); c == nil || c.Number != 1 {
		t.Errorf("the chain is %+v", c)
	}
}

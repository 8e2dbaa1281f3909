package fsm

import (
	"fmt"
	"testing"
	"time"
)

// TestSetups_AreBounded: of a user's questions the one that is unused for longest makes room, and no
// other user's. They count to the user's state, and go with what is older than SetupRetention.
func TestSetups_AreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.do("", &ProtocolRaiseBody{Version: ProtocolVersion})
	f.sandbox("ada", "sb1")
	f.sandbox("bob", "sb2")
	ask := func(user, sandbox string, n int) *TaskSetup {
		t.Helper()
		id := fmt.Sprintf("%s%d", user, n)
		s := genTaskSetup(fmt.Sprint(n))
		if f.store.View().StartTask(user, id) != nil {
			id += "again"
		}
		f.do(user, &StartTaskCreateBody{ID: id, ConversationID: "c" + id})
		f.do("", &StartTaskBindBody{ID: id, SandboxID: sandbox})
		f.do("", &StartTaskAskBody{ID: id, Setup: *s})
		f.do(user, &StartTaskAnswerBody{ID: id, Hash: s.Hash, Accept: true})
		f.do("", &StartTaskFailBody{ID: id, Detail: "no"})
		return s
	}
	answered := func(user string, s *TaskSetup) bool {
		row := f.store.View().Setup(user, s.Repository, s.Hash)
		return row != nil && row.Answer == SetupAccepted
	}
	others := ask("bob", "sb2", 0)
	before := f.store.View().Usage("ada").StateBytes
	first := ask("ada", "sb1", 0)
	if got := f.store.View().Usage("ada").StateBytes; got < before+setupHeap {
		t.Errorf("the state counts %d bytes, after %d", got, before)
	}
	second := ask("ada", "sb1", 1)
	for n := 2; n < MaxSetups; n++ {
		ask("ada", "sb1", n)
	}
	ask("ada", "sb1", 0) // used again
	last := ask("ada", "sb1", MaxSetups)
	count := 0
	for range withPrefix[Setup](f.store.View().txn, tableSetups, indexID, prefixOf("ada")) {
		count++
	}
	if count != MaxSetups || !answered("ada", first) || answered("ada", second) || !answered("ada", last) ||
		!answered("bob", others) {
		t.Errorf("%d are kept: used again %v, unused for longest %v, last %v, another user's %v",
			count, answered("ada", first), answered("ada", second), answered("ada", last), answered("bob", others))
	}
	f.now = f.now.Add(SetupRetention + time.Second)
	if ask("ada", "sb1", MaxSetups+1); answered("ada", last) || !answered("bob", others) {
		t.Errorf("after a long time: %v, another user's %v", answered("ada", last), answered("bob", others))
	}
}

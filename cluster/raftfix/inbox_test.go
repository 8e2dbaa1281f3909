package raftfix

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// TestInbox_Issue695_AHeartbeatDoesNotMoveALeadersTerm: a heartbeat of a newer
// term comes while the leader is between two writes. The write after it is refused:
// this node never led that term.
func TestInbox_Issue695_AHeartbeatDoesNotMoveALeadersTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		for b.raft.State() != raft.Leader {
			time.Sleep(10 * time.Millisecond)
		}
		if err := b.raft.Apply([]byte("first"), time.Second).Error(); err != nil {
			t.Fatal(err)
		}
		led := b.raft.CurrentTerm()
		synctest.Wait() // Raft waits for what comes
		answer := b.send(&raft.AppendEntriesRequest{RPCHeader: headerOf("b"), Term: led + 5}, "")
		if r, ok := answer.Response.(*raft.AppendEntriesResponse); !ok || !r.Success || r.Term != led+5 {
			t.Errorf("the new leader is answered %+v, %v", answer.Response, answer.Error)
		}
		if err := b.raft.Apply([]byte("second"), time.Second).Error(); err == nil {
			t.Error("a write is acknowledged after a newer leader was heard")
		}
		last, err := b.logs.LastIndex()
		if err != nil {
			t.Fatal(err)
		}
		for i := uint64(1); i <= last; i++ {
			var entry raft.Log
			if err := b.logs.GetLog(i, &entry); err != nil {
				t.Fatal(err)
			}
			if entry.Term > led {
				t.Errorf("entry %d is written with term %d; this node led up to term %d", i, entry.Term, led)
			}
		}
	})
}

// TestInbox_Heartbeats_AreAnsweredWhileRaftIsBusy: a follower whose disk does not
// answer still answers the leader that it follows, and no other.
func TestInbox_Heartbeats_AreAnsweredWhileRaftIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		b.write("b", 3, 2, 10, 1, 10)
		synctest.Wait()
		free := b.busy()
		begin := time.Now()
		for range 20 {
			answer := b.send(&raft.AppendEntriesRequest{RPCHeader: headerOf("b"), Term: 3}, "")
			if r, ok := answer.Response.(*raft.AppendEntriesResponse); !ok || !r.Success || r.Term != 3 || r.LastLog != 10 ||
				string(r.ID) != "a" {
				t.Fatalf("answered %+v, %v", answer.Response, answer.Error)
			}
		}
		newer := make(chan raft.RPCResponse, 1)
		go func() {
			b.wire.mu.Lock()
			handler := b.wire.handler
			b.wire.mu.Unlock()
			handler(raft.RPC{Command: &raft.AppendEntriesRequest{RPCHeader: headerOf("c"), Term: 4}, RespChan: newer})
		}()
		synctest.Wait()
		if len(newer) > 0 || b.raft.CurrentTerm() != 3 || time.Since(begin) > 0 {
			t.Errorf("after %v: %d answers to the newer term, this node is in term %d", time.Since(begin), len(newer),
				b.raft.CurrentTerm())
		}
		free()
		if r, ok := (<-newer).Response.(*raft.AppendEntriesResponse); !ok || r.Term != 4 || b.raft.CurrentTerm() != 4 {
			t.Errorf("the newer term is answered %+v", r)
		}
		if since := time.Since(b.raft.LastContact()); since > 0 {
			t.Errorf("the leader was heard %v ago", since)
		}
	})
}

// TestInbox_Issue697_ALateSnapshotTakesNothingBack: entries 1 to 200 are
// acknowledged; a duplicate of the snapshot at 100 comes, in the same term, in a
// newer one, in an older one. Then writes go on.
func TestInbox_Issue697_ALateSnapshotTakesNothingBack(t *testing.T) {
	for name, test := range map[string]struct {
		term  uint64
		taken bool
		now   uint64
	}{"same term": {3, true, 3}, "newer term": {5, true, 5}, "older term": {2, false, 3}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				defer b.end()
				if r, err := b.install("b", 3, 100, 2); err != nil || !r.Success {
					t.Fatalf("the snapshot: %+v, %v", r, err)
				}
				b.write("b", 3, 101, 200, 2, 200)
				synctest.Wait()
				b.has(101, 200, 200)
				r, err := b.install("b", test.term, 100, 2)
				if err != nil || r.Success != test.taken || r.Term != test.now {
					t.Errorf("the duplicate is answered %+v, %v", r, err)
				}
				synctest.Wait()
				b.has(101, 200, 200)
				if r := b.write("b", test.now, 201, 201, 3, 201); !r.Success {
					t.Errorf("the next write is answered %+v", r)
				}
				synctest.Wait()
				b.has(101, 201, 201)
			})
		})
	}
}

// TestInbox_Issue697_AcknowledgedEntriesBehindASnapshotStay: the log holds entries
// that this node has acknowledged and not applied yet; the snapshot ends among
// them.
func TestInbox_Issue697_AcknowledgedEntriesBehindASnapshotStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		b.write("b", 3, 2, 200, 1, 50)
		synctest.Wait()
		if r, err := b.install("b", 3, 100, 3); err != nil || !r.Success {
			t.Errorf("the snapshot is answered %+v, %v", r, err)
		}
		synctest.Wait()
		b.has(1, 200, 50)
		if r := b.write("b", 3, 101, 201, 3, 201); !r.Success {
			t.Errorf("the next write is answered %+v", r)
		}
		synctest.Wait()
		b.has(1, 201, 201)
	})
}

// TestInbox_Issue697_AQueuedEntryIsNotOvertaken: what moves the store past the
// snapshot is on its way to Raft when the snapshot comes.
func TestInbox_Issue697_AQueuedEntryIsNotOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		if r, err := b.install("b", 3, 90, 2); err != nil || !r.Success {
			t.Fatalf("the snapshot: %+v, %v", r, err)
		}
		free := b.busy()
		var both sync.WaitGroup
		both.Go(func() {
			if r := b.write("b", 3, 91, 200, 2, 200); !r.Success {
				t.Errorf("the entries are answered %+v", r)
			}
		})
		synctest.Wait()
		both.Go(func() {
			if r, err := b.install("b", 3, 100, 3); err != nil || !r.Success {
				t.Errorf("the snapshot is answered %+v, %v", r, err)
			}
		})
		synctest.Wait()
		free()
		both.Wait()
		synctest.Wait()
		b.has(91, 200, 200)
	})
}

// TestInbox_Issue697_TheLeaderGetsPastAHeldSnapshot: the leader goes on behind its
// snapshot, where this log begins later.
func TestInbox_Issue697_TheLeaderGetsPastAHeldSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		if r, err := b.install("b", 3, 150, 3); err != nil || !r.Success {
			t.Fatalf("the snapshot: %+v, %v", r, err)
		}
		b.write("b", 3, 151, 160, 3, 150) // not committed
		if r, err := b.install("c", 4, 100, 3); err != nil || !r.Success {
			t.Fatalf("an older snapshot of the next leader's: %+v, %v", r, err)
		}
		if r := b.write("c", 4, 101, 180, 3, 180); !r.Success {
			t.Errorf("what follows it is answered %+v", r)
		}
		synctest.Wait()
		b.has(151, 180, 180)
		for i := uint64(151); i <= 180; i++ {
			var entry raft.Log
			if err := b.logs.GetLog(i, &entry); err != nil || entry.Term != 4 {
				t.Fatalf("entry %d is of term %d, %v", i, entry.Term, err)
			}
		}
		if r := b.write("c", 4, 2, 120, 1, 180); !r.Success {
			t.Errorf("what is applied long since is answered %+v", r)
		}
		b.has(151, 180, 180)
	})
}

// TestInbox_Issue697_AForeignEndOfTheLogIsCutOff: the log has another entry where
// the snapshot ends. Nothing before it is lost, and Raft must be started anew.
func TestInbox_Issue697_AForeignEndOfTheLogIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		b.write("b", 3, 2, 90, 1, 80)
		b.write("b", 4, 91, 200, 3, 80)
		_, err := b.install("c", 5, 100, 3)
		if err == nil || !strings.Contains(err.Error(), "697") {
			t.Errorf("the snapshot is answered %v", err)
		}
		synctest.Wait()
		select {
		case err := <-b.broken:
			if !strings.Contains(err.Error(), "entry 100 of term 3") {
				t.Error(err)
			}
		default:
			t.Error("Raft goes on with the end of a log that is gone")
		}
		synctest.Wait()
		b.has(1, 99, 80)
	})
}

// TestInbox_Shut_LetsTheTransportGo: a heartbeat that Raft has to judge came when it
// had ended.
func TestInbox_Shut_LetsTheTransportGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.wire.mu.Lock()
		handler := b.wire.handler
		b.wire.mu.Unlock()
		down := b.raft.Shutdown()
		var connections sync.WaitGroup
		for term := range uint64(3) {
			connections.Go(func() {
				handler(raft.RPC{
					Command:  &raft.AppendEntriesRequest{RPCHeader: headerOf("b"), Term: 9 + term},
					RespChan: make(chan raft.RPCResponse, 1),
				})
			})
		}
		synctest.Wait()
		b.inbox.Shut()
		connections.Wait() // as the transport does at its end
		if err := bounded(down); err != nil {
			t.Error(err)
		}
		b.inbox.Stop()
	})
}

package replication

import (
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
)

// TestTransport_Hints: a commit index is handed in behind its entry, once, and never
// in a term whose entries have not come.
func TestTransport_Hints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, inner := raft.NewInmemTransport("n0")
		consumer := make(chan raft.RPC)
		f := New(&fed{inner, consumer})
		defer f.Stop()
		var got []raft.AppendEntriesRequest
		take := func() {
			for {
				synctest.Wait()
				select {
				case rpc := <-f.Consumer():
					got = append(got, *rpc.Command.(*raft.AppendEntriesRequest))
				default:
					return
				}
			}
		}
		entries := func(term, last uint64) {
			go func() {
				consumer <- raft.RPC{
					Command: &raft.AppendEntriesRequest{Term: term, Entries: []*raft.Log{{Index: last - 1}, {Index: last}}},
				}
			}()
			take()
		}
		hint := func(index, term uint64) {
			go f.HintCommitted("n1.x", "n1:1", index, term)
			take()
		}
		want := func(what string, number int, index, term uint64) {
			t.Helper()
			if len(got) != number {
				t.Fatalf("%s: Raft got %d messages, want %d", what, len(got), number)
			}
			if m := got[number-1]; len(m.Entries) == 0 && (m.Term != term || m.LeaderCommitIndex != index ||
				m.PrevLogEntry != index || m.PrevLogTerm != term || string(m.ID) != "n1.x") {
				t.Errorf("%s: %+v", what, m)
			}
		}
		entries(3, 10)
		hint(10, 3)
		want("of the last entry", 2, 10, 3)
		hint(12, 3)
		want("of an entry to come", 2, 10, 3)
		entries(3, 11)
		want("the one before it came", 3, 0, 0)
		entries(3, 13)
		want("it came", 5, 12, 3)
		entries(3, 15)
		want("a hint goes once", 6, 0, 0)
		hint(20, 2)
		hint(18, 4)
		hint(17, 4)
		want("of another term", 6, 0, 0)
		entries(4, 17)
		want("the term has begun", 7, 0, 0)
		entries(4, 19)
		want("the newest of the term", 9, 18, 4)
		hint(25, 4)
		entries(5, 30)
		entries(5, 32)
		want("a term that is over", 11, 0, 0)
	})
}

// fed is a transport whose messages the test makes.
type fed struct {
	*raft.InmemTransport
	consumer chan raft.RPC
}

func (f *fed) Consumer() <-chan raft.RPC { return f.consumer }

// TestTransport_MessagesAreBounded: one message brings at most so many bytes, and one entry
// at least; Raft goes on from the last that was sent.
func TestTransport_MessagesAreBounded(t *testing.T) {
	t.Parallel()
	const large = maxMessageBytes / 3
	for name, test := range map[string]struct {
		sizes []int
		want  int
	}{
		"none": {nil, 0}, "small": {[]int{1, 2, 3}, 3}, "some": {[]int{large, large, large, large}, 3},
		"one that is too large": {[]int{maxMessageBytes + 1, 1}, 1}, "behind a small one": {[]int{1, maxMessageBytes}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := -1
				_, inner := raft.NewInmemTransport("n0")
				f := New(&sending{inner, func(args *raft.AppendEntriesRequest) { got = len(args.Entries) }})
				defer f.Stop()
				request := &raft.AppendEntriesRequest{Term: 2}
				for i, size := range test.sizes {
					request.Entries = append(request.Entries, &raft.Log{Index: uint64(i + 1), Data: make([]byte, size)})
				}
				if err := f.AppendEntries("n1.x", "n1:1", request, &raft.AppendEntriesResponse{}); err != nil {
					t.Fatal(err)
				}
				if got != test.want || len(request.Entries) != got {
					t.Errorf("%d entries were sent and Raft goes on behind %d, want %d", got, len(request.Entries), test.want)
				}
			})
		})
	}
}

// sending is a transport that only sends entries.
type sending struct {
	*raft.InmemTransport
	sent func(*raft.AppendEntriesRequest)
}

func (s *sending) AppendEntries(
	_ raft.ServerID,
	_ raft.ServerAddress,
	args *raft.AppendEntriesRequest,
	_ *raft.AppendEntriesResponse,
) error {
	s.sent(args)
	return nil
}

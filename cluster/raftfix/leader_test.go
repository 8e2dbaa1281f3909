package raftfix

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// leads waits until the bench's Raft leads.
func (b *bench) leads() {
	b.t.Helper()
	for range 1000 {
		if b.raft.State() == raft.Leader {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.t.Fatal("no leader")
}

// TestTransfers_Issue696_ALeaderWritesOnAfterTwoFailedHandovers: the peer that is to
// lead does not answer.
func TestTransfers_Issue696_ALeaderWritesOnAfterTwoFailedHandovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		hang := make(chan struct{})
		defer b.end()
		defer close(hang)
		b.leads()
		b.wire.hang(hang, "c")
		if err := b.raft.Apply([]byte("first"), time.Second).Error(); err != nil {
			t.Fatal(err)
		}
		peers := []raft.Server{{ID: "c", Address: "c:1"}}
		var transfers Transfers
		for try := range 2 {
			var future raft.Future
			var err error
			if without {
				future = b.raft.LeadershipTransferToServer("c", "c:1")
			} else {
				future, err = transfers.To(b.raft, peers)
			}
			if err == nil {
				err = bounded(future)
			}
			if err == nil || errors.Is(err, ErrTransferSpent) != (try > 0) {
				t.Errorf("handover %d: %v", try+1, err)
			}
		}
		time.Sleep(time.Minute)
		if err := b.raft.Apply([]byte("second"), time.Second).Error(); err != nil {
			t.Errorf("a minute later a write is refused: %v", err)
		}
	})
}

// TestTransfers_AskEachPeerOnceInATerm: another peer, or the same in another term.
func TestTransfers_AskEachPeerOnceInATerm(t *testing.T) {
	var transfers Transfers
	r := &asked{term: 3}
	b, c := raft.Server{ID: "b"}, raft.Server{ID: "c"}
	for _, test := range []struct {
		term  uint64
		peers []raft.Server
		want  string
	}{
		{3, []raft.Server{b, c}, "b"}, {3, []raft.Server{b, c}, "c"}, {3, []raft.Server{b, c}, ""},
		{4, []raft.Server{b, c}, "b"}, {4, []raft.Server{b}, ""}, {4, nil, ""},
	} {
		r.term, r.id = test.term, ""
		if _, err := transfers.To(r, test.peers); string(r.id) != test.want || (err == nil) != (test.want != "") {
			t.Errorf("term %d, %d peers: asked %q, %v; want %q", test.term, len(test.peers), r.id, err, test.want)
		}
	}
}

type asked struct {
	term uint64
	id   raft.ServerID
}

func (a *asked) CurrentTerm() uint64 { return a.term }

func (a *asked) LeadershipTransferToServer(id raft.ServerID, _ raft.ServerAddress) raft.Future {
	a.id = id
	return nil
}

// TestStuck_OnlyWhatLastsIsStuck: a handover in progress is none.
func TestStuck_OnlyWhatLastsIsStuck(t *testing.T) {
	refused := fmt.Errorf("opening: %w", raft.ErrLeadershipTransferInProgress)
	if Stuck(refused, stuckAfter) || Stuck(raft.ErrNotLeader, time.Hour) || !Stuck(refused, stuckAfter+1) {
		t.Error("misjudged")
	}
}

// TestPipelines_Issue612_ARefusalDoesNotStopReplication: a peer refuses one message
// now and then, while the leader writes.
func TestPipelines_Issue612_ARefusalDoesNotStopReplication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		b.leads()
		for round := range 60 {
			b.wire.refuse("c")
			for range 4 {
				if err := b.raft.Apply(fmt.Appendf(nil, "round %d", round), time.Second).Error(); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
			last := b.raft.LastIndex()
			if got := b.wire.got("c"); got != last {
				t.Fatalf("round %d: the peer has entries up to %d, the leader up to %d", round, got, last)
			}
		}
	})
}

// pipes are pipelines like those of raft.NetworkTransport with its default of two
// messages on their way: each place is handed over, none waits in a queue.
type pipe struct {
	wire     *wire
	id       raft.ServerID
	inflight chan *sent
	done     chan raft.AppendFuture
	closed   chan struct{}
	once     sync.Once
}

type sent struct {
	begin    time.Time
	request  *raft.AppendEntriesRequest
	response *raft.AppendEntriesResponse
}

func (s *sent) Error() error                          { return nil }
func (s *sent) Start() time.Time                      { return s.begin }
func (s *sent) Request() *raft.AppendEntriesRequest   { return s.request }
func (s *sent) Response() *raft.AppendEntriesResponse { return s.response }

func newPipe(w *wire, id raft.ServerID) *pipe {
	p := &pipe{
		wire:     w,
		id:       id,
		inflight: make(chan *sent),
		done:     make(chan raft.AppendFuture),
		closed:   make(chan struct{}),
	}
	go func() {
		for {
			select {
			case s := <-p.inflight:
				_ = w.AppendEntries(id, "", s.request, s.response)
				select {
				case p.done <- s:
				case <-p.closed:
					return
				}
			case <-p.closed:
				return
			}
		}
	}()
	return p
}

func (p *pipe) AppendEntries(
	args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse,
) (raft.AppendFuture, error) {
	s := &sent{time.Now(), args, resp}
	select {
	case p.inflight <- s:
		return s, nil
	case <-p.closed:
		return nil, raft.ErrPipelineShutdown
	}
}

func (p *pipe) Consumer() <-chan raft.AppendFuture { return p.done }

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/forgetest"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

// lie replaces a stopped member by a liar with its certificate, its id and its address. The liar
// answers greetings and the question about a start falsely, the latter after a while.
func (r *real) lie(i int, id string, after time.Duration) *forgetest.Forger {
	r.t.Helper()
	f, err := forgetest.NewAt(r.nodes[i].cfg.TLS, r.nodes[i].cfg.PeerAddress, id)
	if err != nil {
		r.t.Fatal(err)
	}
	f.NotMember.Store(1 << 60)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- f.Port.Serve(ctx, func(ctx context.Context, _, call string, _ []byte) ([]byte, error) {
			switch call {
			case "begin":
				select {
				case <-time.After(after):
				case <-ctx.Done():
				}
				return []byte(`{"objection":"a later start of this node is known"}`), nil
			case "hello":
				return fmt.Appendf(nil, `{"member":{"id":%q,"name":%q,"address":%q},`+
					`"formed":true,"not_member":1152921504606846976,"protocol":%d}`,
					id, peernet.NodeName(raft.ServerID(id)), f.Port.Addr(), fsm.ProtocolVersion), nil
			case "voted":
				return fmt.Appendf(nil,
					`{"id":%q,"term":1,"candidate":"nobody","members":[{"id":%q,"address":"127.0.0.1:1","voter":true}]}`, id, id), nil
			}
			return nil, errors.New("the liar says no more")
		})
	}()
	r.t.Cleanup(func() {
		cancel()
		_ = f.Close()
		<-served
	})
	return f
}

// TestReal_LyingMember_StopsNoStart: a member objects to another's start, at once or while it runs, and
// says that it is no member. The third one does not, so it starts and the two go on.
func TestReal_LyingMember_StopsNoStart(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]time.Duration{"at once": 0, "late": 1500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := formed(t)
			leader := r.leader()
			liar, other := (leader+1)%3, (leader+2)%3
			id := r.memberID(liar)
			r.settled(1)
			r.shutdown(liar)
			r.shutdown(other)
			r.lie(liar, id, after)
			r.start(other)
			r.ready(other)
			r.put(other, 2)
			r.want(2)
			if after > 0 { // until the late objection is decided
				began := time.Now()
				eventually(t, func() bool { return time.Since(began) > after+3*time.Second }, func() string { return "" })
			}
			select {
			case err := <-r.nodes[other].ended:
				t.Fatalf("n%d ended: %v", other, err)
			default:
			}
			r.ready(other)
			r.ready(leader)
			r.put(leader, 3)
			r.want(3)
		})
	}
}

// TestReal_LyingMember_WritesNothing: a member sends what it may not with its own certificate, while
// the two others take writes.
func TestReal_LyingMember_WritesNothing(t *testing.T) {
	t.Parallel()
	r := formed(t)
	leader := r.leader()
	liar := (leader + 1) % 3
	id := r.memberID(liar)
	r.shutdown(liar)
	f := r.lie(liar, id, 0)
	chance := rand.New(rand.NewPCG(1, 2))
	term := r.nodes[leader].node.Status().Term
	for sent := range 150 {
		for i, n := range r.nodes {
			if i == liar {
				continue
			}
			status := n.node.Status()
			to := forgetest.Target{ID: status.ID, Address: n.cfg.PeerAddress, Term: status.Term, Commit: status.CommitIndex}
			for _, s := range status.Servers {
				to.Members = append(to.Members, s.ID)
			}
			if took := f.SendAsMember(t.Context(), to, chance); took != "" {
				t.Errorf("n%d takes %s of a member that does not lead", i, took)
			}
		}
		if sent%30 == 0 {
			r.put(leader, 100+sent)
			r.want(100 + sent)
		}
	}
	for i, n := range r.nodes {
		if i == liar {
			continue
		}
		if now := n.node.Status().Term; now >= term+7 { // a busy machine has elections of its own
			t.Errorf("n%d went from term %d to %d", i, term, now)
		}
		r.ready(i)
	}
	for i, n := range r.nodes {
		for _, k := range n.store.View().APIKeys() {
			if k.UserID == forgetest.Thief {
				t.Errorf("n%d has an operator's key that nobody made", i)
			}
		}
	}
}

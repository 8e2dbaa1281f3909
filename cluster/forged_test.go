package cluster_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/forgetest"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

// forger speaks to the peer ports of a cluster with a certificate of the cluster's CA.
type forger struct {
	*real
	*forgetest.Forger
}

// forge makes a forger with a certificate for the node of the id.
func (r *real) forge(id string) *forger {
	r.t.Helper()
	name := peernet.NodeName(raft.ServerID(id))
	f, err := forgetest.New(r.issue("forged-"+uuid.NewString()[:8], name, r.ca, time.Hour), "127.0.0.1", id)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = f.Close() })
	return &forger{r, f}
}

// address is where the forger finds node i.
func (f *forger) address(i int) raft.ServerAddress {
	return raft.ServerAddress(peernet.AddressFor(raft.ServerID(f.memberID(i)), f.nodes[i].cfg.PeerAddress))
}

func (r *real) memberID(i int) string { return r.nodes[i].node.Status().ID }

// call makes a peer call to node i.
func (f *forger) call(i int, name, request string) (string, error) {
	return f.Call(f.t.Context(), f.nodes[i].cfg.PeerAddress, name, request)
}

// entry is a log entry behind the last one of node i, by which an operator's key is made.
func (f *forger) entry(i int, term uint64) *raft.Log {
	f.t.Helper()
	data, err := forgetest.Key()
	if err != nil {
		f.t.Fatal(err)
	}
	return &raft.Log{Index: f.nodes[i].node.Status().CommitIndex + 1, Term: term, Type: raft.LogCommand, Data: data}
}

// append sends node i an entry of a term in the name of a member.
func (f *forger) append(i int, as string, term uint64) (raft.AppendEntriesResponse, error) {
	entry := f.entry(i, term)
	request := &raft.AppendEntriesRequest{
		RPCHeader: f.Header(as), Term: term, Entries: []*raft.Log{entry}, LeaderCommitIndex: entry.Index,
	}
	var response raft.AppendEntriesResponse
	err := f.Wire.AppendEntries(raft.ServerID(f.memberID(i)), f.address(i), request, &response)
	return response, err
}

// keys counts the operators' keys of the thief on all nodes.
func (r *real) stolenKeys() (count int) {
	for _, n := range r.nodes {
		for _, k := range n.store.View().APIKeys() {
			if k.UserID == forgetest.Thief {
				count++
			}
		}
	}
	return count
}

// unharmed checks that all members run, are ready, in the term that they were, and take writes.
func (r *real) unharmed(term uint64, number int) {
	r.t.Helper()
	for i, n := range r.nodes {
		select {
		case err := <-n.ended:
			r.t.Fatalf("n%d ended: %v", i, err)
		default:
		}
		if now := n.node.Status().Term; now != term {
			r.t.Errorf("n%d went from term %d to %d", i, term, now)
		}
		if err := n.node.Ready(); err != nil {
			r.t.Errorf("n%d: %v", i, err)
		}
	}
	if keys := r.stolenKeys(); keys > 0 {
		r.t.Errorf("%d nodes have an operator's key that nobody made", keys)
	}
	r.put(0, number)
	r.want(number)
}

// formed starts three nodes and waits until all of them know the newest protocol version.
func formed(t *testing.T) *real {
	t.Helper()
	r := newReal(t, 3)
	r.startAll()
	r.put(0, 1)
	eventually(t, func() bool {
		for _, n := range r.nodes {
			if n.store.View().ProtocolVersion() != fsm.ProtocolVersion {
				return false
			}
		}
		return true
	}, func() string { return "the protocol version is not raised" })
	r.want(1)
	return r
}

// senders are certificates of no member, and what they say they are: the certificate's own member, or
// the member that they pose as.
func (r *real) senders() map[string]func() (*forger, string) {
	return map[string]func() (*forger, string){
		"a stranger": func() (*forger, string) { f := r.forge("eve.0123456789abc"); return f, f.ID },
		"a stranger with a member's id": func() (*forger, string) {
			return r.forge("eve.0123456789abc"), r.memberID(1)
		},
		"a former disk of a member": func() (*forger, string) { f := r.forge("n1.0123456789abc"); return f, f.ID },
	}
}

// TestReal_ForgedEntry_IsTakenByNobody: an entry of the next term, sent to each member with a
// certificate of no member, is in no log and makes no operator's key.
func TestReal_ForgedEntry_IsTakenByNobody(t *testing.T) {
	t.Parallel()
	r := formed(t)
	term := r.nodes[0].node.Status().Term
	for name, sender := range r.senders() {
		f, as := sender()
		for i := range r.nodes {
			if got, err := f.append(i, as, term+1); err == nil && got.Success {
				t.Errorf("n%d takes the entry of %s", i, name)
			}
		}
	}
	r.unharmed(term, 2)
}

// TestReal_ForgedSnapshot_IsTakenByNobody: a snapshot that would replace the whole state.
func TestReal_ForgedSnapshot_IsTakenByNobody(t *testing.T) {
	t.Parallel()
	r := formed(t)
	term := r.nodes[0].node.Status().Term
	other := fsm.NewStore()
	var content bytes.Buffer
	if err := other.Snapshot().Persist(&content); err != nil {
		t.Fatal(err)
	}
	for name, sender := range r.senders() {
		f, as := sender()
		for i, n := range r.nodes {
			configuration := raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{
				{ID: raft.ServerID(f.ID), Address: raft.ServerAddress(f.Port.Addr())},
			}})
			request := &raft.InstallSnapshotRequest{
				RPCHeader: f.Header(as), SnapshotVersion: 1, Term: term + 1, LastLogIndex: n.node.Status().CommitIndex + 1000,
				LastLogTerm: term + 1, Configuration: configuration, ConfigurationIndex: 1, Size: int64(content.Len()),
			}
			var response raft.InstallSnapshotResponse
			err := f.Wire.InstallSnapshot(raft.ServerID(r.memberID(i)), f.address(i), request, &response,
				bytes.NewReader(content.Bytes()))
			if err == nil && response.Success {
				t.Errorf("n%d takes the snapshot of %s", i, name)
			}
		}
	}
	r.unharmed(term, 2)
}

// TestReal_AbsurdTerm_EndsNoElections: a term that is next to the last one there is.
func TestReal_AbsurdTerm_EndsNoElections(t *testing.T) {
	t.Parallel()
	r := formed(t)
	leader := r.leader()
	follower := (leader + 1) % 3
	term := r.nodes[0].node.Status().Term
	for _, id := range []string{"eve.0123456789abc", r.memberID((leader + 2) % 3), r.memberID(leader)} {
		f := r.forge(id)
		_, _ = f.append(follower, id, math.MaxUint64-1)
		request := &raft.RequestVoteRequest{
			RPCHeader:          f.Header(id),
			Term:               math.MaxUint64 - 1,
			LastLogIndex:       1 << 40,
			LastLogTerm:        1 << 40,
			LeadershipTransfer: true,
		}
		var vote raft.RequestVoteResponse
		if err := f.Wire.RequestVote(raft.ServerID(r.memberID(follower)), f.address(follower), request, &vote); err == nil &&
			vote.Granted {
			t.Errorf("%s gets a vote in the last term", id)
		}
	}
	if refused := r.count(follower, "bivouac_raft_refused_messages_total"); refused < 6 {
		t.Errorf("%v messages refused are counted", refused)
	}
	r.unharmed(term, 2)
	r.kill(leader)
	r.put(follower, 3) // the next leader comes
}

// TestReal_ForgedVoteRequest_MovesNoTerm: neither the election of a stranger, nor one that it makes a
// member begin.
func TestReal_ForgedVoteRequest_MovesNoTerm(t *testing.T) {
	t.Parallel()
	r := formed(t)
	term := r.nodes[0].node.Status().Term
	for name, sender := range r.senders() {
		f, as := sender()
		for i := range r.nodes {
			var vote raft.RequestVoteResponse
			request := &raft.RequestVoteRequest{
				RPCHeader:          f.Header(as),
				Term:               term + 7,
				LastLogIndex:       1 << 40,
				LastLogTerm:        1 << 40,
				LeadershipTransfer: true,
			}
			if err := f.Wire.RequestVote(raft.ServerID(r.memberID(i)), f.address(i), request, &vote); err == nil &&
				vote.Granted {
				t.Errorf("n%d votes for %s", i, name)
			}
			var now raft.TimeoutNowResponse
			_ = f.Wire.TimeoutNow(raft.ServerID(r.memberID(i)), f.address(i), &raft.TimeoutNowRequest{RPCHeader: f.Header(as)},
				&now)
		}
	}
	r.unharmed(term, 2)
}

// TestReal_MemberWithoutVotes_WritesNothing: a member's certificate, with the member's id, is no
// leader's.
func TestReal_MemberWithoutVotes_WritesNothing(t *testing.T) {
	t.Parallel()
	r := formed(t)
	leader := r.leader()
	term := r.nodes[0].node.Status().Term
	f := r.forge(r.memberID((leader + 1) % 3))
	for _, i := range []int{leader, (leader + 2) % 3} {
		for _, of := range []uint64{term, term + 1} {
			if got, err := f.append(i, f.ID, of); err == nil && got.Success {
				t.Errorf("n%d takes an entry of term %d from a follower", i, of)
			}
		}
	}
	r.unharmed(term, 2)
}

// TestReal_ForgedRecords_StopNobody: a start of each member that no disk knows, told by a stranger.
func TestReal_ForgedRecords_StopNobody(t *testing.T) {
	t.Parallel()
	r := formed(t)
	leader := r.leader()
	term := r.nodes[0].node.Status().Term
	records := map[string]any{"nobody.0123456789abc": map[string]any{"acked": 1}}
	for i := range r.nodes {
		records[r.memberID(i)] = map[string]any{
			"start": map[string]any{"seq": 1 << 40, "nonce": "forged"},
			"acked": uint64(1 << 60),
		}
	}
	request, err := json.Marshal(map[string]any{"records": records})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"eve.0123456789abc", "n0.0123456789abc", r.memberID((leader + 1) % 3)} {
		f := r.forge(id)
		for i := range r.nodes {
			if _, err := f.call(i, "witness", string(request)); err == nil && r.memberID(i) != id {
				t.Errorf("n%d takes the records of %s", i, id)
			}
		}
	}
	began := time.Now() // a node that stops takes a moment
	eventually(t, func() bool { return time.Since(began) > 100*time.Millisecond }, func() string { return "" })
	r.unharmed(term, 2)
	for i := range r.nodes { // nothing of it is on any disk
		r.shutdown(i)
	}
	r.startAll()
	r.want(2)
}

// TestReal_ForgedJoin_MovesNobody: neither a stranger nor a member moves another member to its own
// address, or takes a member's name.
func TestReal_ForgedJoin_MovesNobody(t *testing.T) {
	t.Parallel()
	r := formed(t)
	leader := r.leader()
	term, before := r.nodes[0].node.Status().Term, fmt.Sprint(r.nodes[leader].node.Status().Servers)
	other := (leader + 2) % 3
	for _, id := range []string{"eve.0123456789abc", r.memberID((leader + 1) % 3)} {
		f := r.forge(id)
		for _, claimed := range []string{r.memberID(leader), r.memberID(other), fmt.Sprintf("n%d.0123456789abc", other)} {
			for i, n := range r.nodes {
				if f.Join(t.Context(), n.cfg.PeerAddress, claimed) == nil {
					t.Errorf("n%d takes the join of %s by %s", i, claimed, id)
				}
			}
		}
	}
	if now := fmt.Sprint(r.nodes[leader].node.Status().Servers); now != before {
		t.Errorf("the members were %s, and are %s", before, now)
	}
	r.unharmed(term, 2)
}

// TestReal_Hello_OfAStranger_TeachesNothing: addresses and processes are known of members alone.
func TestReal_Hello_OfAStranger_TeachesNothing(t *testing.T) {
	t.Parallel()
	r := formed(t)
	term := r.nodes[0].node.Status().Term
	f := r.forge("eve.0123456789abc")
	for i := range 50 {
		id := fmt.Sprintf("eve.%013d", i)
		hello := fmt.Sprintf(`{"member":{"id":%q,"name":"eve","address":"127.0.0.1:1"},"start":"x","fresh":true}`, id)
		if answer, err := f.call(0, "hello", hello); err != nil || !strings.Contains(answer, `"formed":true`) {
			t.Fatalf("a newcomer gets the answer %q, %v", answer, err)
		}
	}
	if addresses, starts := cluster.Learned(r.nodes[0].node); addresses > len(r.nodes) || starts > len(r.nodes) {
		t.Errorf("the node keeps %d addresses and %d starts of %d members", addresses, starts, len(r.nodes))
	}
	_ = f.Port.Close()
	r.unharmed(term, 2)
}

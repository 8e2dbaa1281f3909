package cluster_test

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// The certificates of the walk, in the order of its columns.
const (
	stranger = iota
	revoked
	removed
	nonvoter
	follower
	theLeader
	certificates
)

// walked has a cluster with one certificate of each kind.
type walked struct {
	*real
	forgers [certificates]*forger
	// asked is the follower that all of them call.
	asked int
}

// newWalked makes the certificates. The forgers that are no real members join through the leader.
func newWalked(t *testing.T) *walked {
	r := formed(t)
	leader := r.leader()
	w := &walked{real: r, asked: (leader + 1) % 3}
	w.forgers[stranger] = r.forge("eve.0123456789abc")
	w.forgers[revoked] = r.forge("n7.0123456789abc")
	w.forgers[removed] = r.forge("n8.0123456789abc")
	w.forgers[nonvoter] = r.forge("n9.0123456789abc")
	w.forgers[follower] = r.forge(r.memberID((leader + 2) % 3))
	w.forgers[theLeader] = r.forge(r.memberID(leader))
	for _, kind := range []int{removed, nonvoter} {
		f := w.forgers[kind]
		if err := f.Join(t.Context(), r.nodes[leader].cfg.PeerAddress, f.ID); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.nodes[leader].node.RemoveServer(t.Context(), "n8", cluster.RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	revoke := fsm.NewCommand(uuid.NewString(), time.Now(), "", &fsm.CertificateRevokeBody{Node: "n7"})
	if _, err := r.nodes[leader].node.Propose(t.Context(), revoke); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		status := r.nodes[w.asked].node.Status()
		return len(status.Servers) == 4 && len(r.nodes[w.asked].store.View().RevokedCertificates()) == 1
	}, func() string { return "the asked node knows the members" })
	return w
}

// call reports whether the asked node lets a certificate make a peer call.
func (w *walked) call(kind int, name string) bool {
	request := map[string]string{"transfer": `{"to":"nobody"}`, "remove": `{"name":"nobody"}`}[name]
	_, err := w.forgers[kind].call(w.asked, name, cmp.Or(request, "{}"))
	return err == nil || strings.Contains(err.Error(), "the peer answered 400") // the request makes no sense
}

// message reports whether the asked node lets a certificate send a message of Raft's: whether Raft
// sees it.
func (w *walked) message(kind int, name string) bool {
	const counter = "bivouac_raft_refused_messages_total"
	f, term := w.forgers[kind], w.nodes[w.asked].node.Status().Term
	to, at, header := raft.ServerID(w.memberID(w.asked)), f.address(w.asked), f.Header(f.ID)
	before := w.count(w.asked, counter)
	var err error
	switch name {
	case "AppendEntries":
		err = f.Wire.AppendEntries(to, at, &raft.AppendEntriesRequest{RPCHeader: header, Term: term},
			&raft.AppendEntriesResponse{})
	case "InstallSnapshot": // of what the node has
		request := &raft.InstallSnapshotRequest{
			RPCHeader:       header,
			SnapshotVersion: 1,
			Term:            term,
			LastLogIndex:    1,
			LastLogTerm:     1,
		}
		err = f.Wire.InstallSnapshot(to, at, request, &raft.InstallSnapshotResponse{}, bytes.NewReader(nil))
	case "RequestVote":
		err = f.Wire.RequestVote(to, at, &raft.RequestVoteRequest{RPCHeader: header, Term: term}, &raft.RequestVoteResponse{})
	case "RequestPreVote":
		err = f.Wire.(raft.WithPreVote).RequestPreVote(to, at, &raft.RequestPreVoteRequest{RPCHeader: header, Term: term},
			&raft.RequestPreVoteResponse{})
	case "TimeoutNow":
		err = f.Wire.TimeoutNow(to, at, &raft.TimeoutNowRequest{RPCHeader: header}, &raft.TimeoutNowResponse{})
	}
	return err == nil && w.count(w.asked, counter) == before
}

// namedCalls are the peer calls that the program's text names.
func namedCalls(t *testing.T) (names []string) {
	t.Helper()
	for dir, prefix := range map[string]string{".": "call", "peernet": "Call"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, found := range regexp.MustCompile(
				`(?m)^\s*(?:const )?`+prefix+`[A-Z]\w*\s*= "([a-z_]+)"`,
			).FindAllSubmatch(text, -1) {
				names = append(names, string(found[1]))
			}
		}
	}
	if len(names) < 17 {
		t.Errorf("only these calls are found: %v", names)
	}
	return names
}

// TestReal_WhoMayCall walks through all peer calls and all messages of Raft's with a certificate of
// each kind.
func TestReal_WhoMayCall(t *testing.T) {
	t.Parallel()
	w := newWalked(t)
	anybody, members, leader := "y.yyyy", "...yyy", ".....y"
	calls := []struct{ name, want string }{
		{
			"hello",
			anybody,
		}, {"voted", anybody}, {"promise", anybody}, {"join", anybody}, {"begin", anybody}, {"life", anybody},
		{"apply", members}, {"propose", members}, {"index", members}, {"term", members}, {"checksum", members},
		{"remove", members}, {"replace", members}, {"transfer", members}, {"observe", members}, {"records", members},
		{"events", members}, {"append_events", members},
		{"witness", leader},
	}
	messages := []struct{ name, want string }{
		{
			"AppendEntries",
			leader,
		}, {"InstallSnapshot", leader}, {"RequestVote", "....yy"}, {"RequestPreVote", "....yy"}, {"TimeoutNow", leader},
	}
	t.Logf("%-16s stranger, revoked, removed, nonvoter, follower, leader", "")
	walk := func(name, want string, may func(int, string) bool) {
		got := ""
		for kind := range certificates {
			if may(kind, name) {
				got += "y"
			} else {
				got += "."
			}
		}
		t.Logf("%-16s %s", name, got)
		if got != want {
			t.Errorf("%s: %s, want %s (stranger, revoked, removed, nonvoter, follower, leader)", name, got, want)
		}
	}
	walkedCalls := map[string]bool{}
	for _, c := range calls {
		walk(c.name, c.want, w.call)
		walkedCalls[c.name] = true
	}
	for _, name := range namedCalls(t) {
		if !walkedCalls[name] {
			t.Errorf("the peer call %q is not walked", name)
		}
	}
	for _, m := range messages {
		walk(m.name, m.want, w.message)
	}
	if keys := w.stolenKeys(); keys > 0 {
		t.Errorf("%d stolen keys", keys)
	}
}

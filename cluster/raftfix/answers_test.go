package raftfix

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

// peer is a transport that always answers yes, in the name of id, or with err.
type peer struct {
	*raft.InmemTransport
	id  string
	err error
	// beyond is added to the term of each answer.
	beyond uint64
}

func newPeer(id string) *peer {
	_, t := raft.NewInmemTransport("")
	return &peer{InmemTransport: t, id: id}
}

func (p *peer) header() raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(p.id)}
}

func (p *peer) AppendEntries(
	_ raft.ServerID,
	_ raft.ServerAddress,
	_ *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse,
) error {
	*resp = raft.AppendEntriesResponse{RPCHeader: p.header(), Term: 7 + p.beyond, LastLog: 9, Success: true}
	return p.err
}

func (p *peer) RequestVote(
	_ raft.ServerID,
	_ raft.ServerAddress,
	_ *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse,
) error {
	*resp = raft.RequestVoteResponse{RPCHeader: p.header(), Term: 7 + p.beyond, Granted: true}
	return p.err
}

func (p *peer) RequestPreVote(
	_ raft.ServerID,
	_ raft.ServerAddress,
	_ *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse,
) error {
	*resp = raft.RequestPreVoteResponse{RPCHeader: p.header(), Term: 7 + p.beyond, Granted: true}
	return p.err
}

// TestAnswers_CountOnlyFromWhoWasAsked: whatever another member says, or one that
// does not say who it is, is an error, and nothing of it reaches Raft.
func TestAnswers_CountOnlyFromWhoWasAsked(t *testing.T) {
	broken := errors.New("connection reset")
	for name, test := range map[string]struct {
		answered string
		err      error
		want     error
	}{
		"the member":        {"b.1", nil, nil},
		"its successor":     {"b.2", nil, errWrongMember},
		"another member":    {"c.1", nil, errWrongMember},
		"nobody":            {"", nil, errWrongMember},
		"nobody, an error":  {"", broken, broken},
		"a member's error":  {"b.1", broken, broken},
		"another's, broken": {"b.2", broken, broken},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(test.answered)
			p.err = test.err
			var wrong []raft.ServerID
			a := &Answers{Transport: p, Wrong: func(_ raft.ServerID, _ raft.ServerAddress, answered raft.ServerID) {
				wrong = append(wrong, answered)
			}}
			var entries raft.AppendEntriesResponse
			var vote raft.RequestVoteResponse
			var preVote raft.RequestPreVoteResponse
			for call, err := range map[string]error{
				"AppendEntries":  a.AppendEntries("b.1", "b:1", &raft.AppendEntriesRequest{}, &entries),
				"RequestVote":    a.RequestVote("b.1", "b:1", &raft.RequestVoteRequest{}, &vote),
				"RequestPreVote": a.RequestPreVote("b.1", "b:1", &raft.RequestPreVoteRequest{}, &preVote),
			} {
				if !errors.Is(err, test.want) {
					t.Errorf("%s: %v, want %v", call, err, test.want)
				}
			}
			good := test.want == nil
			if entries.Success != good || vote.Granted != good || preVote.Granted != good || (entries.Term == 7) != good {
				t.Errorf("Raft sees %+v, %+v, %+v", entries, vote, preVote)
			}
			if want := errors.Is(test.want, errWrongMember); (len(wrong) == 3) != want || !want && len(wrong) > 0 {
				t.Errorf("told of %q", wrong)
			}
		})
	}
}

// TestAnswers_AnErrorIsNoPreVote: hashicorp/raft counts one for granted when the
// peer's error says that it does not know the message.
func TestAnswers_AnErrorIsNoPreVote(t *testing.T) {
	p := newPeer("b.1")
	p.err = errors.New("unexpected command")
	a := &Answers{Transport: p}
	var resp raft.RequestPreVoteResponse
	err := a.RequestPreVote("b.1", "b:1", &raft.RequestPreVoteRequest{}, &resp)
	if err == nil || strings.Contains(err.Error(), "unexpected command") || resp.Granted {
		t.Errorf("%v, %+v", err, resp)
	}
}

// TestAnswers_AnAbsurdTermIsRefused: a candidate would take a later term from an answer, and stay in it
// for ever.
func TestAnswers_AnAbsurdTermIsRefused(t *testing.T) {
	for _, beyond := range []uint64{MaxTermStep - 7, MaxTermStep - 6, math.MaxUint64 - 8} {
		p := newPeer("b.1")
		p.beyond = beyond
		counted := 0
		a := &Answers{Transport: p, Absurd: func(raft.ServerID, uint64) { counted++ }}
		var entries raft.AppendEntriesResponse
		var vote raft.RequestVoteResponse
		var preVote raft.RequestPreVoteResponse
		refused := 0
		for _, err := range []error{
			a.AppendEntries("b.1", "b:1", &raft.AppendEntriesRequest{}, &entries),
			a.RequestVote("b.1", "b:1", &raft.RequestVoteRequest{}, &vote),
			a.RequestPreVote("b.1", "b:1", &raft.RequestPreVoteRequest{}, &preVote),
		} {
			if errors.Is(err, errAbsurdTerm) {
				refused++
			}
		}
		if want := map[bool]int{true: 3}[beyond+7 > MaxTermStep]; refused != want || counted != want {
			t.Errorf("term %d: %d refused, %d counted, want %d", beyond+7, refused, counted, want)
		}
		if beyond+7 > MaxTermStep && entries.Term+vote.Term+preVote.Term > 0 {
			t.Errorf("Raft sees %+v, %+v, %+v", entries, vote, preVote)
		}
	}
}

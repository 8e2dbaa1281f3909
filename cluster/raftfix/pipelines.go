package raftfix

import (
	"errors"

	"github.com/hashicorp/raft"
)

// Pipelines is a transport without pipelines; it avoids hashicorp/raft issue 612. When a pipeline's
// reader ends at a refusal, one more send can block for good. The peer then gets no entries while
// the leader leads, and the leader never shuts down. Without pipelines each message is answered
// before the next one. That costs no measurable throughput, and Answers can check each answer.
type Pipelines struct{ raft.Transport }

var _ raft.WithPreVote = (*Pipelines)(nil)

// AppendEntriesPipeline implements raft.Transport.
func (*Pipelines) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// RequestPreVote implements raft.WithPreVote.
func (p *Pipelines) RequestPreVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse,
) error {
	return preVoteOf(p.Transport, id, target, args, resp)
}

// Close implements raft.WithClose.
func (p *Pipelines) Close() error { return closeOf(p.Transport) }

func preVoteOf(
	t raft.Transport, id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse,
) error {
	if p, ok := t.(raft.WithPreVote); ok {
		return p.RequestPreVote(id, target, args, resp)
	}
	return errors.New("the transport knows no pre-votes")
}

func closeOf(t raft.Transport) error {
	if c, ok := t.(raft.WithClose); ok {
		return c.Close()
	}
	return nil
}

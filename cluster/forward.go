package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"bivouac.dev/bivouac/cluster/membership"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/raftfsm"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/requestid"
)

// applyResponse is an outcome as it is sent between nodes.
type applyResponse struct {
	// Certainty is wireNotCommitted, wireMaybeCommitted or wireCommitted.
	Certainty string      `json:"certainty"`
	Index     uint64      `json:"index,omitempty"`
	Term      uint64      `json:"term,omitempty"`
	Result    *fsm.Result `json:"result,omitempty"`
	Error     *fsm.Error  `json:"error,omitempty"`
}

const (
	wireNotCommitted   = "nothing_done"
	wireMaybeCommitted = "maybe_done"
	wireCommitted      = "done"

	// maxAnswerBytes bounds the answer to several commands. The rest of MaxCallBytes is for the
	// outcome that exceeds it.
	maxAnswerBytes = peernet.MaxCallBytes / 2
)

// proposeResponse is the result of Propose on the asked node.
type proposeResponse struct {
	Result fsm.Result `json:"result"`
	Error  *fsm.Error `json:"error,omitempty"`
}

// indexRequest asks for the leader's commit index.
type indexRequest struct {
	// Voter is the calling node's term, read after the reads began that wait for the index.
	Voter termResponse `json:"voter"`
}

// indexResponse carries the verified commit index of the leader.
type indexResponse struct {
	Leads bool   `json:"leads"`
	Index uint64 `json:"index,omitempty"`
	// Term is the term in which the leader's entry at Index was made.
	Term uint64 `json:"term,omitempty"`
}

// termResponse says in which term a voter is.
type termResponse struct {
	ID   string `json:"id"`
	Term uint64 `json:"term"`
}

// forward sends the command to the leader, together with others in flight. A call that was sent and
// not answered may have been applied.
func (n *Node) forward(ctx context.Context, l *leadership, data []byte) outcome {
	p := &proposal{data: data, leader: l, request: requestid.Of(ctx)}
	if !n.store.View().Active(fsm.VersionBatches) { // the leader may not know batches
		ctx, done := whileLeads(ctx, l)
		defer done()
		return n.callLeader(ctx, []*proposal{p})[0]
	}
	return n.outbox.send(ctx, p)
}

// forwardBatch sends the outbox's batches to the leader.
func (n *Node) forwardBatch(batch []*proposal, release func()) {
	ctx, cancel := context.WithTimeout(n.stopping, n.cfg.ProposeTimeout)
	defer cancel()
	calling, done := whileLeads(ctx, batch[0].leader)
	outcomes := n.callLeader(calling, batch)
	done()
	release()
	last, term := uint64(0), uint64(0)
	for _, a := range outcomes {
		if a.index > last {
			last, term = a.index, a.term
		}
	}
	for i, p := range batch {
		p.resolve(outcomes[i])
	}
	n.hintCommit(batch[0].leader, last, term)
}

// callLeader makes one call with a batch and returns the outcome of each command.
func (n *Node) callLeader(ctx context.Context, batch []*proposal) []outcome {
	l := batch[0].leader
	outcomes := make([]outcome, len(batch))
	counted := func(result string) { n.metrics.Forwarded.WithLabelValues(result).Add(float64(len(batch))) }
	ctx = peernet.WithRequests(ctx, requestsOf(batch))
	answer, err := n.network.Call(ctx, n.addressOf(l), callApply, entryOf(batch))
	if errors.Is(err, peernet.ErrNotSent) {
		counted("not_sent")
		return outcomes
	}
	if err == nil {
		if err = decodeOutcomes(answer, outcomes); err == nil {
			counted("answered")
			return outcomes
		}
		n.logger.Error(
			"cluster: the leader's answer can't be decoded", "peer", peernet.NodeName(l.id), "error", err,
		)
	} else {
		n.logger.Debug(
			"cluster: no answer to forwarded commands", "peer", peernet.NodeName(l.id), "error", err,
		)
	}
	counted("lost")
	for i := range outcomes {
		outcomes[i] = outcome{status: maybeCommitted}
	}
	return outcomes
}

// decodeOutcomes decodes the answer to len(outcomes) commands.
func decodeOutcomes(answer []byte, outcomes []outcome) error {
	list := make([]applyResponse, 0, len(outcomes))
	if len(outcomes) == 1 {
		list = list[:1]
		if err := json.Unmarshal(answer, &list[0]); err != nil {
			return err
		}
	} else if err := json.Unmarshal(answer, &list); err != nil {
		return err
	}
	if len(list) != len(outcomes) {
		return fmt.Errorf("%d answers to %d commands", len(list), len(outcomes))
	}
	for i, w := range list {
		a, err := w.outcome()
		if err != nil {
			return err
		}
		outcomes[i] = a
	}
	return nil
}

func (w applyResponse) outcome() (outcome, error) {
	a := outcome{index: w.Index, term: w.Term, err: w.Error}
	if w.Result != nil {
		a.result = *w.Result
	}
	switch w.Certainty {
	case wireNotCommitted:
		a.status = notCommitted
	case wireMaybeCommitted:
		a.status = maybeCommitted
	case wireCommitted:
		a.status = committed
	default:
		return outcome{status: maybeCommitted}, fmt.Errorf("unknown certainty %q", w.Certainty)
	}
	return a, nil
}

// responseOf shares the outcome's result.
func responseOf(a *outcome) applyResponse {
	w := applyResponse{Index: a.index, Term: a.term, Error: a.err}
	switch a.status {
	case notCommitted:
		w.Certainty = wireNotCommitted
	case maybeCommitted:
		w.Certainty = wireMaybeCommitted
	case committed:
		w.Certainty = wireCommitted
		w.Result = &a.result
	}
	return w
}

// encodeOutcomes encodes one outcome as an object and several as a list. An outcome that would make
// the answer too long becomes unknown: the proposer asks again, for fewer commands, and gets the
// recorded result.
func encodeOutcomes(outcomes []outcome) ([]byte, error) {
	list := make([]applyResponse, len(outcomes))
	for i := range outcomes {
		list[i] = responseOf(&outcomes[i])
	}
	if len(list) == 1 {
		return json.Marshal(&list[0])
	}
	answer, err := json.Marshal(list)
	if err != nil || len(answer) <= maxAnswerBytes {
		return answer, err
	}
	return encodeBounded(list)
}

// encodeBounded is encodeOutcomes for what is too long.
func encodeBounded(list []applyResponse) ([]byte, error) {
	answer := []byte{'['}
	for i, w := range list {
		if i > 0 {
			answer = append(answer, ',')
		}
		one, err := json.Marshal(w)
		if err == nil && i > 0 && len(answer)+len(one) > maxAnswerBytes {
			one, err = json.Marshal(responseOf(&outcome{status: maybeCommitted}))
		}
		if err != nil {
			return nil, err
		}
		answer = append(answer, one...)
	}
	return append(answer, ']'), nil
}

// decodeForeign decodes a command from another node. An unknown command comes from a newer program.
func decodeForeign(request []byte) (fsm.Command, *fsm.Error) {
	if len(request) > fsm.MaxCommandBytes {
		return fsm.Command{}, fsm.Errorf(fsm.CodeInvalid, "the command is larger than %d bytes", fsm.MaxCommandBytes)
	}
	cmd, err := fsm.DecodeCommand(request)
	if err != nil {
		return cmd, fsm.Errorf(fsm.CodeProtocol, "%v", err)
	}
	return cmd, validate(cmd)
}

// handleApply answers callApply. It never forwards: the calling node decides how long to retry.
func (n *Node) handleApply(ctx context.Context, from string, request []byte) ([]byte, error) {
	parts, err := raftfsm.SplitCommands(request)
	if err != nil {
		return nil, err
	}
	outcomes := make([]outcome, len(parts))
	ctx, leave, err := n.enter(ctx, n.cfg.ProposeTimeout)
	if err != nil {
		return encodeOutcomes(outcomes)
	}
	defer leave()
	n.logForwarded(ctx, from, requestsIn(ctx, len(parts)), n.applyForeign(ctx, parts, outcomes), outcomes)
	return encodeOutcomes(outcomes)
}

// applyForeign applies commands of another node, stores their outcomes and returns their types.
func (n *Node) applyForeign(ctx context.Context, parts [][]byte, outcomes []outcome) (types []fsm.CommandType) {
	types = make([]fsm.CommandType, len(parts))
	answers := make(chan slotOutcome, len(parts))
	proposals := make([]*proposal, 0, len(parts))
	proofs := make([][]byte, len(parts))
	for i, part := range parts {
		proofs[i], part = cutProof(part)
		cmd, refusal := decodeForeign(part)
		types[i] = cmd.Type
		if refusal != nil {
			outcomes[i] = outcome{err: refusal}
			continue
		}
		proposals = append(
			proposals, &proposal{cmd: cmd, data: part, decoded: true, slot: i, done: answers},
		)
	}
	if len(proposals) == 0 || !n.awaitOpen(ctx) {
		return types
	}
	// Only now this node's store has the protocol version and every key of earlier terms.
	proposals = slices.DeleteFunc(proposals, func(p *proposal) bool {
		refusal := n.admit(p.cmd)
		if refusal == nil {
			refusal = n.authorised(p.cmd, p.data, proofs[p.slot])
		}
		if refusal != nil {
			outcomes[p.slot] = outcome{err: refusal}
		}
		return refusal != nil
	})
	if len(proposals) == 0 {
		return types
	}
	for _, p := range proposals {
		outcomes[p.slot] = outcome{status: maybeCommitted}
	}
	n.entries.add(proposals...)
	for range proposals {
		select {
		case d := <-answers:
			outcomes[d.slot] = d.outcome
		case <-ctx.Done():
			for _, p := range proposals {
				if n.entries.withdraw(p) {
					outcomes[p.slot] = outcome{}
				}
			}
			return types
		}
	}
	return types
}

// handlePropose answers callPropose, for programs that are not nodes.
func (n *Node) handlePropose(ctx context.Context, request []byte) ([]byte, error) {
	proof, request := cutProof(request)
	cmd, refusal := decodeForeign(request)
	if refusal != nil {
		return json.Marshal(proposeResponse{Error: refusal})
	}
	result, refusal := n.propose(ctx, cmd, encoded{data: request, proof: proof, foreign: true})
	return json.Marshal(proposeResponse{Result: result, Error: refusal})
}

// handleIndex answers callIndex.
func (n *Node) handleIndex(ctx context.Context, request []byte) ([]byte, error) {
	var asked indexRequest
	if len(request) > 0 {
		if err := json.Unmarshal(request, &asked); err != nil {
			return nil, fmt.Errorf("reading the call: %w", err)
		}
	}
	ctx, leave, err := n.enter(ctx, roundTimeout)
	if err != nil {
		return json.Marshal(indexResponse{})
	}
	defer leave()
	index, err := n.indexFor(ctx, asked.Voter)
	if err != nil {
		return json.Marshal(indexResponse{})
	}
	response := indexResponse{Leads: true, Index: index}
	if t := n.terms.get(); t != nil {
		response.Term = t.number
	}
	return json.Marshal(response)
}

// indexFor returns the commit index for a node that reported its term. Among three voters that
// answer completes the majority; among more, the round is shared.
func (n *Node) indexFor(ctx context.Context, claimed termResponse) (uint64, error) {
	if claimed.ID == "" || membership.Voters(n.servers()) > 3 {
		return n.leaderReads.join(ctx, n.stopping)
	}
	return n.verified(claimed)
}

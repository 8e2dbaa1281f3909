package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"bivouac.dev/bivouac/fsm"
)

// The peer calls. Requests and answers are JSON.
const (
	callApply    = "apply"    // to the leader: an encoded command; applyResponse
	callPropose  = "propose"  // to any node: an encoded command; proposeResponse
	callIndex    = "index"    // to the leader: nothing; indexResponse
	callTerm     = "term"     // to a voter, by the leader: {}; termResponse
	callHello    = "hello"    // to any node: helloRequest; helloResponse
	callPromise  = "promise"  // to a node without state: promiseRequest; promiseResponse
	callJoin     = "join"     // to any node: joinRequest; changeResponse
	callRemove   = "remove"   // to any node: removeRequest; changeResponse
	callTransfer = "transfer" // to any node: nothing; changeResponse
)

// applyResponse is an attempt, on its way between nodes.
type applyResponse struct {
	Certainty string      `json:"certainty"` // see certaintyNames
	Index     uint64      `json:"index,omitempty"`
	Result    *fsm.Result `json:"result,omitempty"`
	Error     *fsm.Error  `json:"error,omitempty"`
}

const (
	wireNothing = "nothing_done"
	wireMaybe   = "maybe_done"
	wireDone    = "done"
)

// proposeResponse is what Propose returned on the node asked.
type proposeResponse struct {
	Result fsm.Result `json:"result"`
	Error  *fsm.Error `json:"error,omitempty"`
}

// indexResponse carries the verified commit index of the leader.
type indexResponse struct {
	Leads bool   `json:"leads"`
	Index uint64 `json:"index,omitempty"`
}

// termResponse says in which term a voter is.
type termResponse struct {
	ID   string `json:"id"`
	Term uint64 `json:"term"`
}

// forward sends the command to the leader. Whatever is not a clear answer may
// have been applied, unless the call never left.
func (n *Node) forward(ctx context.Context, l *leadership, data []byte) attempt {
	ctx, done := whileLeads(ctx, l)
	defer done()
	answer, err := n.network.Call(ctx, n.addressOf(l), callApply, data)
	if errors.Is(err, errNotSent) {
		n.metrics.forwarded.WithLabelValues("not_sent").Inc()
		return attempt{}
	}
	if err != nil {
		n.metrics.forwarded.WithLabelValues("lost").Inc()
		n.logger.Debug("cluster: forwarded command without an answer", "peer", nodeName(l.id), "error", err)
		return attempt{certainty: maybeDone}
	}
	a, err := decodeAttempt(answer)
	if err != nil {
		n.metrics.forwarded.WithLabelValues("lost").Inc()
		n.logger.Error("cluster: the leader's answer makes no sense", "peer", nodeName(l.id), "error", err)
		return a
	}
	n.metrics.forwarded.WithLabelValues("answered").Inc()
	return a
}

func decodeAttempt(answer []byte) (attempt, error) {
	unclear := attempt{certainty: maybeDone}
	var w applyResponse
	if err := json.Unmarshal(answer, &w); err != nil {
		return unclear, err
	}
	a := attempt{index: w.Index, err: w.Error}
	if w.Result != nil {
		a.result = *w.Result
	}
	switch w.Certainty {
	case wireNothing:
		a.certainty = nothingDone
	case wireMaybe:
		a.certainty = maybeDone
	case wireDone:
		a.certainty = done
	default:
		return unclear, fmt.Errorf("unknown certainty %q", w.Certainty)
	}
	return a, nil
}

func encodeAttempt(a attempt) ([]byte, error) {
	w := applyResponse{Index: a.index, Error: a.err}
	switch a.certainty {
	case nothingDone:
		w.Certainty = wireNothing
	case maybeDone:
		w.Certainty = wireMaybe
	case done:
		w.Certainty = wireDone
		w.Result = &a.result
	}
	return json.Marshal(w)
}

// handle is the node's Handler: it answers the peer calls.
func (n *Node) handle(ctx context.Context, from, name string, request []byte) ([]byte, error) {
	switch name {
	case callApply:
		return n.handleApply(ctx, request)
	case callPropose:
		return n.handlePropose(ctx, request)
	case callIndex:
		return n.handleIndex(ctx)
	case callTerm:
		return answer(request, func(struct{}) (termResponse, error) { return n.handleTerm() })
	case callChecksum:
		return answer(request, func(struct{}) (checksumResponse, error) { return n.handleChecksum() })
	case callHello:
		return answer(request, func(r helloRequest) (helloResponse, error) { return n.handleHello(from, r) })
	case callPromise:
		return answer(request, func(r promiseRequest) (promiseResponse, error) { return n.handlePromise(from, r) })
	case callJoin:
		return answer(request, func(r joinRequest) (changeResponse, error) { return n.handleJoin(ctx, from, r) })
	case callRemove:
		return answer(request, func(r removeRequest) (changeResponse, error) {
			return changeResponse{Error: optional(n.RemoveServer(ctx, r.Name))}, nil
		})
	case callTransfer:
		return answer(request, func(struct{}) (changeResponse, error) {
			return changeResponse{Error: optional(n.TransferLeadership(ctx))}, nil
		})
	}
	return nil, fmt.Errorf("unknown peer call %q", name)
}

// answer decodes a request, has fn answer it and encodes that.
func answer[Q, A any](request []byte, fn func(Q) (A, error)) ([]byte, error) {
	var q Q
	if err := json.Unmarshal(request, &q); err != nil {
		return nil, fmt.Errorf("reading the call: %w", err)
	}
	a, err := fn(q)
	if err != nil {
		return nil, err
	}
	return json.Marshal(a)
}

// optional is err as data, nil for nil.
func optional(err error) *fsm.Error {
	if err == nil {
		return nil
	}
	return asError(err)
}

// decodeForeign reads a command another node sent. One this node does not know
// comes from a newer program.
func decodeForeign(request []byte) (fsm.Command, *fsm.Error) {
	if len(request) > maxCommandBytes {
		return fsm.Command{}, fsm.Errorf(fsm.CodeInvalid, "the command is larger than %d bytes", maxCommandBytes)
	}
	cmd, err := fsm.DecodeCommand(request)
	if err != nil {
		return cmd, fsm.Errorf(fsm.CodeProtocol, "%v", err)
	}
	return cmd, validate(cmd)
}

// handleApply answers callApply. It never forwards: the asking node knows best
// how long to go on.
func (n *Node) handleApply(ctx context.Context, request []byte) ([]byte, error) {
	cmd, refusal := decodeForeign(request)
	if refusal != nil {
		return encodeAttempt(attempt{err: refusal})
	}
	ctx, leave, err := n.enter(ctx, n.cfg.ProposeTimeout)
	if err != nil {
		return encodeAttempt(attempt{})
	}
	defer leave()
	return encodeAttempt(n.apply(ctx, cmd, request))
}

// handlePropose answers callPropose, for programs that are not nodes.
func (n *Node) handlePropose(ctx context.Context, request []byte) ([]byte, error) {
	cmd, refusal := decodeForeign(request)
	if refusal != nil {
		return json.Marshal(proposeResponse{Error: refusal})
	}
	result, err := n.Propose(ctx, cmd)
	return json.Marshal(proposeResponse{Result: result, Error: optional(err)})
}

// handleIndex answers callIndex.
func (n *Node) handleIndex(ctx context.Context) ([]byte, error) {
	ctx, leave, err := n.enter(ctx, roundTimeout)
	if err != nil {
		return json.Marshal(indexResponse{})
	}
	defer leave()
	index, err := n.indexes.join(ctx)
	if err != nil {
		return json.Marshal(indexResponse{})
	}
	return json.Marshal(indexResponse{Leads: true, Index: index})
}

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/fsm"
)

// The peer calls. Requests and answers are JSON.
const (
	callApply    = "apply"    // to the leader: joinCommands; applyResponse, or a list of them
	callPropose  = "propose"  // to any node: an encoded command; proposeResponse
	callIndex    = "index"    // to the leader: indexRequest, or nothing; indexResponse
	callTerm     = "term"     // to a voter, by the leader: {}; termResponse
	callHello    = "hello"    // to any node: helloRequest; helloResponse
	callPromise  = "promise"  // to a node without state: promiseRequest; promiseResponse
	callJoin     = "join"     // to any node: joinRequest; changeResponse
	callRemove   = "remove"   // to any node: removeRequest; changeResponse
	callReplace  = "replace"  // to any node: replaceRequest; changeResponse
	callTransfer = "transfer" // to any node: transferRequest; changeResponse
	callBegin    = "begin"    // to any node: beginRequest; beginResponse
	callLife     = "life"     // to any node: {}; lifeResponse
	callWitness  = "witness"  // to a member, by the leader: witnessRequest; {}
)

// applyResponse is an attempt, on its way between nodes.
type applyResponse struct {
	Certainty string      `json:"certainty"` // see certaintyNames
	Index     uint64      `json:"index,omitempty"`
	Term      uint64      `json:"term,omitempty"`
	Result    *fsm.Result `json:"result,omitempty"`
	Error     *fsm.Error  `json:"error,omitempty"`
}

const (
	wireNothing = "nothing_done"
	wireMaybe   = "maybe_done"
	wireDone    = "done"

	// maxAnswerBytes bounds the answer to several commands; the room up to
	// maxCallBytes is for the one that passes it.
	maxAnswerBytes = maxCallBytes / 2
)

// proposeResponse is what Propose returned on the node asked.
type proposeResponse struct {
	Result fsm.Result `json:"result"`
	Error  *fsm.Error `json:"error,omitempty"`
}

// indexRequest asks for the leader's commit index.
type indexRequest struct {
	// Voter is the asking node's own term, as of a moment after the reads began
	// that wait for the index.
	Voter termResponse `json:"voter"`
}

// indexResponse carries the verified commit index of the leader.
type indexResponse struct {
	Leads bool   `json:"leads"`
	Index uint64 `json:"index,omitempty"`
	// Term is the leader's, in which the entry at Index was made.
	Term uint64 `json:"term,omitempty"`
}

// termResponse says in which term a voter is.
type termResponse struct {
	ID   string `json:"id"`
	Term uint64 `json:"term"`
}

// forward sends the command to the leader, together with others that are on
// their way at the same time. Whatever is not a clear answer may have been
// applied, unless the call never left.
func (n *Node) forward(ctx context.Context, l *leadership, data []byte) attempt {
	p := &parcel{data: data, leader: l}
	if n.store.View().ProtocolVersion() < batchVersion { // the leader may not know batches
		ctx, done := whileLeads(ctx, l)
		defer done()
		return n.callLeader(ctx, []*parcel{p})[0]
	}
	return n.outbox.send(ctx, p)
}

// forwardBatch carries the outbox's batches to the leader.
func (n *Node) forwardBatch(batch []*parcel, release func()) {
	ctx, cancel := context.WithTimeout(n.stopping, n.cfg.ProposeTimeout)
	defer cancel()
	calling, done := whileLeads(ctx, batch[0].leader)
	attempts := n.callLeader(calling, batch)
	done()
	release()
	here, last, term := make(chan struct{}), uint64(0), uint64(0)
	for _, a := range attempts {
		if a.index > last {
			last, term = a.index, a.term
		}
	}
	for i, p := range batch {
		attempts[i].here = here
		p.deliver(attempts[i])
	}
	n.learnCommit(batch[0].leader, last, term)
	// Whoever waits began before this batch left, so nobody waits any longer.
	if last > 0 && n.store.Wait(ctx, last) == nil {
		close(here)
	}
}

// callLeader makes one call with a batch and gives what became of each command.
func (n *Node) callLeader(ctx context.Context, batch []*parcel) []attempt {
	l := batch[0].leader
	attempts := make([]attempt, len(batch))
	counted := func(result string) { n.metrics.forwarded.WithLabelValues(result).Add(float64(len(batch))) }
	answer, err := n.network.Call(ctx, n.addressOf(l), callApply, entryOf(batch))
	if errors.Is(err, errNotSent) {
		counted("not_sent")
		return attempts
	}
	if err == nil {
		if err = decodeAttempts(answer, attempts); err == nil {
			counted("answered")
			return attempts
		}
		n.logger.Error("cluster: the leader's answer makes no sense", "peer", nodeName(l.id), "error", err)
	} else {
		n.logger.Debug("cluster: forwarded commands without an answer", "peer", nodeName(l.id), "error", err)
	}
	counted("lost")
	for i := range attempts {
		attempts[i] = attempt{certainty: maybeDone}
	}
	return attempts
}

// decodeAttempts reads what encodeAttempts wrote about as many commands.
func decodeAttempts(answer []byte, attempts []attempt) error {
	list := make([]applyResponse, 0, len(attempts))
	if len(attempts) == 1 {
		list = list[:1]
		if err := json.Unmarshal(answer, &list[0]); err != nil {
			return err
		}
	} else if err := json.Unmarshal(answer, &list); err != nil {
		return err
	}
	if len(list) != len(attempts) {
		return fmt.Errorf("%d answers to %d commands", len(list), len(attempts))
	}
	for i, w := range list {
		a, err := w.attempt()
		if err != nil {
			return err
		}
		attempts[i] = a
	}
	return nil
}

func (w applyResponse) attempt() (attempt, error) {
	a := attempt{index: w.Index, term: w.Term, err: w.Error}
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
		return attempt{certainty: maybeDone}, fmt.Errorf("unknown certainty %q", w.Certainty)
	}
	return a, nil
}

func responseOf(a attempt) applyResponse {
	w := applyResponse{Index: a.index, Term: a.term, Error: a.err}
	switch a.certainty {
	case nothingDone:
		w.Certainty = wireNothing
	case maybeDone:
		w.Certainty = wireMaybe
	case done:
		w.Certainty = wireDone
		w.Result = &a.result
	}
	return w
}

// encodeAttempts answers one command with an object and several with a list.
// What would make the answer too long is said to be unknown: the proposer asks
// again, for fewer, and gets the recorded result.
func encodeAttempts(attempts []attempt) ([]byte, error) {
	if len(attempts) == 1 {
		return json.Marshal(responseOf(attempts[0]))
	}
	answer := []byte{'['}
	for i, a := range attempts {
		if i > 0 {
			answer = append(answer, ',')
		}
		one, err := json.Marshal(responseOf(a))
		if err == nil && i > 0 && len(answer)+len(one) > maxAnswerBytes {
			one, err = json.Marshal(responseOf(attempt{certainty: maybeDone}))
		}
		if err != nil {
			return nil, err
		}
		answer = append(answer, one...)
	}
	return append(answer, ']'), nil
}

// handle is the node's Handler: it answers the peer calls.
func (n *Node) handle(ctx context.Context, from, name string, request []byte) ([]byte, error) {
	if err := n.directed(ctx, from); err != nil {
		return nil, err
	}
	switch name {
	case callBegin:
		return answer(request, func(r beginRequest) (beginResponse, error) { return n.handleBegin(ctx, from, r) })
	case callLife:
		return answer(request, func(struct{}) (lifeResponse, error) { return n.handleLife(), nil })
	case callWitness:
		return answer(request, n.handleWitness)
	case callApply:
		return n.handleApply(ctx, request)
	case callPropose:
		return n.handlePropose(ctx, request)
	case callIndex:
		return n.handleIndex(ctx, request)
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
			return changeResponse{Error: optional(n.RemoveServer(ctx, r.Name, r.RemoveOptions))}, nil
		})
	case callReplace:
		return answer(request, func(r replaceRequest) (changeResponse, error) {
			return changeResponse{Error: optional(n.ReplaceServer(ctx, r.Old, r.New, r.RemoveOptions))}, nil
		})
	case callTransfer:
		return answer(request, func(r transferRequest) (changeResponse, error) {
			return changeResponse{Error: optional(n.TransferLeadership(ctx, r.To))}, nil
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
	parts, err := splitCommands(request)
	if err != nil {
		return nil, err
	}
	attempts := make([]attempt, len(parts))
	ctx, leave, err := n.enter(ctx, n.cfg.ProposeTimeout)
	if err != nil {
		return encodeAttempts(attempts)
	}
	defer leave()
	n.applyForeign(ctx, parts, attempts)
	return encodeAttempts(attempts)
}

// applyForeign applies commands another node sent and notes what became of each.
func (n *Node) applyForeign(ctx context.Context, parts [][]byte, attempts []attempt) {
	answers := make(chan delivery, len(parts))
	parcels := make([]*parcel, 0, len(parts))
	for i, part := range parts {
		cmd, refusal := decodeForeign(part)
		if refusal == nil {
			refusal = n.admit(cmd)
		}
		if refusal != nil {
			attempts[i] = attempt{err: refusal}
			continue
		}
		parcels = append(parcels, &parcel{cmd: cmd, data: part, exact: true, slot: i, done: answers})
	}
	if len(parcels) == 0 || !n.awaitOpen(ctx) {
		return
	}
	for _, p := range parcels {
		attempts[p.slot] = attempt{certainty: maybeDone}
	}
	n.entries.add(parcels...)
	for range parcels {
		select {
		case d := <-answers:
			attempts[d.slot] = d.attempt
		case <-ctx.Done():
			for _, p := range parcels {
				if n.entries.withdraw(p) {
					attempts[p.slot] = attempt{}
				}
			}
			return
		}
	}
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

// indexFor gives the commit index to a node that told its term: among three that
// is all there is to know, among more the other voters' words can be shared.
func (n *Node) indexFor(ctx context.Context, told termResponse) (uint64, error) {
	voters := 0
	for _, s := range n.servers() {
		if s.Suffrage == raft.Voter {
			voters++
		}
	}
	if told.ID == "" || voters > 3 {
		return n.indexes.join(ctx, n.stopping)
	}
	return n.verified(told)
}

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/senders"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/requestid"
)

// The peer calls. Requests and answers are JSON.
const (
	callApply     = "apply"    // to the leader: raftfsm.JoinCommands; applyResponse, or a list of them
	callPropose   = "propose"  // to any node: an encoded command; proposeResponse
	callHello     = "hello"    // to any node: helloRequest; helloResponse
	callPromise   = "promise"  // to a node without state: promiseRequest; promiseResponse
	callJoin      = "join"     // to any node: joinRequest; changeResponse
	callRemove    = "remove"   // to any node: removeRequest; changeResponse
	callReplace   = "replace"  // to any node: replaceRequest; changeResponse
	callTransfer  = "transfer" // to any node: transferRequest; changeResponse
	callBegin     = "begin"    // to any node: beginRequest; beginResponse
	callLife      = "life"     // to any node: {}; lifeResponse
	callRecords   = "witness"  // to a member, by the leader: recordsRequest; {}
	callRecordsOf = "records"  // to a member: recordsOfRequest; recordsOfResponse
	callVoted     = "voted"    // to any node: {}; senders.Voted
	callEvents    = "events"   // to a member: eventsRequest; events, each behind its length
	// callAppendEvents is to the leader: an encoded command; appendResponse.
	callAppendEvents = "append_events"
)

// handle is the node's peernet.Handler: it answers the peer calls.
func (n *Node) handle(ctx context.Context, from, name string, request []byte) ([]byte, error) {
	if err := n.directed(ctx, from); err != nil {
		return nil, err
	}
	if err := n.admitCaller(ctx, from, name); err != nil {
		return nil, err
	}
	switch name {
	case callBegin:
		return answer(
			request, func(r beginRequest) (beginResponse, error) { return n.handleBegin(ctx, from, r) },
		)
	case callLife:
		return answer(request, func(struct{}) (lifeResponse, error) { return n.handleLife(), nil })
	case callRecords:
		return answer(
			request, func(r recordsRequest) (struct{}, error) { return n.handleRecords(ctx, r) },
		)
	case callRecordsOf:
		ctx = withCaller(ctx, request)
		return answer(
			request, func(r recordsOfRequest) (recordsOfResponse, error) { return n.handleRecordsOf(ctx, r) },
		)
	case callVoted:
		return answer(request, func(struct{}) (senders.Voted, error) { return n.senders.Voted() })
	case callEvents:
		return n.handleEvents(request)
	case callAppendEvents:
		return n.handleAppendEvents(ctx, request)
	case callApply:
		return n.handleApply(ctx, from, request)
	case callPropose:
		return n.handlePropose(ctx, request)
	case peernet.CallIndex:
		return n.handleIndex(ctx, request)
	case peernet.CallTerm:
		return answer(request, func(struct{}) (termResponse, error) { return n.handleTerm() })
	case callChecksum:
		return answer(request, func(struct{}) (checksumResponse, error) { return n.handleChecksum() })
	case callHello:
		return answer(
			request, func(r helloRequest) (helloResponse, error) { return n.handleHello(from, r) },
		)
	case callPromise:
		return answer(
			request, func(r promiseRequest) (promiseResponse, error) { return n.handlePromise(from, r) },
		)
	case callJoin:
		return answer(
			request, func(r joinRequest) (changeResponse, error) { return n.handleJoin(ctx, from, r) },
		)
	case callRemove:
		ctx = withCaller(n.forwardedChange(ctx, from, name), request)
		return answer(request, func(r removeRequest) (changeResponse, error) {
			return changeResponse{Error: optional(n.RemoveServer(ctx, r.Name, r.RemoveOptions))}, nil
		})
	case callReplace:
		ctx = withCaller(n.forwardedChange(ctx, from, name), request)
		return answer(request, func(r replaceRequest) (changeResponse, error) {
			return changeResponse{Error: optional(n.ReplaceServer(ctx, r.Old, r.New, r.RemoveOptions))}, nil
		})
	case callObserve:
		ctx = withCaller(ctx, request)
		return answer(request, func(r observeRequest) (observeResponse, error) { return n.handleObserve(ctx, r) })
	case callTransfer:
		ctx = withCaller(n.forwardedChange(ctx, from, name), request)
		return answer(request, func(r transferRequest) (changeResponse, error) {
			return changeResponse{Error: optional(n.TransferLeadership(ctx, r.To))}, nil
		})
	}
	return nil, errUnknownCall(name)
}

// errUnknownCall is the answer to a call that the program does not know (senders).
func errUnknownCall(name string) error { return fmt.Errorf("unknown peer call %q", name) }

// answer decodes a request, calls fn and encodes its response.
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

// optional converts err for a response, nil for nil.
func optional(err error) *fsm.Error {
	if err == nil {
		return nil
	}
	return asError(err)
}

// callers are those who may make a peer call.
type callers int

const (
	// byAnybody: whoever has a certificate of the cluster's CA that is not revoked. Such a call stores
	// nothing about a caller that is no member.
	byAnybody callers = iota
	// byMembers: members of the configuration known here, nonvoters and this node too.
	byMembers
	// byLeader: the leader that this node follows.
	byLeader
)

func (c callers) String() string {
	return [...]string{"anybody", "members", "the leader"}[c]
}

// callersOf is the table of who may make each peer call. A revoked certificate makes none: the port
// refuses it. A removed node is nobody's member. senders/ has the same for Raft's messages.
func callersOf(call string) (may callers, known bool) {
	switch call {
	case
		callHello,   // newcomers find the cluster
		callVoted,   // and whom to believe in it
		callPromise, // nodes without a configuration form one
		callJoin,    // as itself, as a nonvoter
		callBegin,   // before Raft starts: nobody knows the members yet
		callLife:
		return byAnybody, true
	case callApply, callPropose, peernet.CallIndex, peernet.CallTerm, callChecksum, callEvents, callAppendEvents,
		callRemove, callReplace, callTransfer, callObserve, callRecordsOf: // the last five need an operator's key too
		return byMembers, true
	case callRecords:
		return byLeader, true
	}
	return byLeader, false
}

// admitCaller refuses a peer call that its caller may not make. name is the node of the certificate.
func (n *Node) admitCaller(ctx context.Context, name, call string) error {
	may, known := callersOf(call)
	if !known {
		return errUnknownCall(call)
	}
	if may == byAnybody {
		return nil
	}
	from, _ := peernet.Parties(ctx)
	if may == byMembers && from == "" && name == n.cfg.NodeName {
		return nil // a program beside this node
	}
	is, servers := byAnybody, n.servers()
	for _, s := range servers {
		if from != "" && string(s.ID) != from || peernet.NodeName(s.ID) != name {
			continue
		}
		is = byMembers
		if _, leader := n.raft.Load().LeaderWithID(); leader == s.ID && s.ID != n.id {
			is = byLeader
		}
	}
	if is >= may {
		return nil
	}
	return fmt.Errorf("%w: %q is for %s, and node %q is not one of them here", peernet.ErrUnwelcome, call, may, name)
}

// requestsOf lists the request ids of a batch as a call carries them: one for each command, empty
// where there is none, and as many as there is room for.
func requestsOf(batch []*proposal) string {
	var b strings.Builder
	named := false
	for i, p := range batch {
		if b.Len()+1+len(p.request) > peernet.MaxRequests {
			break
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(p.request)
		named = named || p.request != ""
	}
	if !named {
		return ""
	}
	return b.String()
}

// requestsIn reads what a call carried, for count commands. An id that is not well-formed is left
// out.
func requestsIn(ctx context.Context, count int) []string {
	ids := make([]string, count)
	text := peernet.Requests(ctx)
	if text == "" {
		return ids
	}
	for i, id := range strings.SplitN(text, ",", count+1)[:min(count, strings.Count(text, ",")+1)] {
		if requestid.Valid(id) {
			ids[i] = id
		}
	}
	return ids
}

// logForwarded logs the commands of a request that another node took, at DEBUG those that are
// committed: that node has a line of the request, unless there are many.
func (n *Node) logForwarded(
	ctx context.Context, from string, requests []string, types []fsm.CommandType, outcomes []outcome,
) {
	for i, id := range requests {
		a, level := outcomes[i], slog.LevelInfo
		if a.err == nil && a.status == committed {
			level = slog.LevelDebug
		}
		if id == "" || !n.logger.Enabled(ctx, level) {
			continue
		}
		attrs := []any{"request", id, "peer", from, "type", types[i]}
		switch {
		case a.err != nil:
			attrs = append(attrs, "error", a.err)
		case a.status == committed:
			attrs = append(attrs, "index", a.index)
		default:
			attrs = append(attrs, "error", "not committed here")
		}
		n.logger.Log(ctx, level, "cluster: command of a request to another node", attrs...)
	}
}

// forwardedChange is the context of a membership change that another node sent, with its request.
func (n *Node) forwardedChange(ctx context.Context, from, name string) context.Context {
	id := requestsIn(ctx, 1)[0]
	if id == "" {
		return ctx
	}
	n.logger.Info("cluster: membership change of a request to another node", "request", id, "peer", from, "type", name)
	return requestid.With(ctx, id)
}

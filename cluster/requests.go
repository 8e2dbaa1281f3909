package cluster

import (
	"context"
	"strings"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/requestid"
)

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

// logForwarded logs the commands of a request that another node took.
func (n *Node) logForwarded(from string, requests []string, types []fsm.CommandType, outcomes []outcome) {
	for i, id := range requests {
		if id == "" {
			continue
		}
		attrs := []any{"request", id, "peer", from, "type", types[i]}
		switch a := outcomes[i]; {
		case a.err != nil:
			attrs = append(attrs, "error", a.err)
		case a.status == committed:
			attrs = append(attrs, "index", a.index)
		default:
			attrs = append(attrs, "error", "not committed here")
		}
		n.logger.Info("cluster: command of a request to another node", attrs...)
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

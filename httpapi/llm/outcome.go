package llm

import (
	"time"

	"bivouac.dev/bivouac/fsm"
)

// outcome is what became of a request: the status of the answer, 0 for none, what it used and cost,
// and the time to its first byte.
type outcome struct {
	status int
	used   tokens
	cost   int64
	first  time.Duration
}

// costOf returns the cost of tokens of the request's model.
func (q *request) costOf(t tokens) int64 { return costOf(q.policy.PriceOf(q.name), t) }

// count counts a request that was admitted, once, and ends its charge.
func (q *request) count(o outcome) {
	if q.counted {
		return
	}
	q.counted = true
	took := time.Since(q.began)
	label := q.gateway.metrics.answered(q.row.UserID, q.name, o.status, o.used, float64(o.cost)/fsm.Dollar, o.first, took)
	if !q.generates {
		return
	}
	u := fsm.ModelUsage{
		Requests:     1,
		Input:        o.used.Input,
		Output:       o.used.Output,
		Cached:       o.used.Cached,
		Cost:         o.cost,
		Milliseconds: took.Milliseconds(),
	}
	if o.status/100 != 2 {
		u.Errors = 1
	}
	spent := q.gateway.spent
	spent.leave(usageKey{q.row.UserID, q.claim.Conversation, label}, q.charge, u, spent.clock())
}

// abandoned counts a request without an answer: its client left, or the endpoint failed. Its charge
// stays once the endpoint may have it.
func (q *request) abandoned() {
	o := outcome{}
	if q.sent.Load() && q.generates {
		o.used.Input, o.cost = int64(len(q.body))/bytesPerToken, q.charge
	}
	q.count(o)
}

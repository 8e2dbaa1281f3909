package llm

import (
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent/preset"
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
func (q *request) costOf(t tokens) int64 { return costOf(q.price, t) }

// priceOf returns the operator's price of a model, else what its vendor's list says where the request
// goes to the vendor itself; nil for none. Nothing that a user or an endpoint says counts: the vendor is
// the one whose host the target is.
func (t target) priceOf(policy fsm.LLM, name string) *fsm.Price {
	if own := policy.PriceOf(name); own != nil {
		return own
	}
	v, known := t.vendor()
	if !known {
		return nil
	}
	r := preset.ModelOf(v.Prefixes[0] + "/" + strings.TrimPrefix(name, v.Prefixes[0]+"/")).Rates
	if r == nil {
		return nil
	}
	return &fsm.Price{
		Model: name, Input: r.Input, Output: r.Output, CachedInput: r.CachedInput, CacheWrite: r.CacheWrite,
	}
}

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

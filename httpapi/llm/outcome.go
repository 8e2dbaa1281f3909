package llm

import (
	"math"
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

// costOf returns the cost of tokens of the request's model in billionths of a dollar.
func (q *request) costOf(t tokens) int64 {
	if q.rates == nil {
		return 0
	}
	// A dollar for a million tokens is a thousand billionths for one.
	return int64(math.Min(math.Ceil(q.rates.Cost(preset.Tokens(t))*1000), 1<<59))
}

// ratesOf returns the operator's price of a model, else what its vendor's list says where the request
// goes to the vendor itself; nil for none. Nothing that a user or an endpoint says counts: the vendor is
// the one whose host the target is.
func (t target) ratesOf(policy fsm.LLM, name string) *preset.Rates {
	if p := policy.PriceOf(name); p != nil {
		return &preset.Rates{Input: p.Input, Output: p.Output, CachedInput: p.CachedInput, CacheWrite: p.CacheWrite}
	}
	v, known := t.vendor()
	if !known {
		return nil
	}
	return preset.ModelOf(v.Prefixes[0] + "/" + strings.TrimPrefix(name, v.Prefixes[0]+"/")).Rates
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

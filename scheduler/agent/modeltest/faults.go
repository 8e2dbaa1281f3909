package modeltest

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// Fault is a fault of the server.
type Fault struct {
	Kind string `json:"kind"`
	// Times is how often it is shown before the answer is given. 0 is always.
	Times int `json:"times,omitempty"`
	// DelayMS is the delay of [Slow] and [SlowChunks], in milliseconds.
	DelayMS int `json:"delay_ms,omitempty"`
	// RetryAfterS is the Retry-After of [RateLimit] and [Unavailable], in seconds. 0 sends none.
	RetryAfterS int `json:"retry_after_s,omitempty"`
	// Status replaces the kind's own status.
	Status int `json:"status,omitempty"`
	// Message replaces the kind's own message.
	Message string `json:"message,omitempty"`
}

// The kinds of faults. A model that calls unknown tools, sends broken arguments or never stops is
// an ordinary answer: the last one of a story is repeated.
const (
	Hangup        = "hangup"         // the connection is closed without an answer
	Slow          = "slow"           // the answer begins late
	SlowChunks    = "slow_chunks"    // a pause between the chunks
	Unauthorized  = "unauthorized"   // 401
	RateLimit     = "rate_limit"     // 429
	NoQuota       = "no_quota"       // 429, insufficient_quota: a retry does not help
	ServerError   = "error"          // 500
	Unavailable   = "unavailable"    // 503
	BadRequest    = "bad_request"    // 400
	ContextLength = "context_length" // 400, context_length_exceeded
	ContentFilter = "content_filter" // 400, content_filter
	Garbage       = "garbage"        // 200 and a stream, or a body, that is not the protocol's
	Truncated     = "truncated"      // the connection is cut in the answer's middle
	Cut           = "cut"            // the answer ends in its middle as if that were its end
	StreamError   = "stream_error"   // an error object in the stream's middle
	Empty         = "empty"          // 200 without a choice
)

// problem is how a fault with a status shows itself.
type problem struct {
	status  int
	code    string
	message string
}

// problems are the faults with a status.
var problems = map[string]problem{ //nolint:gochecknoglobals // read-only
	Unauthorized: {http.StatusUnauthorized, "invalid_api_key", "Incorrect API key provided."},
	RateLimit:    {http.StatusTooManyRequests, "rate_limit_exceeded", "Rate limit reached for requests."},
	NoQuota: {
		http.StatusTooManyRequests,
		"insufficient_quota",
		"You exceeded your current quota, please check your plan and billing details.",
	},
	ServerError: {
		http.StatusInternalServerError,
		"server_error",
		"The server had an error while processing your request.",
	},
	Unavailable: {http.StatusServiceUnavailable, "server_error", "The server is overloaded."},
	BadRequest:  {http.StatusBadRequest, "invalid_request_error", "The request is not valid."},
	ContextLength: {
		http.StatusBadRequest,
		"context_length_exceeded",
		"This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
	},
	ContentFilter: {
		http.StatusBadRequest,
		"content_filter",
		"The response was filtered due to the prompt triggering the content management policy.",
	},
}

// check reports a kind that does not exist.
func (f *Fault) check() error {
	if f == nil {
		return nil
	}
	if _, ok := problems[f.Kind]; ok || slices.Contains([]string{
		Hangup,
		Slow,
		SlowChunks,
		Garbage,
		Truncated,
		Cut,
		StreamError,
		Empty,
	}, f.Kind) {
		return nil
	}
	return fmt.Errorf("there is no fault %q", f.Kind)
}

// is reports whether the fault is of the kind.
func (f *Fault) is(kind string) bool { return f != nil && f.Kind == kind }

func (f *Fault) delay() time.Duration { return time.Duration(f.DelayMS) * time.Millisecond }

// problem returns the answer of a fault with a status.
func (f *Fault) problem(h http.Header) (problem, bool) {
	if f == nil {
		return problem{}, false
	}
	p, ok := problems[f.Kind]
	if !ok {
		return problem{}, false
	}
	if f.RetryAfterS > 0 {
		h.Set("Retry-After", strconv.Itoa(f.RetryAfterS))
	}
	if f.Status != 0 {
		p.status = f.Status
	}
	if f.Message != "" {
		p.message = f.Message
	}
	return p, true
}

// chunks returns the chunks of a stream with the fault in it, and whether the connection is cut
// after them.
func (f *Fault) chunks(whole []Chunk, p Protocol) ([]Chunk, bool) {
	if f == nil {
		return whole, false
	}
	half := whole[:len(whole)/2]
	switch f.Kind {
	case Garbage:
		return append(slices.Clone(whole[:1]), Chunk{Data: "\x00\x1f{not json"},
			Chunk{Data: "<html>502 Bad Gateway</html>"}), false
	case Truncated:
		return half, true
	case Cut:
		return half, false
	case StreamError:
		return append(slices.Clone(half),
			Chunk{Data: string(mustJSON(p.Error(http.StatusInternalServerError, "server_error", "The engine died.")))}), false
	case Empty:
		return nil, false
	}
	return whole, false
}

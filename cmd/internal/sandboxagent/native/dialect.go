package native

import (
	"net/http"
	"sync"

	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
)

// dialect is what a server and its model take of the protocol. A refusal that names what it is about
// sets one member, never back, so that each request is repaired a bounded number of times.
type dialect struct {
	noStream, noStreamOptions, noToolChoice, noEffort, noSampling bool
	// otherMax sends the other name of the output's limit, noMax none.
	otherMax, noMax bool
	noPictures      bool
	noSystem        bool
	// alternate has user and assistant in turn, with an answer between a result and a message.
	alternate bool
	// fullContent has a text in every message.
	fullContent bool
	// shortIDs are ids of nine letters and digits, as Mistral wants them.
	shortIDs             bool
	noThoughts, thoughts bool
	// written has the tools in the prompt and calls in texts; told only shows the past calls so.
	written, told bool
}

// dialects is the dialect of one endpoint and model, learned while the client lives.
type dialects struct {
	mu  sync.Mutex
	now dialect
}

func newDialects(llm engine.LLM, model string) *dialects {
	return &dialects{now: dialect{
		noStream: llm.Stream != nil && !*llm.Stream, thoughts: wantsReasoning(model),
		noPictures: llm.DisableVision,
		written:    llm.NativeToolCalling != nil && !*llm.NativeToolCalling,
	}}
}

func (d *dialects) get() dialect {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now
}

// learn changes the dialect by a refusal of a request, and reports whether the request would be
// another one now. A refusal that says nothing known of a history with calls or pictures makes the
// history as plain as it can be, once.
func (d *dialects) learn(f *callError, r *openai.ChatCompletionRequest) bool {
	if !repairable(f) {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	long := f.refused != nil && *f.refused == refusedLength
	for _, one := range repairs {
		next := d.now
		if one.long != long && long || !one.says.MatchString(f.said) {
			continue
		}
		if one.change(&next, r); next != d.now {
			d.now = next
			return true
		}
	}
	if long || f.status != http.StatusBadRequest && f.status != http.StatusUnprocessableEntity {
		return false
	}
	next := d.now
	if noPictures(&next, r); called(r) {
		next.told, next.alternate, next.noThoughts = true, true, !next.thoughts
	}
	changed := next != d.now
	d.now = next
	return changed
}

// repairable reports whether an error is about the request.
func repairable(f *callError) bool {
	switch f.status {
	case http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden, http.StatusRequestTimeout,
		http.StatusTooManyRequests:
		return false
	}
	if f.refused != nil && *f.refused == refusedContent {
		return false
	}
	return f.status >= http.StatusBadRequest && f.status <= http.StatusNotImplemented
}

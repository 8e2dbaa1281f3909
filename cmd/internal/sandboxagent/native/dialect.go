package native

import (
	"bytes"
	"cmp"
	"net/http"
	"sync"

	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// dialect is what a server and its model take of the protocol. A refusal that names what it is about
// sets one member, never back, so that each request is repaired a bounded number of times.
type dialect struct {
	api preset.API
	// apiChanged is set once another API is asked than the settings lead to.
	apiChanged                                                    bool
	noStream, noStreamOptions, noToolChoice, noEffort, noSampling bool
	// otherMax sends the other name of the output's limit, noMax none.
	otherMax, noMax bool
	// someMax sends a limit of output where the settings have none: most, in tokens.
	someMax    bool
	most       int
	noPictures bool
	noSystem   bool
	// alternate has user and assistant in turn, with an answer between a result and a message.
	alternate bool
	// plainSchemas leaves out of the tools' schemas what is not in every dialect of them.
	plainSchemas bool
	// fullContent has a text in every message.
	fullContent bool
	// shortIDs are ids of nine letters and digits, as Mistral wants them.
	shortIDs             bool
	noThoughts, thoughts bool
	// noThoughtsTo is the id of the last call whose thoughts were refused, with those before it.
	noThoughtsTo string
	// thoughtBudget asks for thoughts with a budget, smallMax for short answers. noCache marks no prompt for
	// a cache, noSummary and noEncrypted ask for no summary of thoughts and not for thoughts to send back.
	thoughtBudget, smallMax, noCache, noSummary, noEncrypted bool
	// written has the tools in the prompt and calls in texts; told only shows the past calls so.
	written, told bool
}

// dialects is the dialect of one endpoint and model, learned while the client lives.
type dialects struct {
	mu  sync.Mutex
	now dialect
	// native reports that the model has called a tool natively.
	native bool
}

func newDialects(llm engine.LLM, model string) *dialects {
	return &dialects{now: dialect{
		api:      cmp.Or(preset.API(llm.API), preset.APIOf(llm.Model, llm.BaseURL)),
		noStream: llm.Stream != nil && !*llm.Stream, thoughts: wantsReasoning(model),
	}}
}

func (d *dialects) get() dialect {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now
}

// called keeps that the model calls natively.
func (d *dialects) called() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.native = true
}

// reads is which of the model's texts are read for calls.
func (d *dialects) reads() reads {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.now.written:
		return readsAll
	case d.native:
		return readsNone
	}
	return readsLines
}

// learn changes the dialect by a refusal of a prompt's request, and reports whether the request is
// another one now. A refusal that says nothing known of a history with calls or pictures makes the
// history as plain as it can be, once.
func (d *dialects) learn(f *callError, asked openai.ChatCompletionRequest, t thoughts) bool {
	if !repairable(f) {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	before, sent := d.now.write(asked, t)
	long := f.refused != nil && *f.refused == refusedLength
	for _, one := range repairs {
		if one.long != long && long || !one.says.MatchString(f.said) {
			continue
		}
		next := d.now
		one.change(&next, sent)
		if after, _ := next.write(asked, t); !bytes.Equal(before.body, after.body) {
			d.now = next
			return true
		}
	}
	if d.now.otherAPI(f) {
		return true
	}
	if long || f.status != http.StatusBadRequest && f.status != http.StatusUnprocessableEntity {
		return false
	}
	next := d.now
	if noPictures(&next, sent); called(sent) {
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

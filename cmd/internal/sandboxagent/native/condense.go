package native

import (
	"context"
	"errors"
	"fmt"
	"strings"

	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

const (
	defaultMaxSize   = 240
	defaultKeepFirst = 2
	condenseTries    = 5
	// longestForSummary is how much of each message the summarizing model reads, in characters.
	longestForSummary = 10_000
)

const summarizePrompt = `You keep the memory of a software engineer whose conversation is too long to be kept whole. ` +
	`Write the summary that replaces the events below. The engineer will see nothing else of them, ` +
	`so keep what is needed to go on: what the user asked for, in their words where they matter; ` +
	`what was decided and why; files, functions and commands by their exact names; what was changed; ` +
	`the state of tests and errors; open tasks and the next step. Merge an earlier summary into the new one. ` +
	`Leave out what no longer matters. Write facts, not a story.`

// Condenses implements engine.HistoryCondenser.
func (e *Engine) Condenses() bool {
	on := e.condenser().Enabled
	return on == nil || *on
}

// Condense implements engine.HistoryCondenser.
func (e *Engine) Condense(ctx context.Context) error {
	events, err := e.conv.Events()
	if err != nil {
		return err
	}
	if _, err = e.condense(ctx, e.model(), events); err != nil {
		return asFailure(err)
	}
	return nil
}

func (e *Engine) condenser() engine.Condenser {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.setup.Agent.Condenser
}

// condense replaces the middle of a long history by a summary, and reports whether it did. A
// history that is merely long is left as it is when that fails; one that the model refuses is not.
func (e *Engine) condense(ctx context.Context, c *client, events []event.Event) (bool, error) {
	if !e.Condenses() {
		return false, nil
	}
	cfg := e.condenser()
	most, first := cfg.MaxSize, cfg.KeepFirst
	if most <= 0 {
		most = defaultMaxSize
	}
	if first <= 0 {
		first = defaultKeepFirst
	}
	shown := e.shown(events)
	if len(shown) == 0 {
		return false, nil
	}
	size := sizeOf(shown)
	asked, byUser := requested(events)
	over := c.window.exceeds(shown, 1)
	if (over || asked) && !byUser && e.shorten(c, events, asked) {
		if !asked {
			return false, nil
		}
		return true, e.conv.Append(nothingForgotten())
	}
	hard := asked || over
	if !hard && size <= most {
		return false, nil
	}
	target := most / 2
	if hard {
		target = min(target, size/2)
	}
	head, tail := cut(shown, first, target)
	middle := shown[head:tail]
	if !hard && sizeOf(middle)*10 < size {
		return false, nil
	}
	if hard && (sizeOf(middle)*10 < size || onlySummary(middle)) {
		head = 0
		if _, is := shown[0].(*event.SystemPrompt); is {
			head = 1
		}
		if middle = shown[head:spoken(shown, head)]; len(middle) == 0 || onlySummary(middle) {
			if byUser {
				// There is nothing to condense. The request is done: no later step is to pay for it.
				return false, e.conv.Append(nothingForgotten())
			}
			if !asked {
				return false, nil // it was an estimate: the server decides
			}
			return false, &engine.Failure{Code: codeContext, Detail: "The model's context is too small even for the summary " +
				"of the conversation. Choose a model with a larger one."}
		}
	}
	a, err := e.summarize(ctx, c, middle)
	if err != nil {
		if hard || ctx.Err() != nil {
			return false, err
		}
		e.log.Warn("the history was not condensed", "error", err)
		return false, nil
	}
	offset := sizeOf(shown[:head])
	return true, e.conv.Append(&event.Condensation{
		Head: event.Head{Source: event.SourceEnvironment}, ForgottenEventIDs: idsOf(middle),
		Summary: &a.text, SummaryOffset: &offset, LLMResponseID: a.id,
	})
}

// nothingForgotten is the end of a request to condense that forgets no event.
func nothingForgotten() *event.Condensation {
	return &event.Condensation{Head: event.Head{Source: event.SourceEnvironment}, ForgottenEventIDs: []string{}}
}

// requested reports whether a condensation was asked for and not done, and whether a user asked.
func requested(events []event.Event) (asked, byUser bool) {
	for i := len(events) - 1; i >= 0; i-- {
		switch e := events[i].(type) {
		case *event.CondensationRequest:
			return true, e.Source == event.SourceUser
		case *event.Condensation:
			return false, false
		}
	}
	return false, false
}

// spoken is the end of the view without the user's message at it, which no summary may replace: it
// is what the agent shall do next.
func spoken(shown []event.Event, head int) int {
	n := len(shown)
	if n > head+1 {
		if m, is := shown[n-1].(*event.Message); is && m.Source == event.SourceUser {
			return n - 1
		}
	}
	return n
}

// cut chooses the part of a view to forget, shown[head:tail]: about first events before it and
// target events in all are kept. A view has the calls of an answer and their results in one.
func cut(shown []event.Event, first, target int) (head, tail int) {
	kept := 0
	for head < len(shown) && kept+sizeOf(shown[head:head+1]) <= first {
		kept += sizeOf(shown[head : head+1])
		head++
	}
	kept++ // the summary
	tail = spoken(shown, head)
	kept += sizeOf(shown[tail:])
	for tail > head && kept+sizeOf(shown[tail-1:tail]) <= target {
		kept += sizeOf(shown[tail-1 : tail])
		tail--
	}
	return head, tail
}

func onlySummary(shown []event.Event) bool {
	if len(shown) != 1 {
		return false
	}
	_, is := shown[0].(*summary)
	return is
}

// sizeOf counts the events of a view, those in batches too.
func sizeOf(shown []event.Event) int { return len(idsOf(shown)) }

func idsOf(shown []event.Event) []string {
	var ids []string
	for _, e := range shown {
		b, is := e.(*batch)
		if !is {
			ids = append(ids, e.Envelope().ID)
			continue
		}
		for i, a := range b.calls {
			ids = append(ids, a.ID)
			if b.results[i] != nil {
				ids = append(ids, b.results[i].Envelope().ID)
			}
		}
	}
	return ids
}

// summarize asks the model for a summary. Where that is too long too, less of each text is shown.
func (e *Engine) summarize(ctx context.Context, c *client, middle []event.Event) (*answer, error) {
	longest := float64(longestForSummary)
	var refused *refusal
	for range condenseTries {
		a, err := c.ask(ctx, prompt{messages: []openai.ChatCompletionMessage{
			{Role: openai.ChatMessageRoleSystem, Content: summarizePrompt}, userText(forSummary(middle, int(longest))),
		}})
		if err != nil {
			if err := e.spent(c, usageCondenser, a); err != nil {
				return nil, err
			}
		}
		if errors.As(err, &refused) {
			longest *= 0.8
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := e.conv.Append(e.counted(c, usageCondenser, a)); err != nil {
			return nil, err
		}
		if strings.TrimSpace(a.text) == "" {
			return nil, &engine.Failure{Code: codeNoResponse, Detail: "The model gave no summary of " +
				"the conversation. Try again."}
		}
		return a, nil
	}
	return nil, &engine.Failure{
		Code:   codeContext,
		Detail: "The conversation is longer than the model's context and can't be summarized: " + refused.detail,
	}
}

// forSummary is a part of a view as text, each message bounded.
func forSummary(shown []event.Event, longest int) string {
	var b strings.Builder
	for _, m := range messages(shown, false) {
		text := m.Content
		for _, p := range m.MultiContent {
			text += p.Text
		}
		for _, call := range m.ToolCalls {
			text += fmt.Sprintf("\n[calls %s %s]", call.Function.Name, call.Function.Arguments)
		}
		if r := []rune(text); len(r) > longest {
			text = string(r[:longest]) + "…"
		}
		fmt.Fprintf(&b, "<EVENT by=%q>\n%s\n</EVENT>\n", m.Role, text)
	}
	return b.String()
}

package native

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
)

const (
	defaultRetries = 4
	// longestRetryAfter bounds how long a call waits because the server says so.
	longestRetryAfter = 15 * time.Minute
	// mostContinued is how often a text that the limit of output cut is continued.
	mostContinued = 3
	continueText  = "Your answer was cut by the limit of its length. Go on exactly where it stopped, " +
		"without a word about it."
)

// ask calls the model. A refused request is repaired and asked at once, as often as there is
// something to repair; what may pass is retried, also after a part of the answer came. The error is
// ctx's, a *refusal or an *engine.Failure; the answer beside it has what the tries cost.
func (c *client) ask(ctx context.Context, p prompt) (*answer, error) {
	if c.llm.Model == "" {
		return nil, &engine.Failure{Code: codeNotConfigured, Detail: "No model is set. Choose one in the settings."}
	}
	if c.endpoint.Base == "" {
		return nil, &engine.Failure{Code: codeNotConfigured, Detail: "The model " + c.llm.Model + " needs a base " +
			"URL. Set one in the settings."}
	}
	delays := backoff.NewExponentialBackOff()
	delays.InitialInterval = c.firstDelay
	delays.MaxInterval = 16 * c.firstDelay
	retries := defaultRetries
	if n := c.llm.NumRetries; n != nil {
		retries = max(*n, 0)
	}
	var shown *display
	if p.onDelta != nil {
		shown = &display{send: p.onDelta, withdraw: p.withdraw}
	}
	spent := &answer{}
	var loading time.Duration
	for {
		a, failed := c.fitting(ctx, p, shown, spent)
		if failed == nil {
			a.spend(spent)
			spent = a
		}
		if ctx.Err() != nil || failed == nil {
			return spent, ctx.Err()
		}
		wait := delays.NextBackOff()
		if failed.told {
			wait = failed.wait
		}
		if loading += wait; failed.isLoading() && loading <= longestLoad {
			retries++ // it costs nothing, and no other error says when to ask again
		}
		if !failed.retryable || retries == 0 || wait > longestRetryAfter {
			shown.fail()
			return spent, failed.result(c)
		}
		retries--
		if err := c.pause(ctx, wait); err != nil {
			return spent, err
		}
	}
}

// fitting asks once with a request that fits the server, as far as its refusals tell. What failed
// tries cost is added to spent.
func (c *client) fitting(ctx context.Context, p prompt, shown *display, spent *answer) (*answer, *callError) {
	for {
		shown.again()
		asked := c.request(p)
		r, _ := c.dialects.get().write(asked, p.thoughts)
		a, failed := c.try(ctx, r, shown)
		if failed != nil {
			spent.spend(&failed.spent)
		}
		switch {
		case failed == nil:
			a.cuts = c.window.counted(p, a.usage.PromptTokens)
			a.think()
			c.discover(ctx)
			if len(a.calls) > 0 {
				c.dialects.called()
			}
			return a, nil
		case failed.refused != nil && *failed.refused == refusedLength:
			c.window.refused(failed.said)
		}
		if ctx.Err() != nil || !c.dialects.learn(failed, asked, p.thoughts) {
			return nil, failed
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// full is ask for an answer that may be longer than the limit of output: a text that was cut is
// continued, and all of them are counted as one. What was shown of an answer that does not come to
// its end is withdrawn.
func (c *client) full(ctx context.Context, p prompt) (*answer, error) {
	shown := false
	if send, withdraw := p.onDelta, p.withdraw; send != nil {
		p.onDelta = func(text, reasoning string) {
			shown = shown || text != ""
			send(text, reasoning)
		}
		p.withdraw = func() {
			shown = false
			withdraw()
		}
	}
	base, whole := p.messages, &answer{}
	for n := 0; ; n++ {
		a, err := c.ask(ctx, p)
		if a != nil {
			a.spend(whole)
		}
		if err != nil {
			if shown && ctx.Err() == nil {
				p.withdraw()
			}
			return a, err
		}
		a.text = whole.text + a.text
		a.reasoning = strings.TrimSpace(whole.reasoning + "\n" + a.reasoning)
		a.cuts = max(a.cuts, whole.cuts)
		settled := *a
		settled.settle(p.tools, c.dialects.reads())
		if a.finish != cutOff || len(settled.calls) > 0 || strings.TrimSpace(a.text) == "" || n == mostContinued {
			return &settled, nil
		}
		whole = a
		p.messages = append(slices.Clone(base),
			openai.ChatCompletionMessage{Role: openai.ChatMessageRoleAssistant, Content: a.text}, userText(continueText))
	}
}

// spend adds what an earlier part of the answer used, or a try that failed.
func (a *answer) spend(earlier *answer) {
	more := earlier.usage
	a.usage.PromptTokens += more.PromptTokens
	a.usage.CompletionTokens += more.CompletionTokens
	a.cached += earlier.cached
	if d := more.PromptTokensDetails; d != nil {
		sum := openai.PromptTokensDetails{}
		if a.usage.PromptTokensDetails != nil {
			sum = *a.usage.PromptTokensDetails
		}
		sum.CachedTokens += d.CachedTokens
		a.usage.PromptTokensDetails = &sum
	}
	if d := more.CompletionTokensDetails; d != nil {
		sum := openai.CompletionTokensDetails{}
		if a.usage.CompletionTokensDetails != nil {
			sum = *a.usage.CompletionTokensDetails
		}
		sum.ReasoningTokens += d.ReasoningTokens
		a.usage.CompletionTokensDetails = &sum
	}
	if earlier.cost != nil {
		cost := *earlier.cost
		if a.cost != nil {
			cost += *a.cost
		}
		a.cost = &cost
	}
}

package native

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

const (
	defaultTimeout = 300 * time.Second
	defaultRetries = 4
	// longestRetryAfter bounds how long a call waits because the server says so.
	longestRetryAfter = time.Minute
	// largestAnswer bounds an answer's text, thoughts and arguments, in bytes.
	largestAnswer = 8 << 20
	// largestResponse bounds a response: the frame of a part is larger than its text.
	largestResponse = 8 * largestAnswer
	// longestKeepAlive is how many lines without data may come before the next chunk.
	longestKeepAlive = 100_000
)

// prompt is one question to the model.
type prompt struct {
	messages []openai.ChatCompletionMessage
	tools    []openai.Tool
	// noCalls forbids calls though tools are listed, as histories with calls need it.
	noCalls bool
	// onDelta is called with each part of a streamed answer; nil asks for no stream.
	onDelta func(text, reasoning string)
}

// answer is what a model answered.
type answer struct {
	id        string
	text      string
	reasoning string
	calls     []openai.ToolCall
	finish    string
	usage     openai.Usage
	cost      *float64 // what the server says that it cost
}

// client calls one model.
type client struct {
	llm   engine.LLM
	model string
	base  string
	http  *http.Client
	// firstDelay is the time before the first retry.
	firstDelay time.Duration
}

func newClient(llm engine.LLM, transport http.RoundTripper) *client {
	return &client{
		llm:        llm,
		model:      preset.BareModel(llm.Model),
		base:       preset.BaseURL(llm.Model, llm.BaseURL),
		http:       &http.Client{Transport: transport},
		firstDelay: time.Second,
	}
}

// timeout is the longest time until the answer begins, and between two parts of it.
func (c *client) timeout() time.Duration {
	if c.llm.Timeout > 0 {
		return time.Duration(c.llm.Timeout) * time.Second
	}
	return defaultTimeout
}

// ask calls the model. It retries what may pass, as long as nothing of the answer has come. The
// error is ctx's, a *refusal or an *engine.Failure.
func (c *client) ask(ctx context.Context, p prompt) (*answer, error) {
	if c.llm.Model == "" {
		return nil, &engine.Failure{Code: codeNotConfigured, Detail: "No model is set. Choose one in the settings."}
	}
	if c.base == "" {
		return nil, &engine.Failure{Code: codeNotConfigured, Detail: "The model " + c.llm.Model + " needs a base " +
			"URL. Set one in the settings."}
	}
	delays := backoff.NewExponentialBackOff()
	delays.InitialInterval = c.firstDelay
	delays.MaxInterval = 16 * c.firstDelay
	tries := uint(defaultRetries)
	if n := c.llm.NumRetries; n != nil {
		tries = uint(max(*n, 0))
	}
	a, err := backoff.Retry(ctx, func() (*answer, error) { return c.try(ctx, p) },
		backoff.WithBackOff(delays), backoff.WithMaxTries(tries+1))
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var f *callError
	if errors.As(err, &f) {
		return nil, f.result(c)
	}
	return a, err
}

// try calls the model once.
func (c *client) try(ctx context.Context, p prompt) (*answer, error) {
	call := &exchange{client: c.http}
	cfg := openai.DefaultConfig(c.llm.APIKey)
	cfg.BaseURL, cfg.HTTPClient, cfg.EmptyMessagesLimit = c.base, call, longestKeepAlive
	// Another cause than ctx's tells the timeout from an interrupt.
	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(c.timeout(), func() { cancel(errTimeout) })
	defer idle.Stop()

	cl := openai.NewClientWithConfig(cfg)
	var a *answer
	var err error
	if p.onDelta != nil && (c.llm.Stream == nil || *c.llm.Stream) {
		a, err = stream(within, cl, c.request(p), p.onDelta, func() { idle.Reset(c.timeout()) })
	} else {
		a, err = whole(within, cl, c.request(p))
	}
	if err == nil {
		return a, nil
	}
	if errors.Is(context.Cause(within), errTimeout) {
		err = errTimeout
	}
	failed := classify(err, call.begun)
	if !failed.retryable {
		return nil, backoff.Permanent(failed)
	}
	wait, told := call.retryAfter()
	switch {
	case told && wait > longestRetryAfter:
		failed.wait = wait
		return nil, backoff.Permanent(failed)
	case told:
		return nil, errors.Join(failed, &backoff.RetryAfterError{Duration: wait})
	}
	return nil, failed
}

// request is the body of the call.
func (c *client) request(p prompt) openai.ChatCompletionRequest {
	r := openai.ChatCompletionRequest{Model: c.model, Messages: p.messages, Tools: p.tools}
	if p.noCalls && len(p.tools) > 0 {
		r.ToolChoice = "none"
	}
	if e := c.llm.ReasoningEffort; e != "" && e != "none" {
		r.ReasoningEffort = e
	}
	if n := c.llm.MaxOutputTokens; n != nil {
		if reasons(c.model) {
			r.MaxCompletionTokens = *n
		} else {
			r.MaxTokens = *n //nolint:staticcheck // what servers other than OpenAI's know
		}
	}
	if !reasons(c.model) {
		r.Temperature, r.TopP = number(c.llm.Temperature), number(c.llm.TopP)
	}
	return r
}

// number is a number that the library leaves out only if it is absent.
func number(f *float64) float32 {
	switch {
	case f == nil:
		return 0
	case *f == 0:
		return math.SmallestNonzeroFloat32
	}
	return float32(*f)
}

// exchange does one HTTP request and remembers its response's header.
type exchange struct {
	client *http.Client
	header http.Header
	// begun reports that the server has begun a good answer.
	begun bool
}

// Do implements openai.HTTPDoer.
func (e *exchange) Do(r *http.Request) (*http.Response, error) {
	resp, err := e.client.Do(r)
	if err != nil {
		return nil, err
	}
	e.header, e.begun = resp.Header, resp.StatusCode < http.StatusBadRequest
	resp.Body = http.MaxBytesReader(nil, resp.Body, largestResponse)
	return resp, nil
}

// retryAfter is the time after which the server wants to be asked again, and whether it said so.
func (e *exchange) retryAfter() (time.Duration, bool) {
	value := strings.TrimSpace(e.header.Get("Retry-After"))
	if value == "" {
		return 0, false
	}
	if s, err := strconv.Atoi(value); err == nil && s >= 0 && s < math.MaxInt32 {
		return time.Duration(s) * time.Second, true
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(time.Until(at), 0), true
	}
	return 0, false
}

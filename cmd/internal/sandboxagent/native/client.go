package native

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

const (
	defaultTimeout = 300 * time.Second
	// longestCall is how many time-outs a call may last, with whatever signs of life.
	longestCall = 12
	// afterEnd is the time in which a server says what comes after the reason to finish.
	afterEnd = 5 * time.Second
	// largestAnswer bounds an answer's text, thoughts and arguments, in bytes.
	largestAnswer = 8 << 20
	// largestResponse bounds a response: the frame of a part is larger than its text.
	largestResponse = 8 * largestAnswer
)

// prompt is one question to the model.
type prompt struct {
	messages []openai.ChatCompletionMessage
	tools    []openai.Tool
	// thoughts are what earlier answers thought, for servers that want it back.
	thoughts thoughts
	// noCalls forbids calls though tools are listed, as histories with calls need it.
	noCalls bool
	// onDelta is called with each part of a streamed answer; nil asks for no stream.
	onDelta func(text, reasoning string)
	// withdraw takes back what onDelta was called with.
	withdraw func()
}

// answer is what a model answered.
type answer struct {
	id        string
	text      string
	reasoning string
	calls     []openai.ToolCall
	finish    string
	usage     openai.Usage
	// cached are the tokens that were written to a cache of prompts.
	cached int
	// blocks and items are the thoughts as their maker wants them back; items by the id of the call after
	// them. api is what it was said in.
	blocks []event.ThinkingBlock
	items  map[string]event.Any
	api    preset.API
	cost   *float64 // what the server says that it cost
	// cuts is the number of tokens above which the server was found to leave out parts of requests.
	cuts int
}

// client calls one model. A call goes this way: request makes it, dialect.fit fits it to the server,
// try sends it, parts reads the answer, answer.settle says what is meant by it, and ask repairs it
// or repeats it where it failed.
type client struct {
	llm      engine.LLM
	model    string
	endpoint preset.Endpoint
	http     *http.Client
	dialects *dialects
	window   *window
	profile  *profile
	// firstDelay is the time before the first retry.
	firstDelay time.Duration
	// queued is called with the place, from 1, of a request that waits for a slot of its server; nil is
	// told nothing.
	queued func(place int)
	// pause waits between two tries.
	pause func(ctx context.Context, d time.Duration) error
}

func newClient(llm engine.LLM, transport http.RoundTripper) *client {
	model := preset.BareModel(llm.Model)
	c := &client{
		llm:        llm,
		model:      model,
		endpoint:   preset.EndpointOf(llm.Model, llm.BaseURL),
		http:       &http.Client{Transport: transport, CheckRedirect: stay},
		dialects:   newDialects(llm, model),
		window:     &window{},
		profile:    newProfile(llm),
		firstDelay: time.Second,
		pause:      pause,
	}
	c.use(c.profile.get())
	return c
}

// stay follows no redirect: keys and prompts are for the server that the settings name.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// timeout is the longest time until the answer begins, and between two parts of it.
func (c *client) timeout() time.Duration {
	if c.llm.Timeout > 0 {
		return time.Duration(c.llm.Timeout) * time.Second
	}
	return defaultTimeout
}

// try sends a request once.
func (c *client) try(ctx context.Context, r outgoing, shown *display) (*answer, *callError) {
	// Another cause than ctx's tells the timeout from an interrupt.
	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := func() { cancel(errTimeout) }
	idle, whole := time.AfterFunc(c.timeout(), late), time.AfterFunc(longestCall*c.timeout(), late)
	defer idle.Stop()
	defer whole.Stop()

	resp, err := c.send(c.signs(within, idle), r)
	if err != nil {
		if errors.Is(context.Cause(within), errTimeout) {
			err = errTimeout
		}
		return nil, classify(err, false)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 == 3 {
		return nil, classify(redirected(resp), false)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, longestError)) // what came is what it said
		failed := classify(refusedWith(resp.StatusCode, body), false)
		if wait, told := retryAfter(resp.Header); told {
			failed.wait, failed.told = wait, true
		}
		failed.limit = resp.Header.Get(preset.HeaderLimit)
		return nil, failed
	}
	a := parts{answer: answer{api: r.api}, shown: shown}
	if !r.stream {
		a.shown = nil
	}
	ended := false
	err = a.read(&lively{Reader: http.MaxBytesReader(nil, resp.Body, largestResponse), alive: func() {
		switch {
		case a.finish == "":
			idle.Reset(c.timeout())
		case !ended: // signs of life hold nothing up after the end
			ended = true
			idle.Reset(min(c.timeout(), afterEnd))
		}
	}})
	out, failed := c.whole(&a, err, errors.Is(context.Cause(within), errTimeout))
	if ctx.Err() != nil {
		failed = classify(ctx.Err(), true)
	}
	if failed != nil {
		failed.spent = answer{usage: a.usage, cached: a.cached, cost: a.cost}
		return nil, failed
	}
	a.shown.end()
	return out, nil
}

// whole is the answer that was read, unless it is not whole. What breaks after the reason to finish
// breaks nothing.
func (c *client) whole(a *parts, err error, late bool) (*answer, *callError) {
	var says *serverError
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		err = errUnbounded
	case errors.As(err, &says), errors.Is(err, errUnbounded):
	case a.finish != "":
		err = nil
	case late:
		err = errTimeout
	}
	if err != nil {
		return nil, classify(err, true)
	}
	out, err := a.complete()
	if err != nil {
		return nil, classify(err, true)
	}
	return out, nil
}

// lively is a reader that tells before it waits for a part and after one came.
type lively struct {
	io.Reader
	alive func()
}

// Read implements io.Reader.
func (l *lively) Read(b []byte) (int, error) {
	l.alive()
	n, err := l.Reader.Read(b)
	if n > 0 {
		l.alive()
	}
	return n, err
}

// send sends a request.
func (c *client) send(ctx context.Context, r outgoing) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url(r.api), bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set(preset.HeaderPlace, "1")
	if r.stream {
		req.Header.Set("Accept", "text/event-stream, application/json")
	}
	return c.do(req, r.api)
}

// do sends a request with the API's version, and with the key in the header that the API has for it.
func (c *client) do(req *http.Request, api preset.API) (*http.Response, error) {
	h, key := req.Header, c.llm.APIKey
	if api == preset.Messages {
		h.Set("Anthropic-Version", "2023-06-01")
	}
	switch {
	case key == "":
	case api == preset.Messages:
		h.Set("X-Api-Key", key)
	default:
		h.Set("Authorization", "Bearer "+key)
	}
	if c.endpoint.Azure && key != "" {
		h.Set("Api-Key", key)
	}
	return c.http.Do(req)
}

// url is where an API is served. Anthropic's base URLs have no version by custom.
func (c *client) url(api preset.API) string {
	e := c.endpoint
	if api == preset.Messages {
		if v, _ := preset.VendorOf(c.llm.Model); c.llm.BaseURL == "" && v.Anthropic != "" {
			e.Base = v.Anthropic
		}
		e.Base = strings.TrimSuffix(e.Base, "/v1") + "/v1"
	}
	return e.URL(api.Path())
}

// request is the body of the call, for a server that takes everything.
func (c *client) request(p prompt) openai.ChatCompletionRequest {
	r := openai.ChatCompletionRequest{
		Model: c.model, Messages: p.messages, Tools: p.tools, Stream: p.onDelta != nil,
	}
	if p.noCalls && len(p.tools) > 0 {
		r.ToolChoice = "none"
	}
	if e := c.llm.ReasoningEffort; e != "" && e != "none" {
		r.ReasoningEffort = e
	}
	if n := c.llm.MaxOutputTokens; n != nil {
		if preset.Reasons(c.model) {
			r.MaxCompletionTokens = *n
		} else {
			r.MaxTokens = *n //nolint:staticcheck // what servers other than OpenAI's know
		}
	}
	if !preset.Reasons(c.model) {
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

// retryAfter is the time after which the server wants to be asked again, and whether it said so.
func retryAfter(h http.Header) (time.Duration, bool) {
	if ms, err := strconv.Atoi(strings.TrimSpace(h.Get("Retry-After-Ms"))); err == nil && ms >= 0 && ms < math.MaxInt32 {
		return time.Duration(ms) * time.Millisecond, true
	}
	value := strings.TrimSpace(h.Get("Retry-After"))
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

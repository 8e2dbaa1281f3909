package native

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"image"
	"image/color"
	"image/png"
	"net/http"
	"strings"
	"time"

	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
)

// Examination is what a model's server was found to take, as the built-in agent asks it.
type Examination struct {
	Model    string `json:"model"`
	Endpoint string `json:"endpoint"`
	// Reachable means that the model has answered. Otherwise Error says why it has not.
	Reachable bool   `json:"reachable"`
	Error     string `json:"error,omitempty"`
	// Window is in tokens, 0 for unknown. WindowFrom is "settings", "server" or "table".
	Window     int    `json:"window"`
	WindowFrom string `json:"window_from,omitempty"`
	Streaming  bool   `json:"streaming"`
	// Tools is "native", "written" for calls in texts, or "none".
	Tools string `json:"tools"`
	// Parallel means that one answer had two calls.
	Parallel bool `json:"parallel_calls"`
	// Vision is "yes", "no", or "unclear" where a picture was taken and its colour not told.
	Vision string `json:"vision"`
	// Repaired is what requests are sent without, or otherwise, after refusals.
	Repaired []string `json:"repaired"`
	// FirstSeconds is the time to the first part of the first answer, or to all of it.
	FirstSeconds     float64 `json:"first_answer_seconds"`
	PromptTokens     int     `json:"prompt_tokens"`
	CompletionTokens int     `json:"completion_tokens"`
}

// What a server is asked.
const (
	examineSystem = "You are tested. Answer in as few words as you can."
	examineCalls  = "Call the tool note twice in one answer: once with the text a, once with the text b."
	examineColour = "Which colour has the picture? Answer with one word."
	colourRed     = "red"
)

// Examine asks a model's server three short questions: for a text in parts, for two calls of a tool,
// and for the colour of a picture. It asks once: of a server that is busy nothing is found out.
func Examine(ctx context.Context, llm engine.LLM, transport http.RoundTripper) Examination {
	none := 0
	llm.NumRetries = &none
	c := newClient(llm, transport)
	x := Examination{Model: llm.Model, Endpoint: c.endpoint.Base, Tools: "none", Vision: "no", Repaired: []string{}}
	before := c.dialects.get()
	began, parts := time.Now(), 0
	ask := func(p prompt) (*answer, bool) {
		p.messages = append([]openai.ChatCompletionMessage{
			{Role: openai.ChatMessageRoleSystem, Content: examineSystem},
		}, p.messages...)
		p.withdraw = func() {}
		a, err := c.ask(ctx, p)
		if a != nil {
			x.PromptTokens += a.usage.PromptTokens
			x.CompletionTokens += a.usage.CompletionTokens
		}
		if err != nil && x.Error == "" && !x.Reachable {
			x.Error = examineError(err)
		}
		return a, err == nil
	}
	_, x.Reachable = ask(prompt{
		messages: []openai.ChatCompletionMessage{userText("Count from one to ten, in words.")},
		onDelta: func(string, string) {
			if parts++; parts == 1 {
				x.FirstSeconds = time.Since(began).Seconds()
			}
		},
	})
	if !x.Reachable {
		return x
	}
	if parts == 0 {
		x.FirstSeconds = time.Since(began).Seconds()
	}
	note := openai.Tool{Type: openai.ToolTypeFunction, Function: &openai.FunctionDefinition{
		Name: "note", Description: "Notes a text.", Parameters: json.RawMessage(
			`{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`),
	}}
	tools := []openai.Tool{note}
	if a, ok := ask(prompt{
		messages: []openai.ChatCompletionMessage{userText(examineCalls)}, tools: tools, onDelta: func(string, string) {},
	}); ok {
		settled := *a
		settled.settle(tools, c.dialects.reads())
		x.calls(settled.calls, c.dialects)
	}
	if a, ok := ask(prompt{messages: []openai.ChatCompletionMessage{redPicture()}}); ok {
		x.sees(a.text, c.dialects.get())
	}
	x.known(c, before)
	x.Streaming = parts > 1 && !c.dialects.get().noStream
	return x
}

func examineError(err error) string {
	var f *engine.Failure
	var r *refusal
	switch {
	case errors.As(err, &f):
		return f.Detail
	case errors.As(err, &r):
		return r.detail
	}
	return err.Error()
}

// calls notes how the model called the tool.
func (x *Examination) calls(list []openai.ToolCall, d *dialects) {
	n := 0
	for _, call := range list {
		if call.Function.Name == "note" {
			n++
		}
	}
	if n == 0 {
		return
	}
	if x.Parallel, x.Tools = n > 1, "written"; d.native && !d.get().written {
		x.Tools = "native"
	}
}

// sees notes what the model said of the picture.
func (x *Examination) sees(text string, d dialect) {
	switch {
	case d.noPictures:
	case strings.Contains(strings.ToLower(text), colourRed):
		x.Vision = "yes"
	default:
		x.Vision = "unclear"
	}
}

// known notes the window, and what was repaired.
func (x *Examination) known(c *client, before dialect) {
	x.Window = c.profile.get().Window
	switch p := c.profile; {
	case x.Window == 0:
	case p.told.Window > 0:
		x.WindowFrom = "settings"
	case p.listed.Window > 0:
		x.WindowFrom = "server"
	default:
		x.WindowFrom = "table"
	}
	x.Repaired = append(x.Repaired, before.repaired(c.dialects.get())...)
}

// repaired is what a dialect has become, in words.
func (d dialect) repaired(now dialect) (texts []string) {
	if d.api != now.api {
		texts = append(texts, "asked in the API "+string(now.api))
	}
	for _, of := range []struct {
		was, is bool
		text    string
	}{
		{d.noStream, now.noStream, "asked for whole answers, not streams"},
		{d.noStreamOptions, now.noStreamOptions, "sent without stream_options"},
		{d.noToolChoice, now.noToolChoice, "sent without tool_choice"},
		{d.noEffort, now.noEffort, "sent without an effort of reasoning"},
		{d.noSampling, now.noSampling, "sent without temperature and top_p"},
		{d.otherMax, now.otherMax, "the limit of output is sent under its other name"},
		{d.noMax, now.noMax, "sent without a limit of output"},
		{d.someMax, now.someMax, "sent with a limit of output"},
		{d.smallMax, now.smallMax, "sent with a small limit of output"},
		{d.noPictures, now.noPictures, "sent without pictures"},
		{d.noSystem, now.noSystem, "the system prompt is a message of the user"},
		{d.alternate, now.alternate, "messages of the user and the model alternate"},
		{d.plainSchemas, now.plainSchemas, "schemas of tools are sent in their plain form"},
		{d.fullContent, now.fullContent, "each message has a text"},
		{d.shortIDs, now.shortIDs, "ids of calls have nine characters"},
		{d.noThoughts, now.noThoughts, "sent without thoughts"},
		{d.thoughts, now.thoughts, "sent with thoughts"},
		{d.thoughtBudget, now.thoughtBudget, "thoughts are asked for with a budget"},
		{d.noCache, now.noCache, "no part of a prompt is marked for a cache"},
		{d.noSummary, now.noSummary, "no summary of thoughts is asked for"},
		{d.noEncrypted, now.noEncrypted, "thoughts to send back are not asked for"},
		{d.noThoughtsTo != "", now.noThoughtsTo != "", "sent without the thoughts that were refused"},
		{d.written, now.written, "tools are in the prompt, and calls are read in texts"},
		{d.told, now.told, "past calls are shown as texts"},
	} {
		if of.is && !of.was {
			texts = append(texts, of.text)
		}
	}
	return texts
}

// redPicture is a question about a picture of one colour.
func redPicture() openai.ChatCompletionMessage {
	const size = 64
	picture := image.NewRGBA(image.Rect(0, 0, size, size))
	for i := range size * size {
		picture.Set(i%size, i/size, color.RGBA{R: 255, A: 255})
	}
	var b bytes.Buffer
	if err := png.Encode(&b, picture); err != nil {
		panic(err) // a buffer takes it
	}
	url := "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
	return openai.ChatCompletionMessage{Role: openai.ChatMessageRoleUser, MultiContent: []openai.ChatMessagePart{
		{Type: openai.ChatMessagePartTypeText, Text: examineColour},
		{Type: openai.ChatMessagePartTypeImageURL, ImageURL: &openai.ChatMessageImageURL{URL: url}},
	}}
}

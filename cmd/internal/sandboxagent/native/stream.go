package native

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	openai "github.com/sashabaranov/go-openai"
)

// chunk is one part of a streamed answer. The library's type lacks what some servers add.
type chunk struct {
	ID      string `json:"id"`
	Choices []struct {
		Delta struct {
			Content          string            `json:"content"`
			Refusal          string            `json:"refusal"`
			ReasoningContent string            `json:"reasoning_content"`
			Reasoning        string            `json:"reasoning"` // vLLM's and OpenRouter's name
			ToolCalls        []openai.ToolCall `json:"tool_calls"`
		} `json:"delta"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage *usage `json:"usage"`
}

// usage has the cost where the server tells it, as OpenRouter does.
type usage struct {
	openai.Usage
	Cost *float64 `json:"cost"`
}

var (
	errTimeout   = errors.New("the model's server did not answer in time")
	errUnended   = errors.New("the answer ended before it was complete")
	errNoAnswer  = errors.New("the response has no answer in it")
	errUnbounded = fmt.Errorf("the answer is larger than %d MiB", largestAnswer>>20)
)

// stream asks for a streamed answer and puts it together. progress is called for each part.
func stream(
	ctx context.Context,
	cl *openai.Client,
	r openai.ChatCompletionRequest,
	onDelta func(text, reasoning string),
	progress func(),
) (*answer, error) {
	r.StreamOptions = &openai.StreamOptions{IncludeUsage: true}
	s, err := cl.CreateChatCompletionStream(ctx, r)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var a parts
	for {
		raw, err := s.RecvRaw()
		if errors.Is(err, io.EOF) {
			return a.complete()
		}
		if err != nil {
			return nil, err
		}
		progress()
		var c chunk
		if err := json.Unmarshal(raw, &c); err != nil {
			return nil, fmt.Errorf("the stream is not valid: %w", err)
		}
		a.add(c, onDelta)
		if a.size > largestAnswer {
			return nil, errUnbounded
		}
	}
}

// parts are the parts of an answer, until they are put together.
type parts struct {
	answer
	text, reasoning strings.Builder
	// arguments are those of the calls.
	arguments [][]byte
	size      int // bytes of all of them
}

// add appends a part.
func (a *parts) add(c chunk, onDelta func(text, reasoning string)) {
	if c.ID != "" {
		a.id = c.ID
	}
	if c.Usage != nil {
		a.usage, a.cost = c.Usage.Usage, c.Usage.Cost
	}
	if len(c.Choices) == 0 {
		return
	}
	choice := c.Choices[0]
	if choice.FinishReason != "" {
		a.finish = choice.FinishReason
	}
	d := choice.Delta
	text, reasoning := d.Content+d.Refusal, d.ReasoningContent
	reasoning = cmp.Or(reasoning, d.Reasoning)
	a.text.WriteString(text)
	a.reasoning.WriteString(reasoning)
	a.size += len(text) + len(reasoning)
	for _, call := range d.ToolCalls {
		a.addCall(call)
	}
	if text != "" || reasoning != "" {
		onDelta(text, reasoning)
	}
}

// addCall appends a part of a tool call. Servers without an index send each call whole.
func (a *parts) addCall(part openai.ToolCall) {
	a.size += len(part.ID) + len(part.Function.Name) + len(part.Function.Arguments)
	at := len(a.calls) - 1
	switch {
	case part.Index != nil:
		at = -1
		for i, c := range a.calls {
			if c.Index != nil && *c.Index == *part.Index {
				at = i
			}
		}
		// Some servers count every call as the first one.
		if at >= 0 && part.ID != "" && a.calls[at].ID != "" && part.ID != a.calls[at].ID {
			at = -1
		}
	case part.ID != "" || part.Function.Name != "":
		at = -1
	}
	if at < 0 {
		a.calls = append(a.calls, part)
		a.arguments = append(a.arguments, []byte(part.Function.Arguments))
		return
	}
	c := &a.calls[at]
	c.ID = cmp.Or(c.ID, part.ID)
	c.Function.Name = cmp.Or(c.Function.Name, part.Function.Name)
	a.arguments[at] = append(a.arguments[at], part.Function.Arguments...)
}

// complete puts the answer together, and refuses what is not a whole one.
func (a *parts) complete() (*answer, error) {
	switch {
	case a.finish != "":
	case a.id == "" && a.text.Len() == 0 && len(a.calls) == 0:
		return nil, errNoAnswer
	default:
		return nil, errUnended
	}
	out := a.answer
	out.text, out.reasoning = a.text.String(), a.reasoning.String()
	for i := range out.calls {
		out.calls[i].Function.Arguments = string(a.arguments[i])
	}
	return &out, nil
}

// whole asks for the answer in one piece.
func whole(ctx context.Context, cl *openai.Client, r openai.ChatCompletionRequest) (*answer, error) {
	resp, err := cl.CreateChatCompletion(ctx, r)
	if err != nil {
		return nil, err
	}
	if len(resp.Choices) == 0 {
		return nil, errNoAnswer
	}
	choice := resp.Choices[0]
	size := len(choice.Message.Content) + len(choice.Message.ReasoningContent)
	for _, c := range choice.Message.ToolCalls {
		size += len(c.Function.Arguments)
	}
	if size > largestAnswer {
		return nil, errUnbounded
	}
	return &answer{
		id: resp.ID, text: choice.Message.Content + choice.Message.Refusal, reasoning: choice.Message.ReasoningContent,
		calls: choice.Message.ToolCalls, finish: string(choice.FinishReason), usage: resp.Usage,
	}, nil
}

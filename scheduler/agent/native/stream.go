package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

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
func stream(ctx context.Context, cl *openai.Client, r openai.ChatCompletionRequest, onDelta func(text, reasoning string), progress func()) (*answer, error) {
	r.StreamOptions = &openai.StreamOptions{IncludeUsage: true}
	s, err := cl.CreateChatCompletionStream(ctx, r)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var a answer
	size := 0
	for {
		raw, err := s.RecvRaw()
		if errors.Is(err, io.EOF) {
			return a.complete()
		}
		if err != nil {
			return nil, err
		}
		progress()
		if size += len(raw); size > 8*largestAnswer { // a part's frame is larger than its text
			return nil, errUnbounded
		}
		var c chunk
		if err := json.Unmarshal(raw, &c); err != nil {
			return nil, fmt.Errorf("the stream is not valid: %w", err)
		}
		a.add(c, onDelta)
		if len(a.text)+len(a.reasoning) > largestAnswer {
			return nil, errUnbounded
		}
	}
}

// add appends a part.
func (a *answer) add(c chunk, onDelta func(text, reasoning string)) {
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
	if reasoning == "" {
		reasoning = d.Reasoning
	}
	a.text += text
	a.reasoning += reasoning
	for _, call := range d.ToolCalls {
		a.addCall(call)
	}
	if text != "" || reasoning != "" {
		onDelta(text, reasoning)
	}
}

// addCall appends a part of a tool call. Servers without an index send each call whole.
func (a *answer) addCall(part openai.ToolCall) {
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
		return
	}
	c := &a.calls[at]
	if c.ID == "" {
		c.ID = part.ID
	}
	if c.Function.Name == "" {
		c.Function.Name = part.Function.Name
	}
	c.Function.Arguments += part.Function.Arguments
}

// complete refuses what is not a whole answer.
func (a *answer) complete() (*answer, error) {
	switch {
	case a.finish != "":
		return a, nil
	case a.id == "" && a.text == "" && len(a.calls) == 0:
		return nil, errNoAnswer
	}
	return nil, errUnended
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
	return &answer{
		id: resp.ID, text: choice.Message.Content + choice.Message.Refusal, reasoning: choice.Message.ReasoningContent,
		calls: choice.Message.ToolCalls, finish: string(choice.FinishReason), usage: resp.Usage,
	}, nil
}

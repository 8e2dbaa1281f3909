package native

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// Servers write the protocol's values in other types than OpenAI's, so that the types here take
// whatever there is. What is sent is strict: fit.go.

// frame is a chunk of a stream, or a whole answer: some servers send the one for the other.
type frame struct {
	ID      loose           `json:"id"`
	Choices []choice        `json:"choices"`
	Usage   json.RawMessage `json:"usage"`
	Error   json.RawMessage `json:"error"`
}

type choice struct {
	Delta        *said           `json:"delta"`
	Message      *said           `json:"message"`
	FinishReason loose           `json:"finish_reason"`
	Error        json.RawMessage `json:"error"`
}

// said is a message or a part of it.
type said struct {
	Content          content   `json:"content"`
	Refusal          content   `json:"refusal"`
	ReasoningContent content   `json:"reasoning_content"`
	Reasoning        content   `json:"reasoning"` // vLLM's and OpenRouter's name
	ToolCalls        callParts `json:"tool_calls"`
	FunctionCall     *function `json:"function_call"` // the form before tools
}

type callPart struct {
	Index    *amount  `json:"index"`
	ID       loose    `json:"id"`
	Function function `json:"function"`
}

type function struct {
	Name      loose `json:"name"`
	Arguments loose `json:"arguments"`
}

// callParts are a list, or one call in the place of it.
type callParts []callPart

// UnmarshalJSON implements json.Unmarshaler.
func (p *callParts) UnmarshalJSON(b []byte) error {
	var list []callPart
	if json.Unmarshal(b, &list) == nil {
		*p = list
		return nil
	}
	var one callPart
	if err := json.Unmarshal(b, &one); err != nil {
		return err
	}
	*p = callParts{one}
	return nil
}

// loose is a text; what is none is its JSON, and null is nothing.
type loose string

// UnmarshalJSON implements json.Unmarshaler.
func (l *loose) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) != nil {
		text = string(b)
	}
	*l = loose(text)
	return nil
}

// amount is a number or its text; what is none is 0.
type amount float64

// UnmarshalJSON implements json.Unmarshaler.
func (n *amount) UnmarshalJSON(b []byte) error {
	f, err := strconv.ParseFloat(strings.Trim(string(b), `"`), 64)
	if err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
		*n = amount(f)
	}
	return nil
}

// content is a text, or a list of parts. Parts without a text count for nothing.
type content struct{ text, thinking string }

// deepest bounds how deep the text of a content is: each level is decoded anew. Mistral's thoughts, a
// list of objects with a list of objects, are the deepest known.
const deepest = 4

// UnmarshalJSON implements json.Unmarshaler.
func (c *content) UnmarshalJSON(b []byte) error {
	c.read(b, deepest)
	return nil
}

// read adds a text, or that of a list or an object with up to as many levels.
func (c *content) read(b json.RawMessage, levels int) {
	var text string
	var list []json.RawMessage
	var part struct {
		Text     json.RawMessage `json:"text"`
		Thinking json.RawMessage `json:"thinking"`
	}
	switch {
	case json.Unmarshal(b, &text) == nil:
		c.text += text
	case levels == 0:
	case json.Unmarshal(b, &list) == nil:
		var texts, thoughts strings.Builder
		for _, raw := range list {
			var one content
			one.read(raw, levels-1)
			texts.WriteString(one.text)
			thoughts.WriteString(one.thinking)
		}
		c.text += texts.String()
		c.thinking += thoughts.String()
	case json.Unmarshal(b, &part) == nil:
		var thought content
		c.read(part.Text, levels-1)
		thought.read(part.Thinking, levels-1)
		c.thinking = thought.text
	}
}

// counts are the tokens that a server counted, with the cost where it tells it, as OpenRouter does.
type counts struct {
	Prompt        amount  `json:"prompt_tokens"`
	Completion    amount  `json:"completion_tokens"`
	Cost          *amount `json:"cost"`
	PromptDetails struct {
		Cached amount `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		Reasoning amount `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

func (c counts) usage() openai.Usage {
	return openai.Usage{
		PromptTokens: int(c.Prompt), CompletionTokens: int(c.Completion), TotalTokens: int(c.Prompt + c.Completion),
		PromptTokensDetails:     &openai.PromptTokensDetails{CachedTokens: int(c.PromptDetails.Cached)},
		CompletionTokensDetails: &openai.CompletionTokensDetails{ReasoningTokens: int(c.CompletionDetails.Reasoning)},
	}
}

var (
	errTimeout   = errors.New("the model's server did not answer in time")
	errUnended   = errors.New("the answer ended before it was complete")
	errNoAnswer  = errors.New("the response has no answer in it")
	errUnbounded = fmt.Errorf("the answer is larger than %d MiB", largestAnswer>>20)
	errCalls     = fmt.Errorf("%w: it has more than %d calls", errUnbounded, mostCalls)
	errItems     = fmt.Errorf("%w: it has more than %d items", errUnbounded, mostItems)
)

const (
	// leastPart is what a part of a call counts at least, in bytes.
	leastPart = 16
	// mostItems bounds the items of an answer that come in parts.
	mostItems = 1024
	// longestID bounds the ids and the reasons to finish that are kept, in bytes.
	longestID = 256
)

// parts are the parts of an answer, until they are put together.
type parts struct {
	answer
	text, reasoning strings.Builder
	// calls have their arguments here.
	calls []*callParted
	size  int // bytes of all of them
	// done reports that the server said that this is the end, in one of the ways in which it can; ended
	// that nothing comes after it.
	done, ended bool
	shown       *display
	// block is the place among blocks of the one that grows, item the thoughts before the next call, and
	// streams are the items that came in parts.
	block   int
	item    event.Any
	streams map[amount]bool
}

type callParted struct {
	index     *amount
	id, name  string
	arguments []byte
	extent    extent    // that of the arguments
	whole     []byte    // the arguments in one piece, where a server sends them so, too
	item      event.Any // the thoughts before it
}

// extent tells where a JSON value may end, part after part, without reading it again.
type extent struct {
	depth                  int
	begun, within, escaped bool
}

// add reads a part.
func (e *extent) add(part []byte) {
	for _, c := range part {
		switch {
		case e.escaped:
			e.escaped = false
		case e.within && c == '\\':
			e.escaped = true
		case c == '"':
			e.within, e.begun = !e.within, true
		case e.within, c == ' ', c == '\t', c == '\r', c == '\n':
		case c == '{', c == '[':
			e.depth++
			e.begun = true
		case c == '}', c == ']':
			e.depth--
			e.begun = true
		default:
			e.begun = true
		}
	}
}

// ended reports whether nothing more can belong to the value.
func (e *extent) ended() bool { return e.begun && !e.within && e.depth <= 0 }

// read reads an answer, streamed or whole, whatever was asked for.
func (a *parts) read(body io.Reader) error {
	r := bufio.NewReaderSize(body, 64<<10)
	for {
		b, err := r.ReadByte()
		if err != nil {
			return ignoreEnd(err)
		}
		if strings.ContainsRune(" \t\r\n", rune(b)) {
			continue
		}
		if err := r.UnreadByte(); err != nil {
			return err
		}
		if b == '{' {
			return a.readObjects(r)
		}
		return a.readEvents(r)
	}
}

func ignoreEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// readObjects reads a whole answer, or one chunk after the other without the form of events.
func (a *parts) readObjects(r io.Reader) error {
	d := json.NewDecoder(r)
	for {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return ignoreEnd(err)
		}
		if err := a.event(raw); err != nil {
			return err
		}
	}
}

// readEvents reads server-sent events. An event ends where its data is a JSON value: some servers
// leave out the empty lines, or the last newline.
func (a *parts) readEvents(r *bufio.Reader) error {
	var data []byte
	var value extent
	for {
		line, err := r.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		ended := err != nil
		line = bytes.TrimRight(line, "\r\n")
		part, is := bytes.CutPrefix(line, []byte("data:"))
		if bytes.HasPrefix(line, []byte("{")) {
			part, is = line, true // an error in the middle, written by a proxy
		}
		if is {
			data = append(data, bytes.TrimPrefix(part, []byte(" "))...)
			value.add(part)
			if string(bytes.TrimSpace(data)) == "[DONE]" {
				a.done = a.done || len(a.calls) > 0 || a.text.Len() > 0 || a.reasoning.Len() > 0
				return nil
			}
		}
		switch empty := len(bytes.TrimSpace(data)) == 0; {
		case empty:
			data = data[:0]
		case value.ended():
			if err := a.event(data); err != nil || a.ended {
				return err
			}
			data, value = data[:0], extent{}
		case ended:
			return errUnended
		case len(line) == 0:
			return fmt.Errorf("the stream is not valid: %.60q", data)
		case is:
			data = append(data, '\n')
		}
		if ended {
			return nil
		}
	}
}

// add appends a frame. Its error is a *serverError, or errUnbounded.
func (a *parts) add(f frame) error {
	a.id = cmp.Or(bounded(f.ID), a.id)
	a.size += len(f.ID)
	var c counts
	_ = json.Unmarshal(f.Usage, &c) // what can't be read counts as nothing
	if c.Prompt > 0 || c.Completion > 0 {
		a.usage, a.cost = c.usage(), nil
		if c.Cost != nil {
			cost := float64(*c.Cost)
			a.cost = &cost
		}
		// The tokens of all come last, without a choice.
		a.done = a.done || len(f.Choices) == 0 && (a.text.Len() > 0 || len(a.calls) > 0)
	}
	if e := saysError(f.Error); e != nil {
		return e
	}
	if len(f.Choices) == 0 {
		return nil
	}
	one := f.Choices[0]
	if one.FinishReason != "" {
		a.finish = bounded(one.FinishReason)
		a.size += len(one.FinishReason)
	}
	if e := saysError(one.Error); e != nil {
		return e
	}
	if a.finish == "error" {
		return &serverError{message: "the model's server broke the answer off with the reason \"error\""}
	}
	if one.Message != nil {
		a.done = true
		a.say(one.Message)
	}
	if one.Delta != nil {
		a.say(one.Delta)
	}
	switch {
	case a.size > largestAnswer:
		return errUnbounded
	case len(a.calls) > mostCalls:
		return errCalls
	}
	return nil
}

// bounded is the beginning of an id or a reason: it is kept with each call.
func bounded(text loose) string {
	if len(text) > longestID {
		return strings.ToValidUTF8(string(text[:longestID]), "")
	}
	return string(text)
}

// say appends a message or a part of it.
func (a *parts) say(s *said) {
	text := s.Content.text + s.Refusal.text
	reasoning := s.Content.thinking + cmp.Or(s.ReasoningContent.text, s.Reasoning.text)
	a.text.WriteString(text)
	a.reasoning.WriteString(reasoning)
	a.size += len(text) + len(reasoning)
	if text != "" || reasoning != "" {
		a.shown.add(text, reasoning)
	}
	for _, c := range s.ToolCalls {
		a.addCall(c)
	}
	if s.FunctionCall != nil {
		first := amount(0)
		a.addCall(callPart{Index: &first, Function: *s.FunctionCall})
	}
}

// addCall appends a part of a call.
func (a *parts) addCall(p callPart) {
	a.size += leastPart + len(p.ID) + len(p.Function.Name) + len(p.Function.Arguments)
	if len(a.calls) > mostCalls {
		return
	}
	p.ID, p.Function.Name = loose(bounded(p.ID)), loose(bounded(p.Function.Name))
	at := a.place(p)
	if at < 0 {
		a.calls = append(a.calls, &callParted{index: p.Index})
		at = len(a.calls) - 1
	}
	c := a.calls[at]
	c.id, c.name = cmp.Or(c.id, string(p.ID)), cmp.Or(c.name, string(p.Function.Name))
	c.arguments = append(c.arguments, p.Function.Arguments...)
	c.extent.add([]byte(p.Function.Arguments))
}

// place is the call that a part belongs to; -1 begins another one. Servers without an index send
// each call whole, and some count every call as the first one.
func (a *parts) place(p callPart) int {
	at := len(a.calls) - 1
	switch {
	case p.Index != nil:
		for at >= 0 && (a.calls[at].index == nil || *a.calls[at].index != *p.Index) {
			at--
		}
	case p.ID == "" && p.Function.Name == "":
		return at
	case at >= 0 && (p.ID == "" || a.calls[at].id != string(p.ID)):
		return -1
	}
	if at < 0 {
		return -1
	}
	c := a.calls[at]
	if p.ID != "" && c.id != "" && string(p.ID) != c.id {
		return -1
	}
	if p.Function.Name != "" && p.Function.Arguments != "" && c.name != "" && c.extent.ended() {
		return -1
	}
	return at
}

// complete puts the answer together, and refuses what is not a whole one.
func (a *parts) complete() (*answer, error) {
	switch {
	case a.finish != "" || a.done:
	case a.text.Len() == 0 && len(a.calls) == 0 && a.reasoning.Len() == 0:
		return nil, errNoAnswer
	default:
		return nil, errUnended
	}
	out := a.answer
	out.text, out.reasoning = a.text.String(), a.reasoning.String()
	for _, c := range a.calls {
		arguments := c.arguments
		if len(c.whole) > 0 && !c.extent.ended() {
			arguments = c.whole
		}
		out.calls = append(out.calls, openai.ToolCall{
			ID: c.id, Type: openai.ToolTypeFunction,
			Function: openai.FunctionCall{Name: c.name, Arguments: string(arguments)},
		})
		if len(c.item) > 0 {
			if out.items == nil {
				out.items = map[string]event.Any{}
			}
			out.items[c.id] = c.item
		}
	}
	return &out, nil
}

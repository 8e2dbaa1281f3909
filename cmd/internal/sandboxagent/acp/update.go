package acp

import (
	"cmp"
	"encoding/json"
	"strings"
	"unicode/utf8"

	sdk "github.com/coder/acp-go-sdk"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

const (
	methodUpdate = sdk.ClientMethodSessionUpdate
	// maxEventText is the most characters of a string in an event of a tool call.
	maxEventText = 30_000
)

// The statuses of a tool call.
const (
	callPending   = "pending"
	callCompleted = "completed"
	callFailed    = "failed"
)

// update is one session update. A member of an unexpected type costs the update, not the turn.
type update struct {
	Kind string `json:"sessionUpdate"`
	call
	Size float64 `json:"size"`
	Cost *struct {
		Amount float64 `json:"amount"`
	} `json:"cost"`
}

// call is what is known of one tool call.
type call struct {
	ID        string          `json:"toolCallId"`
	Title     string          `json:"title"`
	Kind      string          `json:"kind"`
	Status    string          `json:"status"`
	RawInput  json.RawMessage `json:"rawInput"`
	RawOutput json.RawMessage `json:"rawOutput"`
	Content   json.RawMessage `json:"content"`

	// begun and ended are set when the events of its start and end are stored.
	begun, ended bool
}

// merge takes what a later update says.
func (c *call) merge(u call) {
	for _, m := range []struct{ have, now *string }{{&c.Title, &u.Title}, {&c.Kind, &u.Kind}, {&c.Status, &u.Status}} {
		if *m.now != "" {
			*m.have = *m.now
		}
	}
	for _, m := range []struct{ have, now *json.RawMessage }{
		{&c.RawInput, &u.RawInput},
		{&c.RawOutput, &u.RawOutput},
		{&c.Content, &u.Content},
	} {
		if len(*m.now) > 0 && string(*m.now) != "null" {
			*m.have = *m.now
		}
	}
}

func (c *call) over() bool { return c.Status == callCompleted || c.Status == callFailed }

// event returns the call as it is known now, with each text passed through mask.
func (c *call) event(mask func(string) string) *event.ACPToolCall {
	title := cmp.Or(c.Title, c.ID)
	e := &event.ACPToolCall{
		Head: event.Head{Source: event.SourceAgent}, ToolCallID: c.ID, Title: bounded(mask(title)),
		RawInput: boundedJSON(c.RawInput, mask), RawOutput: boundedJSON(c.RawOutput, mask), Content: boundedJSON(c.Content,
			mask),
		IsError: c.Status == callFailed,
	}
	// The event outlives the call's present status.
	if status := c.Status; status != "" {
		e.Status = &status
	}
	if kind := c.Kind; kind != "" {
		e.ToolKind = &kind
	}
	return e
}

// bounded cuts a text to what an event may have.
func bounded(s string) string {
	if len(s) <= maxEventText || utf8.RuneCountInString(s) <= maxEventText {
		return s
	}
	return string([]rune(s)[:maxEventText])
}

// boundedJSON masks and cuts every text in a value.
func boundedJSON(raw json.RawMessage, mask func(string) string) event.Any {
	if len(raw) == 0 {
		return nil
	}
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return nil
	}
	b, err := json.Marshal(boundedValue(v, mask))
	if err != nil {
		return nil
	}
	return b
}

func boundedValue(v any, mask func(string) string) any {
	switch v := v.(type) {
	case string:
		return bounded(mask(v))
	case []any:
		for i := range v {
			v[i] = boundedValue(v[i], mask)
		}
	case map[string]any:
		for k := range v {
			v[k] = boundedValue(v[k], mask)
		}
	}
	return v
}

// contentText returns the text of a content block.
func contentText(raw json.RawMessage) string {
	var block struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &block) != nil {
		return ""
	}
	return block.Text
}

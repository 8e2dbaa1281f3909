package modeltest

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// Request is a request as the server got it, in one form for all protocols.
type Request struct {
	Protocol string // "chat", "responses", "anthropic", "gemini"
	Path     string // with the query
	Header   http.Header
	Body     json.RawMessage
	// Key is the key that the request bore, as its protocol carries it.
	Key      string
	Model    string
	Stream   bool
	Messages []Message
	Tools    []string // names of the tools that are offered
	// Number counts the server's requests, from 1.
	Number int
	// Status is what the server answered. 0 means that it closed the connection without an answer.
	Status int
	// Gone reports that the client went away before the answer was written.
	Gone bool
}

// Message is one message of a request. The result of a tool has the role "tool".
type Message struct {
	Role      string
	Text      string
	Reasoning string
	Calls     []Call
	CallID    string // of a tool's result
}

// LastUser is the text of the last user message.
func (r Request) LastUser() string {
	for _, m := range slices.Backward(r.Messages) {
		if m.Role == "user" {
			return m.Text
		}
	}
	return ""
}

// Turn is the number of assistant messages after the last user message.
func (r Request) Turn() int {
	n := 0
	for _, m := range slices.Backward(r.Messages) {
		switch m.Role {
		case "user":
			return n
		case "assistant":
			n++
		}
	}
	return n
}

// Result is the text of the last tool result.
func (r Request) Result() string {
	for _, m := range slices.Backward(r.Messages) {
		if m.Role == "tool" {
			return m.Text
		}
	}
	return ""
}

// text joins the texts of the messages of these roles, of all without a role.
func (r Request) text(roles ...string) string {
	var b strings.Builder
	for _, m := range r.Messages {
		if len(roles) == 0 || slices.Contains(roles, m.Role) {
			b.WriteString(m.Text)
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// usage is what is reported for the answer.
func (r Request) usage(a Answer) Usage {
	if a.Usage != nil {
		return *a.Usage
	}
	out := len(a.Text) + len(a.Reasoning)
	for _, c := range a.Calls {
		out += len(c.Name) + len(c.ArgumentsText())
	}
	return Usage{Prompt: len(r.Body)/4 + 1, Completion: out/4 + 1, Reasoning: len(a.Reasoning) / 4}
}

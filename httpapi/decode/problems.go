package decode

import (
	"encoding/json"
	"strings"
)

// Masked replaces a secret in responses.
const Masked = "**********"

// MaxProblems limits the entries of one validation error; further ones are dropped.
const MaxProblems = 1000

// Problem is one entry of a validation error (API.md, "Validation").
type Problem struct {
	Type  string         `json:"type"`
	Loc   []string       `json:"loc"`
	Msg   string         `json:"msg"`
	Input any            `json:"input"`
	Ctx   map[string]any `json:"ctx,omitempty"`
}

// Problems collects the validation errors of one request. It is an error if it has any.
type Problems struct {
	List []Problem
	// Reads records the readers instead of reading; nil for a request that is served.
	Reads *Reads
}

// Error implements error. It contains no input.
func (p *Problems) Error() string {
	var b strings.Builder
	b.WriteString("invalid request")
	for i, one := range p.List {
		if i == 3 {
			b.WriteString("; …")
			break
		}
		b.WriteString("; ")
		b.WriteString(strings.Join(one.Loc, "."))
		b.WriteString(": ")
		b.WriteString(one.Type)
	}
	return b.String()
}

// Err returns p, or nil if there are no problems.
func (p *Problems) Err() error {
	if len(p.List) == 0 && p.Reads == nil {
		return nil
	}
	return p
}

// Add adds a problem. input must have gone through Echo.
func (p *Problems) Add(typ string, loc []string, msg string, input any, ctx map[string]any) {
	if len(p.List) >= MaxProblems {
		return
	}
	p.List = append(p.List, Problem{Type: typ, Loc: loc, Msg: msg, Input: input, Ctx: ctx})
}

// Missing adds a problem for an absent required field.
func (p *Problems) Missing(loc []string, input any) {
	p.Add("missing", loc, "Field required", input, nil)
}

// Value adds a problem for a broken custom rule.
func (p *Problems) Value(loc []string, text string, input any) {
	p.Add("value_error", loc, "Value error, "+text, input, map[string]any{"error": text})
}

// At returns loc with more appended, in a new slice.
func At(loc []string, more ...string) []string {
	out := make([]string, 0, len(loc)+len(more))
	return append(append(out, loc...), more...)
}

// Limits of an echoed input, which only helps to find the place.
const (
	echoText  = 256
	echoItems = 20
	echoDepth = 2
)

// Echo returns what a problem's input may show of v. Strings inside lists and maps are always
// masked: a value in the wrong place may be a secret. A plain value is masked only in a secret
// field.
func Echo(v any, secret bool) any {
	switch t := v.(type) {
	case map[string]any, []any:
		return echoTree(t, 0)
	case string:
		if secret {
			return Masked
		}
		return Truncate(Redact(t), echoText)
	case json.Number:
		if secret {
			return Masked
		}
		return truncateNumber(t)
	}
	return v
}

func echoTree(v any, depth int) any {
	switch t := v.(type) {
	case map[string]any:
		if depth == echoDepth {
			return map[string]any{}
		}
		out := make(map[string]any, min(len(t), echoItems))
		for _, k := range SortedKeys(t) {
			if len(out) == echoItems {
				break
			}
			if !isPlainName(k) {
				continue
			}
			out[k] = echoTree(t[k], depth+1)
		}
		return out
	case []any:
		if depth == echoDepth {
			return []any{}
		}
		out := make([]any, 0, min(len(t), echoItems))
		for _, e := range t[:min(len(t), echoItems)] {
			out = append(out, echoTree(e, depth+1))
		}
		return out
	case bool, nil:
		return t
	}
	return Masked
}

// isPlainName reports whether a member name looks like a field's name. Other names may be secrets
// and are not echoed.
func isPlainName(s string) bool {
	if s == "" || len(s) > 48 {
		return false
	}
	for _, c := range s {
		if c != '_' && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

// PlainOr returns the name if it may be shown, otherwise Masked.
func PlainOr(name string) string {
	if isPlainName(name) {
		return name
	}
	return Masked
}

// truncateNumber converts a number that JSON decoders may reject to a string.
func truncateNumber(n json.Number) any {
	if _, err := n.Float64(); err != nil || len(n) > 64 {
		return Truncate(string(n), 64)
	}
	return n
}

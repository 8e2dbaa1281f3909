package httpapi

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// masked stands in answers where a secret would.
const masked = "**********"

// maxProblems bounds the entries of one validation answer; beyond it they are
// only counted out.
const maxProblems = 1000

// problem is one entry of a validation error (seed-api.md 2.6, with the input
// and ctx members of api-contract.md A.0.4).
type problem struct {
	Type  string         `json:"type"`
	Loc   []string       `json:"loc"`
	Msg   string         `json:"msg"`
	Input any            `json:"input"`
	Ctx   map[string]any `json:"ctx,omitempty"`
}

// problems collects every validation error of one request. It is an error
// itself once it holds any.
type problems struct {
	list []problem
}

// Error implements error, without any input.
func (p *problems) Error() string {
	var b strings.Builder
	b.WriteString("invalid request")
	for i, one := range p.list {
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

// err is nil while nothing is wrong.
func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	return p
}

// add notes one problem. input must have gone through echo.
func (p *problems) add(typ string, loc []string, msg string, input any, ctx map[string]any) {
	if len(p.list) >= maxProblems {
		return
	}
	p.list = append(p.list, problem{Type: typ, Loc: loc, Msg: msg, Input: input, Ctx: ctx})
}

// missing notes an absent required field.
func (p *problems) missing(loc []string, input any) {
	p.add("missing", loc, "Field required", input, nil)
}

// value notes a broken custom rule.
func (p *problems) value(loc []string, text string, input any) {
	p.add("value_error", loc, "Value error, "+text, input, map[string]any{"error": text})
}

// at appends to a location without sharing memory with it.
func at(loc []string, more ...string) []string {
	out := make([]string, 0, len(loc)+len(more))
	return append(append(out, loc...), more...)
}

// Bounds of an echoed input: it helps the reader find the place, no more.
const (
	echoText  = 256
	echoItems = 20
	echoDepth = 2
)

// echo gives what the input member of a problem may show of v. Texts inside
// lists and maps are masked always, because a value that is in the wrong place
// may be a secret; a bare one only where the field is a secret.
func echo(v any, secret bool) any {
	switch t := v.(type) {
	case map[string]any, []any:
		return echoTree(t, 0)
	case string:
		if secret {
			return masked
		}
		return truncate(t, echoText)
	case json.Number:
		if secret {
			return masked
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
		for _, k := range sortedKeys(t) {
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
	return masked
}

// isPlainName reports whether a member name looks like a field's name, so that
// a secret that was sent as a name is not echoed.
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

// truncateNumber makes a text of a number that JSON readers choke on.
func truncateNumber(n json.Number) any {
	if _, err := n.Float64(); err != nil || len(n) > 64 {
		return truncate(string(n), 64)
	}
	return n
}

// truncate cuts s to at most n bytes, at a character's border.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

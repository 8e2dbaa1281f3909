package httpapi

import (
	"net/url"
	"slices"
	"strings"
	"time"
)

// query reads the query parameters of one request and notes what is wrong with
// them. Parameters nobody asks for are ignored. Of a repeated parameter the last
// one counts, as upstream.
type query struct {
	values url.Values
	errs   *problems
}

// last gives the parameter's last value.
func (q query) last(name string) (string, bool) {
	v := q.values[name]
	if len(v) == 0 {
		return "", false
	}
	return v[len(v)-1], true
}

func (q query) fail(name, input string, f *fault) {
	q.errs.add(f.typ, []string{"query", name}, f.msg, echo(input, false), f.ctx)
}

// text reads a string parameter of at most limit characters; absent is nil.
func (q query) text(name string, limit int) *string {
	s, ok := q.last(name)
	if !ok {
		return nil
	}
	if len(s) > limit {
		q.fail(name, s, tooLongText(limit))
		return nil
	}
	return &s
}

// integer reads an integer parameter within (above, atMost].
func (q query) integer(name string, otherwise, above, atMost int64) int64 {
	s, ok := q.last(name)
	if !ok {
		return otherwise
	}
	n, f := textToInt(s)
	switch {
	case f != nil:
	case n <= above:
		f = greaterThan(above)
	case n > atMost:
		f = lessEqual(atMost)
	default:
		return n
	}
	q.fail(name, s, f)
	return otherwise
}

// boolean reads a boolean parameter.
func (q query) boolean(name string) bool {
	s, ok := q.last(name)
	if !ok {
		return false
	}
	b, f := toBool(s)
	if f != nil {
		q.fail(name, s, f)
	}
	return b
}

// time reads a date and time; absent is nil.
func (q query) time(name string) *time.Time {
	s, ok := q.last(name)
	if !ok {
		return nil
	}
	t, f := toTime(s)
	if f != nil {
		q.fail(name, s, f)
		return nil
	}
	return &t
}

// uuid reads a UUID as 32 hex characters; absent is "".
func (q query) uuid(name string) string {
	s, ok := q.last(name)
	if !ok {
		return ""
	}
	hex, f := toUUID(s)
	if f != nil {
		q.fail(name, s, f)
	}
	return hex
}

// enum reads one of the allowed texts.
func (q query) enum(name, otherwise string, allowed []string) string {
	s, ok := q.last(name)
	if !ok {
		return otherwise
	}
	if !slices.Contains(allowed, s) {
		q.fail(name, s, enumFault(allowed))
		return otherwise
	}
	return s
}

// required gives every value of a repeated parameter and notes its absence.
func (q query) required(name string) []string {
	v := q.values[name]
	if len(v) == 0 {
		q.errs.missing([]string{"query", name}, nil)
	}
	return v
}

// pythonList writes texts the way upstream's error texts do: ['a', 'b'].
func pythonList(items []string) string {
	quoted := make([]string, 0, min(len(items), echoItems))
	for _, s := range items[:min(len(items), echoItems)] {
		quoted = append(quoted, "'"+truncate(s, 64)+"'")
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

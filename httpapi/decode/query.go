package decode

import (
	"net/url"
	"slices"
	"strings"
	"time"
)

// Query reads the query parameters of one request and collects what is wrong with them. Unknown
// parameters are ignored. As upstream, the last of a repeated parameter counts.
type Query struct {
	Values   url.Values
	Problems *Problems
}

// Last returns the parameter's last value.
func (q Query) Last(name string) (string, bool) {
	if q.Problems.Reads != nil {
		q.Problems.Reads.parameter(name, "string", "")
	}
	v := q.Values[name]
	if len(v) == 0 {
		return "", false
	}
	return v[len(v)-1], true
}

func (q Query) fail(name, input string, f *Fault) {
	q.Problems.Add(f.Type, []string{"query", name}, f.Message, Echo(input, false), f.Context)
}

// Text reads a string of at most limit characters; nil if absent.
func (q Query) Text(name string, limit int) *string {
	if r := q.Problems.Reads; r != nil {
		return r.parameter(name, "string", "").text(limit)
	}
	s, ok := q.Last(name)
	if !ok {
		return nil
	}
	if isLonger(s, limit) {
		q.fail(name, s, tooLong(limit))
		return nil
	}
	return &s
}

// Integer reads an integer greater than above and at most atMost; otherwise if absent or invalid.
func (q Query) Integer(name string, otherwise, above, atMost int64) int64 {
	if r := q.Problems.Reads; r != nil {
		one := r.parameter(name, "integer", "")
		one.Minimum, one.Maximum, one.Default = new(above+1), &atMost, otherwise
		return otherwise
	}
	s, ok := q.Last(name)
	if !ok {
		return otherwise
	}
	n, f := textToInt(s)
	switch {
	case f != nil:
	case n <= above:
		f = GreaterThan(above)
	case n > atMost:
		f = LessEqual(atMost)
	default:
		return n
	}
	q.fail(name, s, f)
	return otherwise
}

// Boolean reads a boolean; false if absent or invalid.
func (q Query) Boolean(name string) bool {
	if r := q.Problems.Reads; r != nil {
		r.parameter(name, "boolean", "")
		return false
	}
	s, ok := q.Last(name)
	if !ok {
		return false
	}
	b, f := ToBool(s)
	if f != nil {
		q.fail(name, s, f)
	}
	return b
}

// Time reads a date and time; nil if absent or invalid.
func (q Query) Time(name string) *time.Time {
	if r := q.Problems.Reads; r != nil {
		r.parameter(name, "string", "date-time")
		return nil
	}
	s, ok := q.Last(name)
	if !ok {
		return nil
	}
	t, f := ToTime(s)
	if f != nil {
		q.fail(name, s, f)
		return nil
	}
	return &t
}

// UUID reads a UUID and returns 32 hex characters; "" if absent or invalid.
func (q Query) UUID(name string) string {
	if r := q.Problems.Reads; r != nil {
		r.parameter(name, "string", "uuid")
		return ""
	}
	s, ok := q.Last(name)
	if !ok {
		return ""
	}
	hex, f := ToUUID(s)
	if f != nil {
		q.fail(name, s, f)
	}
	return hex
}

// Enum reads one of the allowed strings; otherwise if absent or invalid.
func (q Query) Enum(name, otherwise string, allowed []string) string {
	if r := q.Problems.Reads; r != nil {
		one := r.parameter(name, "string", "")
		if one.Enum = allowed; otherwise != "" {
			one.Default = otherwise
		}
		return otherwise
	}
	s, ok := q.Last(name)
	if !ok {
		return otherwise
	}
	if !slices.Contains(allowed, s) {
		q.fail(name, s, NotOneOf(allowed))
		return otherwise
	}
	return s
}

// All returns every value of a repeated parameter.
func (q Query) All(name string) []string {
	if r := q.Problems.Reads; r != nil {
		r.parameter(name, "array", "").Each = &Member{Type: "string", NotNull: true}
	}
	return q.Values[name]
}

// Required returns every value of a repeated parameter. Absence is a problem.
func (q Query) Required(name string) []string {
	v := q.All(name)
	if r := q.Problems.Reads; r != nil {
		r.parameter(name, "array", "").Required = true
		return v
	}
	if len(v) == 0 {
		q.Problems.Missing([]string{"query", name}, nil)
	}
	return v
}

// PythonList formats texts as upstream's errors do: ['a', 'b']. It shortens long texts and lists.
func PythonList(items []string) string {
	quoted := make([]string, 0, min(len(items), echoItems))
	for _, s := range items[:min(len(items), echoItems)] {
		quoted = append(quoted, "'"+Truncate(s, 64)+"'")
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

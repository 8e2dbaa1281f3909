package decode

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Kind is the JSON kind that a field requires, with the error for any other kind
// (API.md, "Validation").
type Kind struct {
	typ string
	msg string
}

// The kinds of members.
//
//nolint:gochecknoglobals // read-only
var (
	KindString = Kind{"string_type", "Input should be a valid string"}
	KindInt    = Kind{"int_type", "Input should be a valid integer"}
	KindFloat  = Kind{"float_type", "Input should be a valid number"}
	kindBool   = Kind{"bool_type", "Input should be a valid boolean"}
	KindList   = Kind{"list_type", "Input should be a valid list"}
	KindDict   = Kind{"dict_type", "Input should be a valid dictionary"}
	KindObject = Kind{"model_attributes_type", "Input should be a valid dictionary or object to extract fields from"}
)

// wrongKind adds a problem for a value of the wrong kind. input must be redacted.
func wrongKind(p *Problems, loc []string, k Kind, input any) {
	p.Add(k.typ, loc, k.msg, input, nil)
}

// Fault says why a value is invalid: the type, message and context of a Problem.
type Fault struct {
	Type    string
	Message string
	Context map[string]any
}

// Fault returns the fault of a value of another kind.
func (k Kind) Fault() *Fault { return &Fault{Type: k.typ, Message: k.msg} }

// Kind returns the kind that a fault names, for Object.NotNull.
func (f *Fault) Kind() Kind { return Kind{f.Type, f.Message} }

// At returns the fault as the problem of a plain value at a location.
func (f *Fault) At(input string, loc ...string) Problem {
	return Problem{Type: f.Type, Loc: loc, Msg: f.Message, Input: Echo(input, false), Ctx: f.Context}
}

// toInt converts to an integer as upstream does: 5, 5.0, "5" and true are integers.
func toInt(v any) (int64, *Fault) {
	switch t := v.(type) {
	case bool:
		if t {
			return 1, nil
		}
		return 0, nil
	case json.Number:
		return numberToInt(string(t))
	case string:
		return textToInt(t)
	}
	return 0, KindInt.Fault()
}

func numberToInt(s string) (int64, *Fault) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}
	if !strings.ContainsAny(s, ".eE") {
		return 0, intSize()
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.Abs(f) >= 1<<63 {
		return 0, intSize()
	}
	if f != math.Trunc(f) {
		return 0, &Fault{Type: "int_from_float", Message: "Input should be a valid integer, " +
			"got a number with a fractional part"}
	}
	return int64(f), nil
}

func textToInt(s string) (int64, *Fault) {
	s = strings.TrimSpace(s)
	whole, fraction, dotted := strings.Cut(s, ".")
	if dotted && strings.Trim(fraction, "0") == "" && whole != "" {
		s = whole
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err == nil {
		return n, nil
	}
	if isDigits(strings.TrimLeft(s, "+-")) {
		return 0, intSize()
	}
	return 0, &Fault{Type: "int_parsing", Message: "Input should be a valid integer, unable to parse string as an integer"}
}

func intSize() *Fault {
	return &Fault{Type: "int_parsing_size", Message: "Unable to parse input string as an integer, exceeded maximum size"}
}

func isDigits(s string) bool {
	for _, c := range s {
		if c < '0' || c > '9' {
			return false
		}
	}
	return s != ""
}

// toFloat converts to a number as upstream does: "1.5" and true are numbers.
func toFloat(v any) (float64, *Fault) {
	var s string
	switch t := v.(type) {
	case bool:
		if t {
			return 1, nil
		}
		return 0, nil
	case json.Number:
		s = string(t)
	case string:
		s = strings.TrimSpace(t)
	default:
		return 0, KindFloat.Fault()
	}
	f, err := strconv.ParseFloat(s, 64)
	switch {
	case math.IsInf(f, 0) || math.IsNaN(f):
		return 0, &Fault{Type: "finite_number", Message: "Input should be a finite number"}
	case err != nil:
		return 0, &Fault{Type: "float_parsing", Message: "Input should be a valid number, unable to parse string as a number"}
	}
	return f, nil
}

// ToBool converts to a boolean as upstream does: 1, 0 and a dozen words are booleans.
func ToBool(v any) (bool, *Fault) {
	unclear := &Fault{Type: "bool_parsing", Message: "Input should be a valid boolean, unable to interpret input"}
	switch t := v.(type) {
	case bool:
		return t, nil
	case json.Number:
		f, err := strconv.ParseFloat(string(t), 64)
		switch {
		case err == nil && f == 1:
			return true, nil
		case err == nil && f == 0:
			return false, nil
		}
		return false, unclear
	case string:
		switch strings.ToLower(t) {
		case "true", "1", "yes", "y", "on", "t":
			return true, nil
		case "false", "0", "no", "n", "off", "f":
			return false, nil
		}
		return false, unclear
	}
	return false, kindBool.Fault()
}

// ToUUID parses a UUID with or without dashes, in any case, and returns 32 lower-case hex
// characters (API.md, "Identifiers").
func ToUUID(s string) (string, *Fault) {
	if hex, ok := ParseUUID(s); ok {
		return hex, nil
	}
	return "", &Fault{Type: "uuid_parsing", Message: "Input should be a valid UUID, unable to parse string as a UUID",
		Context: map[string]any{"error": "not a UUID"}}
}

// ParseUUID is ToUUID without the fault.
func ParseUUID(s string) (string, bool) {
	if len(s) == 36 {
		if s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
			return "", false
		}
		s = s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:]
	}
	if len(s) != 32 {
		return "", false
	}
	for _, c := range s {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return "", false
		}
	}
	return strings.ToLower(s), true
}

// Dashed formats 32 hex characters as a UUID with dashes, the agent servers' format. It returns
// other texts unchanged.
func Dashed(hex string) string {
	if len(hex) != 32 {
		return hex
	}
	return hex[:8] + "-" + hex[8:12] + "-" + hex[12:16] + "-" + hex[16:20] + "-" + hex[20:]
}

// ToTime parses a date and time, UTC if it has no zone. A date alone is its midnight. A number is
// the time since 1970 in seconds or, if larger than 2e10, in milliseconds.
func ToTime(s string) (time.Time, *Fault) {
	text := strings.TrimSpace(s)
	for _, layout := range []string{
		"2006-01-02T15:04:05.999999999Z07:00", "2006-01-02T15:04:05.999999999Z0700", "2006-01-02T15:04:05.999999999",
		"2006-01-02T15:04Z07:00", "2006-01-02T15:04", "2006-01-02",
	} {
		upper := strings.Replace(strings.ToUpper(text), " ", "T", 1)
		if t, err := time.Parse(layout, upper); err == nil {
			return t.UTC(), nil
		}
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil && math.Abs(f) < 1e15 {
		if math.Abs(f) > 2e10 {
			f /= 1000
		}
		return time.UnixMicro(int64(f * 1e6)).UTC(), nil
	}
	reason := "invalid character in year"
	if len(text) < 10 {
		reason = "input is too short"
	}
	return time.Time{}, &Fault{Type: "datetime_from_date_parsing",
		Message: "Input should be a valid datetime or date, " + reason,
		Context: map[string]any{"error": reason}}
}

// NotOneOf is the fault of a value outside the allowed ones.
func NotOneOf(allowed []string) *Fault {
	quoted := make([]string, len(allowed))
	for i, a := range allowed {
		quoted[i] = "'" + a + "'"
	}
	expected := quoted[0]
	if n := len(quoted); n > 1 {
		expected = strings.Join(quoted[:n-1], ", ") + " or " + quoted[n-1]
	}
	return &Fault{Type: "enum", Message: "Input should be " + expected, Context: map[string]any{"expected": expected}}
}

// isLonger reports whether a text has more than limit characters.
func isLonger(s string, limit int) bool { return len(s) > limit && utf8.RuneCountInString(s) > limit }

// tooLong is the fault of a text of more than limit characters.
func tooLong(limit int) *Fault {
	return &Fault{Type: "string_too_long", Message: fmt.Sprintf("String should have at most %d characters", limit),
		Context: map[string]any{"max_length": limit}}
}

func tooMany(what string, limit, got int) *Fault {
	return &Fault{Type: "too_long", Message: fmt.Sprintf("%s should have at most %d items after validation, not %d",
		what, limit, got),
		Context: map[string]any{"field_type": what, "max_length": limit, "actual_length": got}}
}

// GreaterThan is the fault of a number that is not greater than n.
func GreaterThan(n int64) *Fault {
	return &Fault{
		Type:    "greater_than",
		Message: fmt.Sprintf("Input should be greater than %d", n),
		Context: map[string]any{"gt": n},
	}
}

// LessEqual is the fault of a number greater than n.
func LessEqual(n int64) *Fault {
	return &Fault{
		Type:    "less_than_equal",
		Message: fmt.Sprintf("Input should be less than or equal to %d", n),
		Context: map[string]any{"le": n},
	}
}

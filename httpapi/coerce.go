package httpapi

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// kind is a JSON kind a field wants, with the words for a value of another
// kind (api-contract.md A.0.4).
type kind struct {
	typ string
	msg string
}

var (
	kindString = kind{"string_type", "Input should be a valid string"}
	kindInt    = kind{"int_type", "Input should be a valid integer"}
	kindFloat  = kind{"float_type", "Input should be a valid number"}
	kindBool   = kind{"bool_type", "Input should be a valid boolean"}
	kindList   = kind{"list_type", "Input should be a valid list"}
	kindDict   = kind{"dict_type", "Input should be a valid dictionary"}
	kindObject = kind{"model_attributes_type", "Input should be a valid dictionary or object to extract fields from"}
)

// wrongKind notes a value of the wrong JSON kind. input must be redacted.
func wrongKind(p *problems, loc []string, k kind, input any) {
	p.add(k.typ, loc, k.msg, input, nil)
}

// fault is why one value could not be read as what it should be.
type fault struct {
	typ string
	msg string
	ctx map[string]any
}

func (k kind) fault() *fault { return &fault{typ: k.typ, msg: k.msg} }

// toInt reads an integer the way upstream does: 5, 5.0, "5" and true are
// integers.
func toInt(v any) (int64, *fault) {
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
	return 0, kindInt.fault()
}

func numberToInt(s string) (int64, *fault) {
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
		return 0, &fault{typ: "int_from_float", msg: "Input should be a valid integer, got a number with a fractional part"}
	}
	return int64(f), nil
}

func textToInt(s string) (int64, *fault) {
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
	return 0, &fault{typ: "int_parsing", msg: "Input should be a valid integer, unable to parse string as an integer"}
}

func intSize() *fault {
	return &fault{typ: "int_parsing_size", msg: "Unable to parse input string as an integer, exceeded maximum size"}
}

func isDigits(s string) bool {
	for _, c := range s {
		if c < '0' || c > '9' {
			return false
		}
	}
	return s != ""
}

// toFloat reads a number; "1.5" and true are numbers too.
func toFloat(v any) (float64, *fault) {
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
		return 0, kindFloat.fault()
	}
	f, err := strconv.ParseFloat(s, 64)
	switch {
	case math.IsInf(f, 0) || math.IsNaN(f):
		return 0, &fault{typ: "finite_number", msg: "Input should be a finite number"}
	case err != nil:
		return 0, &fault{typ: "float_parsing", msg: "Input should be a valid number, unable to parse string as a number"}
	}
	return f, nil
}

// toBool reads a boolean; 1, 0 and a dozen words are booleans too.
func toBool(v any) (bool, *fault) {
	unclear := &fault{typ: "bool_parsing", msg: "Input should be a valid boolean, unable to interpret input"}
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
	return false, kindBool.fault()
}

// toUUID reads a UUID with or without dashes, in any case, as 32 lower-case hex
// characters (api-contract.md A.0.5).
func toUUID(s string) (string, *fault) {
	if hex, ok := parseUUID(s); ok {
		return hex, nil
	}
	return "", &fault{typ: "uuid_parsing", msg: "Input should be a valid UUID, unable to parse string as a UUID",
		ctx: map[string]any{"error": "not a UUID"}}
}

func parseUUID(s string) (string, bool) {
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

// dashed writes a 32-hex id the way agent servers do.
func dashed(hex string) string {
	if len(hex) != 32 {
		return hex
	}
	return hex[:8] + "-" + hex[8:12] + "-" + hex[12:16] + "-" + hex[16:20] + "-" + hex[20:]
}

// toTime reads a date and time: with a zone, with "Z", or naive, which means
// UTC; a date alone is its midnight; a number is seconds (or, from 2e10 on,
// milliseconds) since 1970.
func toTime(s string) (time.Time, *fault) {
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
	return time.Time{}, &fault{typ: "datetime_from_date_parsing", msg: "Input should be a valid datetime or date, " + reason,
		ctx: map[string]any{"error": reason}}
}

// enumFault is the words for a value that is none of the allowed ones.
func enumFault(allowed []string) *fault {
	quoted := make([]string, len(allowed))
	for i, a := range allowed {
		quoted[i] = "'" + a + "'"
	}
	expected := quoted[0]
	if n := len(quoted); n > 1 {
		expected = strings.Join(quoted[:n-1], ", ") + " or " + quoted[n-1]
	}
	return &fault{typ: "enum", msg: "Input should be " + expected, ctx: map[string]any{"expected": expected}}
}

func tooLongText(limit int) *fault {
	return &fault{typ: "string_too_long", msg: fmt.Sprintf("String should have at most %d characters", limit),
		ctx: map[string]any{"max_length": limit}}
}

func tooMany(what string, limit, got int) *fault {
	return &fault{typ: "too_long", msg: fmt.Sprintf("%s should have at most %d items after validation, not %d", what, limit, got),
		ctx: map[string]any{"field_type": what, "max_length": limit, "actual_length": got}}
}

func greaterThan(n int64) *fault {
	return &fault{typ: "greater_than", msg: fmt.Sprintf("Input should be greater than %d", n), ctx: map[string]any{"gt": n}}
}

func lessEqual(n int64) *fault {
	return &fault{typ: "less_than_equal", msg: fmt.Sprintf("Input should be less than or equal to %d", n), ctx: map[string]any{"le": n}}
}

package fsm

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds on what a command may carry, in bytes. They keep one request from
// filling the log of every node.
const (
	// MaxCommandID bounds a command's id.
	MaxCommandID = 128

	maxID     = MaxCommandID
	maxName   = 256
	maxPath   = 1024
	maxDetail = 64 << 10
	maxText   = 1 << 20
	maxList   = 1000
	maxUserID = 63
	maxSandID = 48
)

// rules collects the first broken rule of an object.
type rules struct{ err *Error }

// result is what Validate returns: a nil error, not a nil *Error.
func (r *rules) result() error {
	if r.err == nil {
		return nil
	}
	return r.err
}

// check notes a broken rule unless ok.
func (r *rules) check(ok bool, format string, args ...any) {
	if !ok && r.err == nil {
		r.err = Errorf(CodeInvalid, format, args...)
	}
}

// text bounds a free text and refuses what JSON can't carry unchanged.
func (r *rules) text(field, s string, limit int) {
	if len(s) > limit {
		r.check(false, "%s is longer than %d bytes", field, limit)
	} else if !utf8.ValidString(s) {
		r.check(false, "%s is not valid UTF-8", field)
	}
}

// words bounds a text that describes a failure. It may come from anywhere, and
// a failure must be recorded however it is worded: Apply cleans it (cleanWords).
func (r *rules) words(field, s string) {
	r.check(len(s) <= maxText, "%s is longer than %d bytes", field, maxText)
}

// optional is text for a pointer.
func (r *rules) optional(field string, s *string, limit int) {
	if s != nil {
		r.text(field, *s, limit)
	}
}

// name is a required short text without control characters.
func (r *rules) name(field, s string, limit int) {
	r.check(s != "", "%s is missing", field)
	r.text(field, s, limit)
	r.check(!strings.ContainsFunc(s, isControl), "%s holds a control character", field)
}

// id is a required identifier: letters, digits, "-", "_" and ".".
func (r *rules) id(field, s string) {
	r.check(s != "" && len(s) <= maxID && !strings.ContainsFunc(s, notIDRune),
		"%s needs 1 to %d characters of A-Z a-z 0-9 - _ .", field, maxID)
}

// sandboxID is a label- and DNS-safe identifier.
func (r *rules) sandboxID(field, s string) {
	r.check(validSandboxID(s), "%s needs 1 to %d characters of A-Z a-z 0-9 -, the first not a dash", field, maxSandID)
}

// lookedUp bounds an id that a client sent and Apply looks up: one that can't
// exist is for Apply not to find.
func (r *rules) lookedUp(field, s string) { r.text(field, s, maxName) }

// hash is a SHA-256 in lower-case hex.
func (r *rules) hash(field, s string) {
	r.check(len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "", "%s is not a SHA-256 in lower-case hex", field)
}

// count bounds the length of a list or the size of a map.
func (r *rules) count(field string, n int) {
	r.check(n <= maxList, "%s has more than %d entries", field, maxList)
}

// ref checks a secret reference; the zero one is fine.
func (r *rules) ref(field string, ref SecretRef) {
	if ref.IsZero() {
		return
	}
	r.name(field+" path", ref.Path, maxPath)
	r.check(ref.Version >= 1, "%s needs a version of at least 1", field)
	r.text(field+" created", ref.Created, maxName)
}

// optionalRef is ref for a pointer.
func (r *rules) optionalRef(field string, ref *SecretRef) {
	if ref != nil {
		r.ref(field, *ref)
	}
}

// texts bounds a map of texts.
func (r *rules) texts(field string, m map[string]string) {
	r.count(field, len(m))
	total := 0
	// Sorted, so that every node reports the same rule.
	for _, k := range slices.Sorted(maps.Keys(m)) {
		v := m[k]
		total += len(k) + len(v)
		r.check(k != "" && len(k) <= maxName && utf8.ValidString(k), "%s has a key that is empty, too long or not UTF-8", field)
		r.check(len(v) <= maxDetail && utf8.ValidString(v), "%s has a value longer than %d bytes or not UTF-8", field, maxDetail)
	}
	r.check(total <= maxText, "%s holds more than %d bytes", field, maxText)
}

// list bounds a list of texts.
func (r *rules) list(field string, l []string, limit int) {
	r.count(field, len(l))
	total := 0
	for _, s := range l {
		total += len(s)
		r.text(field, s, limit)
	}
	r.check(total <= maxText, "%s holds more than %d bytes", field, maxText)
}

// value bounds a decoded JSON value, and refuses what not everybody can read: an
// entry of the log that can't be decoded stops every node for good, and nodes
// before protocol version 3 make numbers of its numbers.
func (r *rules) value(field string, v any) {
	small := valueSize(v, 0) <= maxText
	r.check(small, "%s holds more than %d bytes or is nested too deeply", field, maxText)
	r.check(!small || isReadable(v), "%s holds a number that is too large", field)
}

// isReadable reports whether every number of a decoded JSON value is one that a
// float64 can hold. The value's depth was bounded before.
func isReadable(v any) bool {
	switch v := v.(type) {
	case json.Number:
		_, err := v.Float64()
		return err == nil
	case float64:
		return !math.IsInf(v, 0) && !math.IsNaN(v)
	case []any:
		return !slices.ContainsFunc(v, func(e any) bool { return !isReadable(e) })
	case map[string]any:
		for _, e := range v {
			if !isReadable(e) {
				return false
			}
		}
	}
	return true
}

// raw refuses text that is no JSON, or holds what value refuses.
func (r *rules) raw(field string, text json.RawMessage) {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		r.check(false, "%s holds what can't be read: a number that is too large, or no JSON", field)
		return
	}
	r.value(field, v)
}

// valueSize estimates the encoded size of a decoded JSON value; more than
// maxText when it is nested beyond reason.
func valueSize(v any, depth int) int {
	if depth > 32 {
		return maxText + 1
	}
	size := 8
	switch v := v.(type) {
	case string:
		size += len(v)
	case json.RawMessage:
		size += len(v)
	case []any:
		for _, e := range v {
			if size += valueSize(e, depth+1); size > maxText {
				return size
			}
		}
	case map[string]any:
		for k, e := range v {
			if size += len(k) + valueSize(e, depth+1); size > maxText {
				return size
			}
		}
	}
	return size
}

// validUserID tells whether s is [a-z0-9][a-z0-9._-]{0,62}.
func validUserID(s string) bool {
	if s == "" || len(s) > maxUserID {
		return false
	}
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return true
}

// validSandboxID tells whether s is [A-Za-z0-9][A-Za-z0-9-]{0,47}.
func validSandboxID(s string) bool {
	if s == "" || len(s) > maxSandID || s[0] == '-' {
		return false
	}
	return !strings.ContainsFunc(s, func(c rune) bool { return notIDRune(c) || c == '_' || c == '.' })
}

// notIDRune tells whether c may not stand in an identifier.
func notIDRune(c rune) bool {
	alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
	return !alnum && c != '-' && c != '_' && c != '.'
}

// isControl tells whether c is an ASCII control character.
func isControl(c rune) bool { return c < 0x20 || c == 0x7f }

// cleanWords makes valid UTF-8 of at most maxDetail bytes of a failure's text.
func cleanWords(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxDetail)], "")
}

// clip shortens what is quoted in a message.
func clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}

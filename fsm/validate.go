package fsm

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of a single text, in characters (Unicode code points). Below VersionCharacters Apply counts
// bytes. Package httpapi uses the same constants.
const (
	MaxName      = 256      // a name, an id that a client chooses
	MaxPath      = 1024     // a path, a repository, a branch
	MaxLine      = 4096     // a setting, a title
	MaxParagraph = 64 << 10 // a key, instructions
	MaxText      = 1 << 20  // the text of a message
)

// Bounds of identifiers, lists and the size of objects. Identifiers are ASCII. The sizes are in
// bytes: they keep one request from filling every node's log.
const (
	// MaxCommandID bounds a command's id.
	MaxCommandID = 128

	maxID   = MaxCommandID
	maxList = 1000
	maxSize = 1 << 20
	// MaxSecretBytes bounds one entry of the secret store, in bytes.
	MaxSecretBytes = 512 << 10
	maxWords       = 64 << 10
	maxUserID      = 63
	maxSandID      = 48
)

// Validate checks the rules of a body that need no state, as a cluster of the newest protocol
// version does. An error is an *Error with CodeInvalid.
func Validate(b Body) error { return validate(b, ProtocolVersion) }

// validate is Validate for a cluster of the given protocol version.
func validate(b Body, version int) error {
	r := rules{bytes: version < VersionCharacters, access: version >= VersionAccess}
	b.check(&r)
	return r.result()
}

// rules collects the first broken rule of an object.
type rules struct {
	err *Error
	// bytes: the lengths of texts are counted in bytes, as before VersionCharacters.
	bytes bool
	// access: the rules of VersionAccess are in force.
	access bool
}

// limit returns the bound of a text: now from VersionCharacters on, before below it.
func (r *rules) limit(now, before int) int {
	if r.bytes {
		return before
	}
	return now
}

// tooLong reports whether a text exceeds its bound.
func (r *rules) tooLong(s string, limit int) bool {
	return len(s) > limit && (r.bytes || utf8.RuneCountInString(s) > limit)
}

// result returns the broken rule: a nil error, not a nil *Error.
func (r *rules) result() error {
	if r.err == nil {
		return nil
	}
	return r.err
}

// check records a broken rule unless ok. Go allocates the arguments even if ok is true, so
// rules on the path of every command call it only with false.
func (r *rules) check(ok bool, format string, args ...any) {
	if !ok && r.err == nil {
		r.err = Errorf(CodeInvalid, format, args...)
	}
}

// text bounds a free text and refuses what JSON can't carry unchanged. The words for a long text
// are those of httpapi/decode.
func (r *rules) text(field, s string, limit int) {
	switch {
	case !r.tooLong(s, limit):
		if !utf8.ValidString(s) {
			r.check(false, "%s is not valid UTF-8", field)
		}
	case r.bytes:
		r.check(false, "%s is longer than %d bytes", field, limit)
	default:
		r.check(false, "%s: String should have at most %d characters", field, limit)
	}
}

// words bounds a text that describes a failure. Its source is unknown, and a failure must be
// recorded whatever the text holds, so Apply cleans it (cleanWords).
func (r *rules) words(field, s string) {
	r.check(len(s) <= maxSize, "%s is longer than %d bytes", field, maxSize)
}

// optional is text for a pointer.
func (r *rules) optional(field string, s *string, limit int) {
	if s != nil {
		r.text(field, *s, limit)
	}
}

// name is a required short text without control characters.
func (r *rules) name(field, s string, limit int) {
	if s == "" {
		r.check(false, "%s is missing", field)
	}
	r.text(field, s, limit)
	if strings.ContainsFunc(s, isControl) {
		r.check(false, "%s holds a control character", field)
	}
}

// id is a required identifier: letters, digits, "-", "_" and ".".
func (r *rules) id(field, s string) {
	if s == "" || len(s) > maxID || strings.ContainsFunc(s, notIDRune) {
		r.check(false, "%s needs 1 to %d characters of A-Z a-z 0-9 - _ .", field, maxID)
	}
}

// sandboxID is a label- and DNS-safe identifier.
func (r *rules) sandboxID(field, s string) {
	r.check(validSandboxID(s), "%s needs 1 to %d characters of A-Z a-z 0-9 -, the first not a dash", field, maxSandID)
}

// lookedUp bounds an id that a client sent and Apply looks up. Its form is not checked: Apply does
// not find an id that can't exist.
func (r *rules) lookedUp(field, s string) { r.text(field, s, MaxName) }

// hash is a SHA-256 in lower-case hex.
func (r *rules) hash(field, s string) {
	r.check(len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "", "%s is not a SHA-256 in lower-case hex", field)
}

// count bounds the length of a list or the size of a map.
func (r *rules) count(field string, n int) {
	if n > maxList {
		r.check(false, "%s has more than %d entries", field, maxList)
	}
}

// ref checks a secret reference. The zero one is valid. It builds the members' names for a
// broken rule only.
func (r *rules) ref(field string, ref SecretRef) {
	if ref.IsZero() {
		return
	}
	if probe := (rules{bytes: r.bytes}); probe.members(ref, "", "", "") {
		return
	}
	r.members(ref, field, field+" path", field+" created")
}

// members checks the members of a reference and reports whether no rule is broken.
func (r *rules) members(ref SecretRef, field, path, created string) bool {
	r.name(path, ref.Path, MaxPath)
	if ref.Version < 1 {
		r.check(false, "%s needs a version of at least 1", field)
	}
	r.text(created, ref.Created, MaxName)
	if ref.Bytes < 0 || ref.Bytes > MaxSecretBytes {
		r.check(false, "%s has a size of 0 to %d bytes", field, MaxSecretBytes)
	}
	return r.err == nil
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
	total, unit := 0, "characters"
	if r.bytes {
		unit = "bytes"
	}
	// Sorted, so that every node reports the same rule.
	for _, k := range slices.Sorted(maps.Keys(m)) {
		v := m[k]
		total += len(k) + len(v)
		r.check(k != "" && !r.tooLong(k, MaxName) && utf8.ValidString(k),
			"%s has a key that is empty, too long or not UTF-8", field)
		r.check(!r.tooLong(v, MaxParagraph) && utf8.ValidString(v), "%s has a value longer than %d %s or not UTF-8", field,
			MaxParagraph, unit)
	}
	r.check(total <= maxSize, "%s holds more than %d bytes", field, maxSize)
}

// list bounds a list of texts.
func (r *rules) list(field string, l []string, limit int) {
	r.count(field, len(l))
	total := 0
	for _, s := range l {
		total += len(s)
		r.text(field, s, limit)
	}
	r.check(total <= maxSize, "%s holds more than %d bytes", field, maxSize)
}

// value bounds a decoded JSON value and refuses one that some node can't read. A log entry that
// can't be decoded stops every node permanently, and nodes before protocol version 3 decode numbers
// as float64.
func (r *rules) value(field string, v any) {
	small := valueSize(v, 0) <= maxSize
	r.check(small, "%s holds more than %d bytes or is nested too deeply", field, maxSize)
	r.check(!small || isReadable(v), "%s holds a number that is too large", field)
}

// isReadable reports whether a float64 can hold every number of a decoded JSON value. The caller
// has bounded the value's depth.
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

// raw refuses text that is not JSON or that value refuses.
func (r *rules) raw(field string, text json.RawMessage) {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		r.check(false, "%s holds what can't be read: a number that is too large, or no JSON", field)
		return
	}
	r.value(field, v)
}

// valueSize estimates the encoded size of a decoded JSON value. It exceeds maxSize when the value
// is nested too deeply.
func valueSize(v any, depth int) int {
	if depth > 32 {
		return maxSize + 1
	}
	size := 8
	switch v := v.(type) {
	case string:
		size += len(v)
	case json.RawMessage:
		size += len(v)
	case []any:
		for _, e := range v {
			if size += valueSize(e, depth+1); size > maxSize {
				return size
			}
		}
	case map[string]any:
		for k, e := range v {
			if size += len(k) + valueSize(e, depth+1); size > maxSize {
				return size
			}
		}
	}
	return size
}

// validUserID reports whether s is [a-z0-9][a-z0-9._-]{0,62}.
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

// validSandboxID reports whether s is [A-Za-z0-9][A-Za-z0-9-]{0,47}.
func validSandboxID(s string) bool {
	if s == "" || len(s) > maxSandID || s[0] == '-' {
		return false
	}
	return !strings.ContainsFunc(s, func(c rune) bool { return notIDRune(c) || c == '_' || c == '.' })
}

// notIDRune reports whether c is not allowed in an identifier.
func notIDRune(c rune) bool {
	alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
	return !alnum && c != '-' && c != '_' && c != '.'
}

// isControl reports whether c is an ASCII control character.
func isControl(c rune) bool { return c < 0x20 || c == 0x7f }

// cleanWords returns a failure's text as valid UTF-8 of at most maxWords bytes.
func cleanWords(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxWords)], "")
}

// clip shortens a value that a message quotes.
func clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}

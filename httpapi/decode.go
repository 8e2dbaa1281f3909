package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"mime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of one JSON document, beside its size in bytes.
const (
	maxDepth  = 64
	maxValues = 200_000
)

// decodeObject reads a request body that must be a JSON object. Whatever is
// wrong is noted in p, and the object it then returns is empty but usable, so
// that the other parts of the request are checked as well.
func decodeObject(p *problems, contentType string, body []byte) object {
	root := []string{"body"}
	none := object{errs: p, loc: root, broken: true}
	if len(body) == 0 {
		p.missing(root, nil)
		return none
	}
	if !isJSON(contentType) {
		// Upstream takes such a body for raw text, which is no object.
		wrongKind(p, root, kindObject, masked)
		return none
	}
	v, ok := decodeJSON(p, body)
	if !ok || hasNull(p, body, v) {
		return none
	}
	m, ok := v.(map[string]any)
	if !ok {
		wrongKind(p, root, kindObject, echo(v, true))
		return none
	}
	return object{m: m, errs: p, loc: root}
}

// isJSON reports whether a Content-Type names JSON. An absent one does.
func isJSON(contentType string) bool {
	if contentType == "" || contentType == "application/json" {
		return true
	}
	t, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return false
	}
	return t == "application/json" || strings.HasPrefix(t, "application/") && strings.HasSuffix(t, "+json")
}

// byteOrderMark may stand before a JSON text (RFC 8259, 8.1).
const byteOrderMark = "\ufeff"

// decodeJSON reads one JSON value. Numbers stay json.Number.
func decodeJSON(p *problems, body []byte) (any, bool) {
	body = bytes.TrimPrefix(body, []byte(byteOrderMark))
	if !utf8.Valid(body) {
		return nil, jsonInvalid(p, 0, "Invalid UTF-8")
	}
	// The bounds are checked on the bytes, before anything is built from them.
	if offset, text := measure(body); text != "" {
		return nil, jsonInvalid(p, offset, text)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, jsonInvalid(p, errorOffset(err, len(body)), "Expecting value")
	}
	end := int(dec.InputOffset())
	if rest := bytes.TrimLeft(body[end:], " \t\r\n"); len(rest) > 0 {
		return nil, jsonInvalid(p, len(body)-len(rest), "Extra data")
	}
	return v, true
}

// hasNull notes every text with a null character in it: environment variables,
// command lines and databases end there.
func hasNull(p *problems, body []byte, v any) bool {
	// Bytes below 0x20 are no JSON, so a null character is always an escape.
	if !bytes.Contains(body, []byte(`\u0000`)) {
		return false
	}
	before := len(p.list)
	findNull(p, []string{"body"}, v)
	return len(p.list) > before
}

func findNull(p *problems, loc []string, v any) {
	switch t := v.(type) {
	case string:
		if strings.ContainsRune(t, 0) {
			p.value(loc, "must not hold a null character", masked)
		}
	case []any:
		for i, e := range t {
			findNull(p, at(loc, itoa(i)), e)
		}
	case map[string]any:
		for _, k := range sortedKeys(t) {
			if len(loc) == 1 && k == "conversation_id" {
				continue // V0 has words of its own for it, V1 takes UUIDs alone
			}
			if strings.ContainsRune(k, 0) {
				p.value(at(loc, masked), "must not hold a null character", masked)
				continue
			}
			findNull(p, at(loc, plainOr(k)), t[k])
		}
	}
}

// jsonInvalid notes a body that is no JSON. It always answers false.
func jsonInvalid(p *problems, offset int, text string) bool {
	p.add("json_invalid", []string{"body", strconv.Itoa(offset)}, "JSON decode error",
		map[string]any{}, map[string]any{"error": text})
	return false
}

// errorOffset says where in the body the decoder gave up.
func errorOffset(err error, size int) int {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) && syntax.Offset > 0 {
		return int(syntax.Offset) - 1
	}
	return size
}

// measure walks over the bytes of a JSON document and says where it goes
// deeper or has more values than we take. It does not check the grammar.
func measure(body []byte) (offset int, text string) {
	depth, values, quoted := 0, 1, false
	for i := 0; i < len(body); i++ {
		c := body[i]
		if quoted {
			switch c {
			case '\\':
				i++
			case '"':
				quoted = false
			}
			continue
		}
		switch c {
		case '"':
			quoted = true
		case '{', '[':
			if depth++; depth > maxDepth {
				return i, "Nesting is too deep"
			}
			values++
		case '}', ']':
			depth--
		case ',':
			values++
		}
		if values > maxValues {
			return i, "Too many values"
		}
	}
	return 0, ""
}

// sortedKeys gives a map's keys in order, so that errors and outcomes do not
// depend on chance.
func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

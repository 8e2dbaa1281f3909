package decode

import (
	"bytes"
	"encoding/json"
	"errors"
	"mime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Limits of one JSON document besides its size in bytes.
const (
	MaxDepth  = 64
	MaxValues = 200_000
)

// Body reads a request body that must be a JSON object. It adds what is wrong to p and then returns
// an empty object, so that the caller can validate the rest of the request.
func Body(p *Problems, contentType string, body []byte) Object {
	root := []string{"body"}
	if p.Reads != nil {
		return p.Reads.body(p, root)
	}
	none := Object{Problems: p, Loc: root, broken: true}
	if len(body) == 0 {
		p.Missing(root, nil)
		return none
	}
	if !isJSON(contentType) {
		// Upstream treats such a body as raw text, which is not an object.
		wrongKind(p, root, KindObject, Masked)
		return none
	}
	v, ok := decodeJSON(p, body)
	if !ok || hasNull(p, body, v) {
		return none
	}
	m, ok := v.(map[string]any)
	if !ok {
		wrongKind(p, root, KindObject, Echo(v, true))
		return none
	}
	return Object{Members: m, Problems: p, Loc: root}
}

// isJSON reports whether a Content-Type means JSON. An absent one does.
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

// InUTF8 reports whether a Content-Type leaves a text in UTF-8, as JSON has to be. ASCII is UTF-8.
func InUTF8(contentType string) bool {
	if !strings.Contains(contentType, ";") {
		return true
	}
	_, params, _ := mime.ParseMediaType(contentType) // what is no media type is no JSON either
	switch strings.ToLower(params["charset"]) {
	case "", "utf-8", "utf8", "us-ascii", "ascii":
		return true
	}
	return false
}

// byteOrderMark may precede a JSON text (RFC 8259, 8.1).
const byteOrderMark = "\ufeff"

// decodeJSON decodes one JSON value. Numbers stay json.Number.
func decodeJSON(p *Problems, body []byte) (any, bool) {
	body = bytes.TrimPrefix(body, []byte(byteOrderMark))
	if !utf8.Valid(body) {
		return nil, jsonInvalid(p, 0, "Invalid UTF-8")
	}
	// The limits are checked on the raw bytes, before decoding allocates anything.
	if offset, text := measure(body); text != "" {
		return nil, jsonInvalid(p, offset, text)
	}
	var read document
	if jsonv2.Unmarshal(body, &read) == nil {
		return read.value, true
	}
	// encoding/json says where the fault is, in the words of the API.
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
	if !jsontext.Value(body).IsValid() {
		return nil, ambiguous(p, body)
	}
	return v, true
}

// ambiguous adds a problem for JSON that readers understand differently: a member that comes twice,
// half of a surrogate pair (RFC 7493). It always returns false.
func ambiguous(p *Problems, body []byte) bool {
	_, err := jsontext.NewDecoder(bytes.NewReader(body)).ReadValue()
	offset, text := len(body), "Lone surrogate"
	if at := new(jsontext.SyntacticError); errors.As(err, &at) {
		offset = int(at.ByteOffset)
	}
	if errors.Is(err, jsontext.ErrDuplicateName) {
		text = "Duplicate member"
	}
	return jsonInvalid(p, offset, text)
}

// hasNull adds a problem for every string with a null character: environment variables, command
// lines and databases cut strings there.
func hasNull(p *Problems, body []byte, v any) bool {
	// JSON allows a null character only as an escape.
	if !bytes.Contains(body, []byte(`\u0000`)) {
		return false
	}
	before := len(p.List)
	findNull(p, []string{"body"}, v)
	return len(p.List) > before
}

func findNull(p *Problems, loc []string, v any) {
	switch t := v.(type) {
	case string:
		if strings.ContainsRune(t, 0) {
			p.Value(loc, "must not hold a null character", Masked)
		}
	case []any:
		for i, e := range t {
			findNull(p, At(loc, strconv.Itoa(i)), e)
		}
	case map[string]any:
		for _, k := range SortedKeys(t) {
			if len(loc) == 1 && k == "conversation_id" {
				continue // V0 has its own error for it; V1 accepts only UUIDs
			}
			if strings.ContainsRune(k, 0) {
				p.Value(At(loc, Masked), "must not hold a null character", Masked)
				continue
			}
			findNull(p, At(loc, PlainOr(k)), t[k])
		}
	}
}

// jsonInvalid adds a problem for a body that is not JSON. It always returns false.
func jsonInvalid(p *Problems, offset int, text string) bool {
	p.Add("json_invalid", []string{"body", strconv.Itoa(offset)}, "JSON decode error",
		map[string]any{}, map[string]any{"error": text})
	return false
}

// errorOffset returns the position in the body where decoding failed.
func errorOffset(err error, size int) int {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) && syntax.Offset > 0 {
		return int(syntax.Offset) - 1
	}
	return size
}

// measure scans a JSON document and returns where it exceeds MaxDepth or MaxValues. It does not
// check the grammar.
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
			if depth++; depth > MaxDepth {
				return i, "Nesting is too deep"
			}
			values++
		case '}', ']':
			depth--
		case ',':
			values++
		}
		if values > MaxValues {
			return i, "Too many values"
		}
	}
	return 0, ""
}

// SortedKeys returns a map's keys in order, which makes errors and results deterministic.
func SortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

package wire

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"bivouac.dev/bivouac/httpapi/decode"
)

// Limits of texts, in characters.
const (
	MaxName   = 256      // a name, a tag
	MaxReason = 4096     // the reason of a rejection
	MaxText   = 64 << 20 // a text that only the body's size limits
)

// ReadObject reads a JSON object from the body. If it returns false it has responded with the
// error.
func ReadObject(w http.ResponseWriter, r *http.Request) (decode.Object, bool) {
	v, ok := readValue(w, r)
	if !ok {
		return decode.Object{}, false
	}
	m, isMap := v.(map[string]any)
	if !isMap {
		f := decode.KindObject.Fault()
		WriteInvalid(w, []decode.Problem{{Type: f.Type, Loc: []string{"body"}, Msg: f.Message}})
		return decode.Object{}, false
	}
	return decode.Object{Members: m, Loc: []string{"body"}, Problems: &decode.Problems{}}, true
}

// Refused responds 422 if o has problems, and reports whether it did.
func Refused(w http.ResponseWriter, o decode.Object) bool {
	if o.Problems.Err() == nil {
		return false
	}
	WriteInvalid(w, o.Problems.List)
	return true
}

// readValue reads one JSON value from the body. Numbers stay json.Number.
func readValue(w http.ResponseWriter, r *http.Request) (any, bool) {
	d := json.NewDecoder(r.Body)
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	if err == nil && d.More() {
		err = errors.New("extra data after the document")
	}
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return v, true
	case errors.As(err, &tooLarge):
		WriteDetail(w, http.StatusRequestEntityTooLarge, "Request body is too large")
	case errors.Is(err, io.EOF):
		WriteInvalid(w, []decode.Problem{{Type: "missing", Loc: []string{"body"}, Msg: "Field required"}})
	default:
		// The error's text may quote the body, so only the offset is returned.
		WriteInvalid(w, []decode.Problem{{Type: "json_invalid", Loc: []string{"body", strconv.FormatInt(d.InputOffset(), 10)},
			Msg: "JSON decode error", Ctx: map[string]any{"error": "Invalid JSON"}}})
	}
	return nil, false
}

// ReadIDs reads a JSON array of at most 100 event ids from the body, or responds 422.
func ReadIDs(w http.ResponseWriter, r *http.Request) ([]string, bool) {
	v, ok := readValue(w, r)
	if !ok {
		return nil, false
	}
	list, isList := v.([]any)
	ids := make([]string, 0, len(list))
	for _, e := range list {
		if id, ok := e.(string); ok {
			ids = append(ids, id)
		}
	}
	if !isList || len(ids) != len(list) || len(ids) > 100 {
		WriteInvalid(w,
			[]decode.Problem{
				{Type: "list_type", Loc: []string{"body"}, Msg: "Input should be a valid list of at most 100 event ids"},
			})
		return nil, false
	}
	return ids, true
}

// ReadLimit reads limit (1..100, default 100), or responds 422.
func ReadLimit(w http.ResponseWriter, q url.Values) (int, bool) {
	var problems decode.Problems
	n := decode.Query{Values: q, Problems: &problems}.Integer("limit", 100, 0, 100)
	if problems.Err() != nil {
		WriteInvalid(w, problems.List)
		return 0, false
	}
	return int(n), true
}

// Missing adds a problem for a member that is absent or null.
func Missing(o decode.Object, name string) {
	o.Problems.Missing(decode.At(o.Loc, name), nil)
}

// TextOr returns a text, or otherwise where there is none.
func TextOr(s *string, otherwise string) string {
	if s == nil {
		return otherwise
	}
	return *s
}

// Positive reads an optional integer greater than 0.
func Positive(o decode.Object, name string, otherwise int64) int64 {
	n := o.Integer(name)
	switch {
	case n == nil:
		return otherwise
	case *n <= 0:
		o.Fail(name, o.Value(name), decode.GreaterThan(0))
		return otherwise
	}
	return *n
}

// IsHexID reports whether a text is an id as the server writes it: 32 hex digits in lower case.
func IsHexID(s string) bool {
	if len(s) != 32 {
		return false
	}
	for _, r := range s {
		if (r < '0' || r > '9') && (r < 'a' || r > 'f') {
			return false
		}
	}
	return true
}

package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// answer is what a handler gives back: a status and a value to be written as
// JSON, or as it is when it is a plainText; or else stream.
type answer struct {
	status int
	body   any
	// stream writes the answer itself, for as long as it takes; its error is for
	// the log.
	stream func(w http.ResponseWriter) error
}

// plainText is a body of the type text/plain.
type plainText string

// ok is the answer nearly every endpoint gives.
func ok(body any) (answer, error) { return answer{status: http.StatusOK, body: body}, nil }

// success is the body of the calls that only say that they were accepted.
type success struct {
	Success bool `json:"success"`
}

// message is the body of the V0 calls that only say so in words.
type message struct {
	Message string `json:"message"`
}

// encodeJSON writes v without escaping <, > and &: URLs are to be read by
// people as well.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// write sends the answer.
func (a answer) write(w http.ResponseWriter) error {
	if a.stream != nil {
		return a.stream(w)
	}
	if text, plain := a.body.(plainText); plain {
		writeBody(w, a.status, typeText, []byte(text))
		return nil
	}
	body, err := encodeJSON(a.body)
	if err != nil {
		failureOf(err, shapeDetail, "").write(w)
		return err
	}
	writeJSON(w, a.status, body)
	return nil
}

const typeText = "text/plain; charset=utf-8"

// writeJSON sends a whole answer.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	writeBody(w, status, "application/json", body)
}

// smallBody is the length up to which net/http has the whole body before the
// headers leave, and tells its length itself.
const smallBody = 2048

func writeBody(w http.ResponseWriter, status int, contentType string, body []byte) {
	h := w.Header()
	h["Content-Type"] = []string{contentType}
	// The ninth header would make the map, and its copy in WriteHeader, grow into
	// a larger kind.
	if len(body) >= smallBody {
		h["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	w.WriteHeader(status)
	// A client that went away is no failure of ours.
	_, _ = w.Write(body)
}

// wireTime is a time as the API writes it: RFC 3339 in UTC with "Z" and up to
// six fraction digits, none when the fraction is zero (api-contract.md A.0.5).
type wireTime time.Time

// MarshalJSON implements json.Marshaler.
func (t wireTime) MarshalJSON() ([]byte, error) {
	u := time.Time(t).UTC().Truncate(time.Microsecond)
	layout := `"2006-01-02T15:04:05Z"`
	if u.Nanosecond() != 0 {
		layout = `"2006-01-02T15:04:05.000000Z"`
	}
	return []byte(u.Format(layout)), nil
}

// wireTimeOrNull is wireTime for a time that may be missing.
func wireTimeOrNull(t *time.Time) *wireTime {
	if t == nil {
		return nil
	}
	w := wireTime(*t)
	return &w
}

// orNull gives nil for "", which the API writes as null.
func orNull[T ~string](s T) *T {
	if s == "" {
		return nil
	}
	return &s
}

// orEmpty gives an empty list for nil: the API has no null lists where it
// promises a list.
func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// orEmptyMap is orEmpty for maps.
func orEmptyMap[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return m
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func itoa(n int) string { return strconv.Itoa(n) }

package httpapi

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"bivouac.dev/bivouac/httpapi/response"
)

// answer is a handler's result: either stream, or a status and a body. A plainText body is written
// as it is, any other as JSON.
type answer struct {
	status int
	body   any
	// stream writes the response itself and may take long. Its error goes to the log.
	stream func(w http.ResponseWriter) error
}

// plainText is a body of type text/plain.
type plainText string

// ok is a 200 with a JSON body.
func ok(body any) (answer, error) { return answer{status: http.StatusOK, body: body}, nil }

// success is the body of calls that only confirm.
type success struct {
	Success bool `json:"success"`
}

// message is the body of V0 calls that only confirm, in words.
type message struct {
	Message string `json:"message"`
}

// write sends the response. It calls sending when the response is encoded: a slow client may take
// long to read it.
func (a answer) write(w http.ResponseWriter, sending func()) error {
	if a.stream != nil {
		sending()
		return a.stream(w)
	}
	switch body := a.body.(type) {
	case plainText:
		sending()
		response.WriteBody(w, a.status, typeText, []byte(body))
		return nil
	case encodedItems:
		sending()
		response.WriteJSON(w, a.status, body.parts()...)
		return nil
	}
	body, err := response.Encode(a.body)
	sending()
	if err != nil {
		response.FailureOf(err, response.FormatDetail, "").Write(w)
		return err
	}
	response.WriteJSON(w, a.status, body)
	return nil
}

// encodedItems is a body around items that are encoded already. They are sent as they are: another
// encoding would cost as much again, and hold the answer twice.
type encodedItems struct {
	before, after string
	items         []json.RawMessage
}

// parts are the body's bytes.
func (e encodedItems) parts() [][]byte {
	out := make([][]byte, 0, 2*len(e.items)+2)
	out = append(out, []byte(e.before))
	for i, item := range e.items {
		if i > 0 {
			out = append(out, []byte(","))
		}
		out = append(out, item)
	}
	return append(out, []byte(e.after))
}

const typeText = "text/plain; charset=utf-8"

// wireTime is a time in the API's format: RFC 3339 in UTC with "Z", six fraction digits or, when
// the fraction is zero, none (API.md, "Times").
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

// wireTimeOrNull is wireTime for a time that may be absent.
func wireTimeOrNull(t *time.Time) *wireTime {
	if t == nil {
		return nil
	}
	w := wireTime(*t)
	return &w
}

// orNull returns nil for "", which the API encodes as null.
func orNull[T ~string](s T) *T {
	if s == "" {
		return nil
	}
	return &s
}

// orEmpty returns an empty list for nil, for members that are never null.
func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

func orEmptyMap[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return m
}

func itoa(n int) string { return strconv.Itoa(n) }

package httpapi

import (
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

// write sends the response.
func (a answer) write(w http.ResponseWriter) error {
	if a.stream != nil {
		return a.stream(w)
	}
	if text, plain := a.body.(plainText); plain {
		response.WriteBody(w, a.status, typeText, []byte(text))
		return nil
	}
	body, err := response.Encode(a.body)
	if err != nil {
		response.FailureOf(err, response.FormatDetail, "").Write(w)
		return err
	}
	response.WriteJSON(w, a.status, body)
	return nil
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

package httpapi

import (
	"encoding/json"
	"net/http"
	"strconv"

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

func itoa(n int) string { return strconv.Itoa(n) }

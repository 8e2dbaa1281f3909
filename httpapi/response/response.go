package response

import (
	"encoding/json"
	"net/http"
)

// Response is a handler's result: either stream, or a status and a body. A PlainText body is written
// as it is, any other as JSON.
type Response struct {
	Status int
	Body   any
	// Stream writes the response itself and may take long. Its error goes to the log.
	Stream func(w http.ResponseWriter) error
}

// PlainText is a body of type text/plain.
type PlainText string

// OK is a 200 with a JSON body.
func OK(body any) (Response, error) { return Response{Status: http.StatusOK, Body: body}, nil }

// Write sends the response. It calls sending when the response is encoded: a slow client may take
// long to read it.
func (a Response) Write(w http.ResponseWriter, sending func()) error {
	if a.Stream != nil {
		sending()
		return a.Stream(w)
	}
	switch body := a.Body.(type) {
	case PlainText:
		sending()
		writeBody(w, a.Status, TypeText, []byte(body))
		return nil
	case EncodedItems:
		sending()
		WriteJSON(w, a.Status, body.parts()...)
		return nil
	}
	body, err := Encode(a.Body)
	sending()
	if err != nil {
		FailureOf(err, FormatDetail, "").Write(w)
		return err
	}
	WriteJSON(w, a.Status, body)
	return nil
}

// EncodedItems is a body around items that are encoded already. They are sent as they are: another
// encoding would cost as much again, and hold the answer twice.
type EncodedItems struct {
	Before, After string
	Items         []json.RawMessage
}

// parts are the body's bytes.
func (e EncodedItems) parts() [][]byte {
	out := make([][]byte, 0, 2*len(e.Items)+2)
	out = append(out, []byte(e.Before))
	for i, item := range e.Items {
		if i > 0 {
			out = append(out, []byte(","))
		}
		out = append(out, item)
	}
	return append(out, []byte(e.After))
}

// TypeText is the media type of a PlainText.
const TypeText = "text/plain; charset=utf-8"

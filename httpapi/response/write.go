package response

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"

	"bivouac.dev/bivouac/httpapi/requestid"
)

// Encode encodes v as JSON without escaping <, > and &, which keeps URLs readable.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// WriteJSON sends a complete JSON response, whose body may come in parts.
func WriteJSON(w http.ResponseWriter, status int, body ...[]byte) {
	WriteBody(w, status, "application/json", body...)
}

// WriteBody sends a complete response of any type, whose body may come in parts.
func WriteBody(w http.ResponseWriter, status int, contentType string, body ...[]byte) {
	length := 0
	for _, part := range body {
		length += len(part)
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(length))
	w.WriteHeader(status)
	for _, part := range body {
		if _, err := w.Write(part); err != nil {
			return // the client has left, which is no error here
		}
	}
}

// Headers of every response.
const (
	HeaderIndex     = "X-Bivouac-Index"
	HeaderRequestID = requestid.Header
)

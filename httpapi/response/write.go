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
	writeBody(w, status, typeJSON, body...)
}

// writeBody sends a complete response of any type, whose body may come in parts.
func writeBody(w http.ResponseWriter, status int, contentType string, body ...[]byte) {
	length := 0
	for _, part := range body {
		length += len(part)
	}
	if contentType == typeJSON {
		w.Header()["Content-Type"] = jsonType
	} else {
		w.Header().Set("Content-Type", contentType)
	}
	w.Header().Set("Content-Length", strconv.Itoa(length))
	w.WriteHeader(status)
	for _, part := range body {
		if _, err := w.Write(part); err != nil {
			return // the client has left, which is no error here
		}
	}
}

const typeJSON = "application/json"

// All responses share these header values. Nothing changes them: Header.Set replaces the slice, and
// Header.Add copies a full one.
var (
	jsonType     = []string{typeJSON}                                         //nolint:gochecknoglobals // read-only
	cacheControl = []string{"no-cache, no-store, must-revalidate, max-age=0"} //nolint:gochecknoglobals // read-only
	pragma       = []string{"no-cache"}                                       //nolint:gochecknoglobals // read-only
	expires      = []string{"0"}                                              //nolint:gochecknoglobals // read-only
	sniff        = []string{"nosniff"}                                        //nolint:gochecknoglobals // read-only
)

// SetFixed sets the headers that are equal in all responses: no cache keeps a response, and no browser
// guesses its type.
func SetFixed(h http.Header) {
	h["Cache-Control"], h["Pragma"], h["Expires"], h["X-Content-Type-Options"] = cacheControl, pragma, expires, sniff
}

// Headers of every response.
const (
	HeaderIndex     = "X-Bivouac-Index"
	HeaderRequestID = requestid.Header
)

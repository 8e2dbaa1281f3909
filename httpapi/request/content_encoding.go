package request

import (
	"io"
	"net/http"
	"strings"

	"bivouac.dev/bivouac/httpapi/response"
)

// encodingGzip is the only content coding of request bodies that the API supports.
const encodingGzip = "gzip"

// errEncoding is the 415 for a body with an unsupported coding (RFC 9110, 15.5.16).
func errEncoding(w http.ResponseWriter) *response.HTTPError {
	w.Header().Set("Accept-Encoding", encodingGzip)
	return response.Error(http.StatusUnsupportedMediaType, "Unsupported Content-Encoding: "+
		"send the body as it is, or with gzip")
}

// isCoded reads Content-Encoding. coded is false for a plain body; known is false for an
// unsupported coding. Only gzip is supported, under both its names, applied once.
func isCoded(r *http.Request) (coded, known bool) {
	switch name := strings.ToLower(strings.Join(r.Header.Values("Content-Encoding"), ",")); strings.TrimSpace(name) {
	case "", "identity":
		return false, true
	case encodingGzip, "x-gzip":
		return true, true
	}
	return true, false
}

// bounded is r with an error behind limit bytes.
func bounded(r io.Reader, limit int64) io.Reader {
	return io.MultiReader(io.LimitReader(r, limit), overlong{r, limit})
}

// overlong is the end of a body, which must be empty.
type overlong struct {
	rest  io.Reader
	limit int64
}

// Read implements io.Reader.
func (o overlong) Read([]byte) (int, error) {
	n, err := o.rest.Read(make([]byte, 1))
	if n > 0 {
		return 0, &http.MaxBytesError{Limit: o.limit}
	}
	return 0, err
}

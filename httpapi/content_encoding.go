package httpapi

import (
	"compress/gzip"
	"fmt"
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
	return response.Error(http.StatusUnsupportedMediaType, "Unsupported Content-Encoding: send the body as it is, or with gzip")
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

// unpackBody decompresses a gzip body to at most limit bytes.
func unpackBody(r io.Reader, limit int64) ([]byte, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("unpacking: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(z, limit+1))
	if err != nil {
		return nil, fmt.Errorf("unpacking: %w", err)
	}
	if int64(len(b)) > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	return b, nil
}

package httpapi

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// encodingGzip is the one content coding of request bodies that the API reads.
const encodingGzip = "gzip"

// errEncoding is the answer to a body in a coding that the API does not read
// (RFC 9110, 15.5.16).
func errEncoding(w http.ResponseWriter) *refusal {
	w.Header().Set("Accept-Encoding", encodingGzip)
	return refuse(http.StatusUnsupportedMediaType, "Unsupported Content-Encoding: send the body as it is, or with gzip")
}

// isCoded reads Content-Encoding: false for a body that is sent as it is. Only
// gzip is known, under both its names, and only once.
func isCoded(r *http.Request) (coded, known bool) {
	switch name := strings.ToLower(strings.Join(r.Header.Values("Content-Encoding"), ",")); strings.TrimSpace(name) {
	case "", "identity":
		return false, true
	case encodingGzip, "x-gzip":
		return true, true
	}
	return true, false
}

// unpackBody reads a gzip body, which may have at most limit bytes unpacked.
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

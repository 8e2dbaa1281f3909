package proxy

import (
	"bufio"
	"cmp"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"bivouac.dev/bivouac/httpapi/response"
)

// writer separates a sandbox's response header from the API's until it is complete, so that the
// sandbox can't remove headers of the access log and CORS.
type writer struct {
	inner  http.ResponseWriter
	header http.Header
	status int
	// traffic counts bytes once the session has started.
	traffic atomic.Pointer[traffic]
}

func newWriter(w http.ResponseWriter) *writer {
	return &writer{inner: w, header: http.Header{}}
}

// Header implements http.ResponseWriter.
func (w *writer) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. It drops informational responses; net/http itself
// sends 100.
func (w *writer) WriteHeader(status int) {
	if w.status != 0 || status < http.StatusOK && status != http.StatusSwitchingProtocols {
		return
	}
	w.status = status
	mergeHeader(w.inner.Header(), w.header)
	w.inner.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *writer) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	n, err := w.inner.Write(b)
	w.traffic.Load().sent(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.inner }

// Hijack implements http.Hijacker. The returned connection counts its bytes.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.inner).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.status = cmp.Or(w.status, http.StatusSwitchingProtocols)
	if rec, ok := w.inner.(interface{ NoteStatus(status int) }); ok {
		rec.NoteStatus(w.status)
	}
	return &countedConn{Conn: conn, writer: w}, rw, nil
}

// trailers copies the response's trailers.
func (w *writer) trailers() {
	announced := strings.Split(strings.Join(w.header.Values("Trailer"), ","), ",")
	for name, values := range w.header {
		plain := slices.ContainsFunc(announced, func(a string) bool { return strings.EqualFold(strings.TrimSpace(a), name) })
		if plain || strings.HasPrefix(name, http.TrailerPrefix) {
			w.inner.Header()[name] = values
		}
	}
}

// note records the status of a response written around this writer.
func (w *writer) note(err error) {
	if w.status == 0 {
		w.status = response.FailureOf(err, response.FormatDetail, "").Status
	}
}

// outcome is the status for the metrics.
func (w *writer) outcome() int {
	if w.status == 0 {
		return http.StatusBadGateway
	}
	return w.status
}

// mergeHeader merges a sandbox's header into the API's. The API's values win for the request id,
// the log index, X-Content-Type-Options and, if the proxy allows the origin, CORS. Policies add up: a
// browser obeys all of them.
func mergeHeader(ours, theirs http.Header) {
	cors := ours.Get("Access-Control-Allow-Origin") != ""
	if theirs.Get("Cache-Control") != "" || theirs.Get("Expires") != "" {
		for _, name := range []string{"Cache-Control", "Pragma", "Expires"} {
			ours.Del(name)
		}
	}
	for name, values := range theirs {
		switch {
		case name == response.HeaderRequestID || name == response.HeaderIndex || name == "X-Content-Type-Options":
		case cors && strings.HasPrefix(name, "Access-Control-"):
		case name == "Vary" || name == headerPolicy:
			ours[name] = append(ours[name], values...)
		default:
			ours[name] = values
		}
	}
}

// countedConn is a client's connection after an upgrade.
type countedConn struct {
	net.Conn
	writer *writer
}

// Read counts bytes from the client to the sandbox.
func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.writer.traffic.Load().received(n)
	return n, err
}

// Write counts bytes from the sandbox to the client.
func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.writer.traffic.Load().sent(n)
	return n, err
}

// CloseWrite forwards that the sandbox has closed its side.
func (c *countedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

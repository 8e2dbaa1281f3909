package httpapi

import (
	"bufio"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
)

// doorWriter stands between a sandbox's answer and ours. What the sandbox says
// is kept apart until it is all there, so that it can't take away what the edge
// and CORS have set.
type doorWriter struct {
	inner  http.ResponseWriter
	header http.Header
	status int
	// traffic counts, once it is known whose.
	traffic atomic.Pointer[traffic]
}

func newDoorWriter(w http.ResponseWriter) *doorWriter {
	return &doorWriter{inner: w, header: http.Header{}}
}

// Header implements http.ResponseWriter.
func (w *doorWriter) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. Provisional answers are left out:
// net/http sends the one that matters, 100, itself.
func (w *doorWriter) WriteHeader(status int) {
	if w.status != 0 || status < http.StatusOK && status != http.StatusSwitchingProtocols {
		return
	}
	w.status = status
	mergeHeader(w.inner.Header(), w.header)
	w.inner.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *doorWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	n, err := w.inner.Write(b)
	w.traffic.Load().sent(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *doorWriter) Unwrap() http.ResponseWriter { return w.inner }

// Hijack implements http.Hijacker: the connection it gives counts.
func (w *doorWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.inner).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if w.status == 0 {
		w.status = http.StatusSwitchingProtocols
	}
	if rec, ok := w.inner.(*recorder); ok && rec.status == 0 {
		rec.status = w.status
	}
	return &countedConn{Conn: conn, writer: w}, rw, nil
}

// trailers hands over what came after the body.
func (w *doorWriter) trailers() {
	announced := strings.Split(strings.Join(w.header.Values("Trailer"), ","), ",")
	for name, values := range w.header {
		plain := slices.ContainsFunc(announced, func(a string) bool { return strings.EqualFold(strings.TrimSpace(a), name) })
		if plain || strings.HasPrefix(name, http.TrailerPrefix) {
			w.inner.Header()[name] = values
		}
	}
}

// note takes down the status of an answer that did not go through here.
func (w *doorWriter) note(err error) {
	if w.status == 0 {
		w.status = failureOf(err, shapeDetail, "").status
	}
}

// outcome is the status for the metrics.
func (w *doorWriter) outcome() int {
	if w.status == 0 {
		return http.StatusBadGateway
	}
	return w.status
}

// mergeHeader puts a sandbox's header over ours. Ours stay where they protect:
// the request's id, what the browser may guess, and CORS where the door allows
// the origin.
func mergeHeader(ours, theirs http.Header) {
	cors := ours.Get("Access-Control-Allow-Origin") != ""
	if theirs.Get("Cache-Control") != "" || theirs.Get("Expires") != "" {
		for _, name := range []string{"Cache-Control", "Pragma", "Expires"} {
			ours.Del(name)
		}
	}
	for name, values := range theirs {
		switch {
		case name == headerRequestID || name == headerIndex || name == "X-Content-Type-Options":
		case cors && strings.HasPrefix(name, "Access-Control-"):
		case name == "Vary":
			ours[name] = append(ours[name], values...)
		default:
			ours[name] = values
		}
	}
}

// countedConn is a client's connection after an upgrade.
type countedConn struct {
	net.Conn
	writer *doorWriter
}

// Read implements io.Reader: from the client to the sandbox.
func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.writer.traffic.Load().received(n)
	return n, err
}

// Write implements io.Writer: from the sandbox to the client.
func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.writer.traffic.Load().sent(n)
	return n, err
}

// CloseWrite passes on that the sandbox has no more to say.
func (c *countedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

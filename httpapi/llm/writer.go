package llm

import (
	"net/http"
	"time"
)

// movingWriter ends an answer whose client takes nothing for a while. The waits for a slot and for the
// model have no such limit: it replaces the server's, which counts from the request's header.
type movingWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration
	// stalled runs while a write does.
	stalled *time.Timer
}

func newMovingWriter(w http.ResponseWriter, limit time.Duration) *movingWriter {
	m := &movingWriter{ResponseWriter: w, control: http.NewResponseController(w), limit: limit}
	_ = m.control.SetWriteDeadline(time.Time{}) // a writer without deadlines has none to set
	m.stalled = time.AfterFunc(limit, func() { _ = m.control.SetWriteDeadline(time.Now()) })
	m.stalled.Stop()
	return m
}

// WriteHeader implements http.ResponseWriter. Informational responses are written at once.
func (m *movingWriter) WriteHeader(status int) {
	m.stalled.Reset(m.limit)
	defer m.stalled.Stop()
	m.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (m *movingWriter) Write(b []byte) (int, error) {
	m.stalled.Reset(m.limit)
	defer m.stalled.Stop()
	return m.ResponseWriter.Write(b)
}

// FlushError is for http.ResponseController.
func (m *movingWriter) FlushError() error {
	m.stalled.Reset(m.limit)
	defer m.stalled.Stop()
	return m.control.Flush()
}

// Unwrap is for http.ResponseController.
func (m *movingWriter) Unwrap() http.ResponseWriter { return m.ResponseWriter }

// end limits what the server still writes.
func (m *movingWriter) end() {
	m.stalled.Stop()
	_ = m.control.SetWriteDeadline(time.Now().Add(m.limit)) // likewise
}

package decode

import (
	"io"
	"net/http"
	"time"
)

const (
	// lingerTime is what a client has for the rest of a body that was too large, lingerPause what may pass
	// without a byte of it.
	lingerTime, lingerPause = 30 * time.Second, 5 * time.Second
)

// Linger follows the response to a body that was too large. It reads what the client still sends: most
// clients read no response before they have sent all, and to close a connection with unread bytes resets
// it. body is the request's own, without a limit.
func Linger(w http.ResponseWriter, body io.Reader) {
	connection := http.NewResponseController(w)
	if connection.Flush() != nil {
		return // the client has left
	}
	end := time.Now().Add(lingerTime)
	for part := make([]byte, 32<<10); time.Now().Before(end); {
		if connection.SetReadDeadline(time.Now().Add(lingerPause)) != nil {
			return
		}
		if _, err := body.Read(part); err != nil {
			return
		}
	}
}

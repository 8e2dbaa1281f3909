package socket

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/scheduler/agent"
)

const (
	// defaultAuthTime is how long a client may take to send its key.
	defaultAuthTime = 10 * time.Second
	// maxAuthFrame bounds the frame that has it. The library closes with 1009 above that.
	maxAuthFrame = 1 << 20
)

// AuthFrame is a client's first frame, with its key.
type AuthFrame struct {
	Type string `json:"type"`
	Key  string `json:"session_api_key"`
}

// introduced checks a socket's key, which is in a header, the query or the first frame. A wrong key
// of the request fails at once. If it returns false the socket is closed with 4001.
func (s *Set) introduced(ctx context.Context, conn *websocket.Conn, r *http.Request) bool {
	key := r.Header.Get(agent.KeyHeader)
	if key == "" {
		key = r.URL.Query().Get("session_api_key")
	}
	if s.keyFits(key) || key == "" && s.firstFrameFits(ctx, conn) {
		return true
	}
	_ = conn.Close(Unauthorized, "Authentication failed") // the client may have left
	return false
}

// firstFrameFits reads the first frame, which must have the key. A context that ends would close the
// connection without a code, so a timer closes it instead.
func (s *Set) firstFrameFits(ctx context.Context, conn *websocket.Conn) bool {
	conn.SetReadLimit(maxAuthFrame)
	timer := time.AfterFunc(s.AuthTime, func() {
		_ = conn.Close(Unauthorized, "Authentication failed")
	})
	defer timer.Stop()
	_, frame, err := conn.Read(ctx)
	if err != nil {
		return false
	}
	var auth AuthFrame
	return json.Unmarshal(frame, &auth) == nil && auth.Type == "auth" && s.keyFits(auth.Key)
}

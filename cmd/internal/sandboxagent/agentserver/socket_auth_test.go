package agentserver

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/socket"
	"bivouac.dev/bivouac/scheduler/agent"
)

func TestEventSocket_WithoutAKeyClosesAs4001(t *testing.T) {
	s := newServer(t)
	s.s.sockets.AuthTime = 50 * time.Millisecond
	s.want(201, "POST", "/api/conversations", createBody(t, convUID))
	for name, c := range map[string]struct {
		query  string
		header http.Header
		frame  []byte
	}{
		"no frame at all":    {},
		"a frame too long":   {frame: []byte(`{"type":"auth","session_api_key":"` + strings.Repeat("x", 64<<10) + `"}`)},
		"a frame of no JSON": {frame: []byte("hello")},
		"a wrong query":      {query: "?session_api_key=wrong"},
		"a wrong header":     {header: http.Header{agent.KeyHeader: {"wrong"}}},
	} {
		t.Run(name, func(t *testing.T) {
			conn := s.subscribe(convID, c.query, c.header)
			if c.frame != nil {
				// A write may fail: the server reads no more than it needs.
				_ = conn.Write(t.Context(), websocket.MessageText, c.frame)
			}
			if code := closeCode(t, conn); code != socket.Unauthorized {
				t.Errorf("close code %d, want %d", code, socket.Unauthorized)
			}
		})
	}
}

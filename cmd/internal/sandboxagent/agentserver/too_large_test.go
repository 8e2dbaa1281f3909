package agentserver

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/relay"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/relay/relaytest"
)

// sendsAll sends a body that is too large to its end, far behind the refusal, and returns the response.
func sendsAll(t *testing.T, address, path, header string, limit int) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	const rest = 32 << 20 // more than the sockets hold
	part := []byte(strings.Repeat(" ", 1<<20))
	write := func(bytes int) {
		t.Helper()
		for ; bytes > 0; bytes -= len(part) {
			if _, err := conn.Write(part[:min(bytes, len(part))]); err != nil {
				t.Fatalf("with %d bytes to send: %v", bytes, err)
			}
		}
	}
	if _, err := fmt.Fprintf(conn,
		"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%s\r\nContent-Length: %d\r\n\r\n", path, header,
		limit+1+rest); err != nil {
		t.Fatal(err)
	}
	write(limit + 1)
	in := bufio.NewReader(conn)
	if _, err := in.Peek(1); err != nil {
		t.Fatalf("there is no refusal: %v", err)
	}
	write(rest)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatalf("there is no response: %v", err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// TestTooLarge_ReachesAClientThatStillSends: the 413 of the agent server and that of its relay.
func TestTooLarge_ReachesAClientThatStillSends(t *testing.T) {
	t.Parallel()
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		s := newServer(t)
		resp := sendsAll(t, strings.TrimPrefix(s.url, "http://"), "/api/conversations", "X-Session-API-Key: "+testKey,
			maxBody)
		if resp.StatusCode != http.StatusRequestEntityTooLarge || !resp.Close {
			t.Errorf("%d, closes %t", resp.StatusCode, resp.Close)
		}
	})
	t.Run("relay", func(t *testing.T) {
		t.Parallel()
		n := relaytest.NewNode(t, testKey, []string{convID}, nil)
		s := serveAt(t, t.TempDir(), func(c *config.Config) { c.APIURLs = []string{n.URL} })
		llm := s.gatewayModel(n)
		address, path, _ := strings.Cut(strings.TrimPrefix(llm.BaseURL, "http://"), "/")
		resp := sendsAll(t, address, "/"+path+"/chat/completions", "Authorization: Bearer "+llm.APIKey, relay.MaxBody)
		if resp.StatusCode != http.StatusRequestEntityTooLarge || !resp.Close {
			t.Errorf("%d, closes %t", resp.StatusCode, resp.Close)
		}
	})
}

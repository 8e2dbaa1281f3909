package agentserver

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/socket"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent"
)

// subscribe opens the conversation's event socket.
func (s *server) subscribe(id, query string, header http.Header) *websocket.Conn {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(s.url, "http")+"/sockets/events/"+id+query,
		&websocket.DialOptions{HTTPHeader: header})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.CloseNow() })
	return conn
}

func withKey() http.Header { return http.Header{agent.KeyHeader: {testKey}} }

// next reads one event, leaving out the whole state.
func next(t *testing.T, conn *websocket.Conn) eventSeen {
	t.Helper()
	for {
		if e := frameOf(t, conn); e.Key != "full_state" {
			return e
		}
	}
}

// frameOf reads one frame.
func frameOf(t *testing.T, conn *websocket.Conn) eventSeen {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, b, err := conn.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return decodeJSON[eventSeen](t, string(b))
}

// closeCode reads until the close frame.
func closeCode(t *testing.T, conn *websocket.Conn) websocket.StatusCode {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		if _, _, err := conn.Read(ctx); err != nil {
			return websocket.CloseStatus(err)
		}
	}
}

func TestEventSocket_EventsAndMessages(t *testing.T) {
	s := newServer(t)
	s.want(201, "POST", "/api/conversations", createBody(t, convUID))
	s.settled(convID)
	live := s.subscribe(convID, "", withKey())
	if e := frameOf(t, live); e.Key != "full_state" {
		t.Errorf("the first frame is %+v", e)
	}
	if err := live.Write(t.Context(), websocket.MessageText,
		[]byte(`{"role":"user","content":[{"type":"text","text":"hello"}]}`)); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{event.KindMessage, event.KindStateUpdate, event.KindStateUpdate} {
		e := next(t, live)
		if e.Kind != kind {
			t.Fatalf("%s, want %s", e.Kind, kind)
		}
	}
	// Events added over HTTP arrive too. Old ones are sent again on request, even if they are not
	// in memory.
	s.want(204, "POST", "/api/conversations/prepare-for-sandbox-pause", "")
	s.want(200, "POST", "/api/conversations/"+convID+"/events", `{"content":"more"}`)
	if e := next(t, live); e.Kind != event.KindMessage {
		t.Errorf("%+v", e)
	}
	var all []eventSeen
	page := decodeJSON[struct{ Items []eventSeen }](t,
		s.want(200, "GET", "/api/conversations/"+convID+"/events/search", ""))
	again := s.subscribe(convUID, "?resend_mode=all", withKey())
	for range page.Items {
		all = append(all, next(t, again))
	}
	for i, e := range page.Items {
		if all[i].ID != e.ID {
			t.Errorf("event %d is %s, want %s", i, all[i].ID, e.ID)
		}
	}
	since := s.subscribe(convID, "?resend_mode=since&after_timestamp="+page.Items[len(page.Items)-1].Timestamp, withKey())
	if e := next(t, since); e.ID != page.Items[len(page.Items)-1].ID {
		t.Errorf("%+v", e)
	}
	s.want(200, "DELETE", "/api/conversations/"+convID, "")
	for _, conn := range []*websocket.Conn{live, again, since} {
		if code := closeCode(t, conn); code != socket.Unknown {
			t.Errorf("close code %d", code)
		}
	}
}

func TestEventSocket_WhoMayListen(t *testing.T) {
	s := newServer(t)
	s.begun()
	auth, _ := json.Marshal(socket.AuthFrame{Type: "auth", Key: testKey})
	for name, c := range map[string]struct {
		id, query, frame string
		header           http.Header
		want             websocket.StatusCode
	}{
		"header": {convID, "", "", withKey(), 0}, "query": {convID, "?session_api_key=" + testKey, "", nil, 0},
		"first frame": {
			convID,
			"",
			string(auth),
			nil,
			0,
		}, "wrong frame": {convID, "", `{"type":"auth","session_api_key":"x"}`, nil, socket.Unauthorized},
		"no auth frame":   {convID, "", `{"role":"user","content":"x"}`, nil, socket.Unauthorized},
		"unknown":         {strings.Repeat("0", 32), "", string(auth), nil, socket.Unknown},
		"unknown, no key": {strings.Repeat("0", 32), "", `{}`, nil, socket.Unauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			conn := s.subscribe(c.id, c.query, c.header)
			if c.frame != "" {
				_ = conn.Write(t.Context(), websocket.MessageText, []byte(c.frame))
			}
			if c.want != 0 {
				if code := closeCode(t, conn); code != c.want {
					t.Errorf("close code %d, want %d", code, c.want)
				}
				return
			}
			// A repeated auth frame is ignored.
			_ = conn.Write(t.Context(), websocket.MessageText, auth)
			_ = conn.Write(t.Context(), websocket.MessageText, []byte(`{"content":"x"}`))
			if e := next(t, conn); e.Kind != event.KindMessage {
				t.Errorf("%+v", e)
			}
			for e := next(t, conn); string(e.Value) != `"idle"`; e = next(t, conn) { //nolint:revive // the run's end
			}
		})
	}
}

func TestEventSocket_EndsWithTheServer(t *testing.T) {
	s := newServer(t)
	s.begun()
	conn := s.subscribe(convID, "", withKey())
	_ = conn.Write(t.Context(), websocket.MessageText, []byte(`{"content":"x"}`))
	next(t, conn)
	s.s.close()
	closeCode(t, conn)
	if code := closeCode(t, s.subscribe(convID, "", withKey())); code != websocket.StatusTryAgainLater {
		t.Errorf("close code %d", code)
	}
}

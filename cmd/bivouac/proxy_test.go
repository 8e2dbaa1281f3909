package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// sandboxProxy uses a conversation through every node's proxy, over a pause: its URL, its
// events by WebSocket, and the resume by the next request.
func sandboxProxy(t *testing.T, nodes []caller) {
	t.Helper()
	task := nodes[0].awaitTask(t, nodes[0].startConversation(t, "hello"))
	info := nodes[0].awaitSandbox(t, *task.SandboxID, "RUNNING")
	var sockets []*websocket.Conn
	for _, n := range nodes {
		var list []struct {
			ID  string  `json:"id"`
			URL *string `json:"conversation_url"`
			Key *string `json:"session_api_key"`
		}
		n.do(t, http.StatusOK, http.MethodGet, "/api/v1/app-conversations?ids="+*task.ConversationID, nil).json(t, &list)
		if len(list) != 1 || list[0].URL == nil || !strings.HasPrefix(*list[0].URL, n.base+"/sandboxes/") {
			t.Fatalf("%s: %+v", n.base, list)
		}
		for _, key := range []string{n.key, *list[0].Key} {
			var got struct{ ID string }
			caller{base: *list[0].URL, key: key}.do(t, http.StatusOK, http.MethodGet, "", nil).json(t, &got)
			if strings.ReplaceAll(got.ID, "-", "") != *task.ConversationID {
				t.Errorf("%s shows conversation %s", *list[0].URL, got.ID)
			}
		}
		for _, key := range []string{"", "wrong", *list[0].Key + "x"} {
			caller{base: *list[0].URL, key: key}.do(t, http.StatusUnauthorized, http.MethodGet, "", nil)
		}
		sockets = append(sockets,
			eventSocket(t, n.base+"/sandboxes/"+info.ID+"/AGENT_SERVER/sockets/events/"+*task.ConversationID, *list[0].Key))
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := sockets[0].Write(ctx, websocket.MessageText,
		[]byte(`{"role":"user","content":[{"type":"text","text":"through the proxy"}]}`)); err != nil {
		t.Fatal(err)
	}
	for _, s := range sockets {
		for {
			_, event, err := s.Read(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(event), "through the proxy") {
				break
			}
		}
	}

	nodes[0].do(t, http.StatusOK, http.MethodPost, "/api/v1/sandboxes/"+info.ID+"/pause", nil)
	for i, s := range sockets {
		var closed websocket.CloseError
		for {
			if _, _, err := s.Read(ctx); err != nil {
				if !errors.As(err, &closed) || closed.Code != websocket.StatusServiceRestart {
					t.Errorf("socket %d ended with %v", i, err)
				}
				break
			}
		}
	}
	nodes[1].awaitSandbox(t, info.ID, "PAUSED")
	last := caller{base: nodes[2].base + "/sandboxes/" + info.ID + "/AGENT_SERVER", key: nodes[2].key}
	eventually(t, "a request wakes the sandbox", func() error {
		a, err := last.try(http.MethodGet, "/api/conversations/"+*task.ConversationID+"/events/search?wake=true", nil)
		if err == nil && (a.status != http.StatusOK || !strings.Contains(string(a.body), "through the proxy")) {
			err = errors.New(a.String())
		}
		return err
	})
	nodes[0].awaitSandbox(t, info.ID, "RUNNING")
}

// eventSocket opens a conversation's events from the first one, with the key in the first
// frame.
func eventSocket(t *testing.T, url, key string) *websocket.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(url, "http")+"?resend_mode=all", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	first, err := json.Marshal(map[string]string{"type": "auth", "session_api_key": key})
	if err == nil {
		err = conn.Write(ctx, websocket.MessageText, first)
	}
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestDev_OneDoorOnEveryNode(t *testing.T) {
	t.Parallel()
	r := startDev(t, t.TempDir())
	sandboxProxy(t, r.all)
}

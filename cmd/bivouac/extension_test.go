package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A sandbox as its owner's client and its own agent use it, on three nodes: messages that
// resume it, its log, its secrets.
func TestDev_MessagesLogsAndOwnSecrets(t *testing.T) {
	t.Parallel()
	nodes := startDev(t, t.TempDir()).all
	nodes[0].do(t, http.StatusOK, http.MethodPost, "/api/settings",
		`{"secrets_store":{"custom_secrets":{"DATABASE_URL":{"secret":"postgres://x"}}}}`)
	task := nodes[0].awaitTask(t, nodes[0].startConversation(t, "hello"))
	sb := nodes[0].awaitSandbox(t, *task.SandboxID, "RUNNING")

	var list []struct {
		Key *string `json:"session_api_key"`
	}
	nodes[1].do(t, http.StatusOK, http.MethodGet, "/api/v1/app-conversations?ids="+*task.ConversationID,
		nil).json(t, &list)
	own := caller{base: nodes[2].base, key: *list[0].Key}
	secrets := "/api/v1/sandboxes/" + sb.ID + "/settings/secrets"
	if got := own.do(t, http.StatusOK, http.MethodGet, secrets+"/DATABASE_URL", nil); string(got.body) != "postgres://x" {
		t.Errorf("the sandbox's secret is %s", got)
	}
	nodes[2].do(t, http.StatusUnauthorized, http.MethodGet, secrets, nil)

	ended := make(chan error, 1)
	first := make(chan struct{})
	go func() {
		ended <- followLog(nodes[1], "/api/v1/sandboxes/"+sb.ID+"/logs?stream=stderr&follow=true", first)
	}()
	select {
	case <-first:
	case err := <-ended:
		t.Fatalf("the log ended early: %v", err)
	case <-time.After(patience):
		t.Fatal("nothing in the log")
	}

	nodes[0].do(t, http.StatusOK, http.MethodPost, "/api/v1/sandboxes/"+sb.ID+"/pause", nil)
	nodes[1].awaitSandbox(t, sb.ID, "PAUSED")
	if err := <-ended; err != nil {
		t.Errorf("the log of a paused sandbox: %v", err)
	}
	path := "/api/v1/app-conversations/" + *task.ConversationID
	eventually(t, "a message wakes the sandbox", func() error {
		a, err := nodes[2].try(http.MethodPost, path+"/send-message", `{"content":[{"type":"text","text":"wake up"}]}`)
		if err == nil && a.status != http.StatusOK {
			err = errors.New(a.String())
		}
		return err
	})
	eventually(t, "the message is in the conversation", func() error {
		a, err := nodes[0].try(http.MethodGet,
			"/sandboxes/"+sb.ID+"/AGENT_SERVER/api/conversations/"+*task.ConversationID+"/events/search", nil)
		if err == nil && !strings.Contains(string(a.body), "wake up") {
			err = errors.New(a.String())
		}
		return err
	})
	nodes[1].do(t, http.StatusOK, http.MethodPatch, path, `{"title":"renamed"}`)
	nodes[1].do(t, http.StatusOK, http.MethodDelete, path, nil)
	eventually(t, "the sandbox went with its conversation", func() error {
		a, err := nodes[2].try(http.MethodGet, "/api/v1/sandboxes?id="+sb.ID, nil)
		if err == nil && strings.TrimSpace(string(a.body)) != "[null]" {
			err = errors.New(a.String())
		}
		return err
	})
}

// followLog reads a log to its end and closes first after the first line.
func followLog(c caller, path string, first chan struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Session-API-Key", c.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	lines := bufio.NewReader(resp.Body)
	if _, err := lines.ReadString('\n'); err != nil {
		return err
	}
	close(first)
	_, err = io.Copy(io.Discard, lines)
	return err
}

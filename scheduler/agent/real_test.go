package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
)

// startAgent runs the real program and returns its address and a function that kills it.
func startAgent(t *testing.T, bin string, env ...string) (url string, kill func()) {
	t.Helper()
	cmd := exec.Command(bin, "--port", "0")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	drained := make(chan struct{})
	kill = func() { _ = cmd.Process.Kill(); <-drained; _ = cmd.Wait() }
	for lines.Scan() {
		var l struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &l) == nil && l.Msg == "serving" {
			go func() {
				defer close(drained)
				for lines.Scan() { //nolint:revive // the pipe is kept empty
				}
			}()
			t.Cleanup(kill)
			return "http://" + strings.NewReplacer("0.0.0.0", "127.0.0.1", "[::]", "127.0.0.1").Replace(l.Address), kill
		}
	}
	t.Fatal("the agent server did not begin to serve")
	return "", nil
}

// TestReal_MemberOfAPool takes the real agent server through a warm member's life: dormant,
// claimed, used, killed, initialised again.
func TestReal_MemberOfAPool(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "sandbox-agent")
	if err := local.BuildGo(t.Context(), "./cmd/sandbox-agent", bin); err != nil {
		t.Fatal(err)
	}
	env := []string{
		"OH_DEFERRED_INIT=1",
		"OH_SECRET_KEY=initsecret",
		"OH_CONVERSATIONS_PATH=" + dir + "/c",
		"OH_BASH_EVENTS_DIR=" + dir + "/b",
	}
	url, kill := startAgent(t, bin, env...)
	c := New(Config{})
	defer c.Close()
	bind := func() {
		t.Helper()
		if state, err := c.InitState(t.Context(), url); state != StateDormant || err != nil {
			t.Fatalf("%s, %v", state, err)
		}
		if err := c.Health(t.Context(), url); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Prove(t.Context(), url, key, true); !errors.Is(err, ErrNotOurs) && !errors.Is(err, ErrUnreachable) {
			t.Fatalf("a dormant server is proven: %v", err)
		}
		if err := c.Init(t.Context(), url, "wrong", InitRequest{SessionAPIKeys: []string{key}}); !errors.Is(err, ErrNotOurs) {
			t.Fatal(err)
		}
		if err := c.Init(t.Context(), url, "initsecret", InitRequest{SessionAPIKeys: []string{key}}); err != nil {
			t.Fatal(err)
		}
		if err := c.Init(t.Context(), url, "initsecret",
			InitRequest{SessionAPIKeys: []string{"another"}}); !errors.Is(err, ErrNotDormant) {
			t.Fatal(err)
		}
		if _, err := c.Prove(t.Context(), url, key, true); err != nil {
			t.Fatal(err)
		}
	}
	bind()
	marker := filepath.Join(dir, "w", ".bivouac")
	if _, err := c.Download(t.Context(), url, key, marker); !errors.Is(err, ErrNoFile) {
		t.Fatal(err)
	}
	if err := c.Upload(t.Context(), url, key, marker, []byte("mark")); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Download(t.Context(), url, key, marker); err != nil || !bytes.Equal(got, []byte("mark")) {
		t.Fatalf("%q, %v", got, err)
	}
	req := CreateRequest{
		ConversationID: DashedID("6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01"), Workspace: Workspace{"LocalWorkspace", dir + "/w"},
		AgentSettings: AgentSettings{
			AgentKind: "openhands",
			LLM:       LLM{Model: "m", UsageID: "agent"},
		}, ConfirmationPolicy: Kind{"NeverConfirm"},
	}
	if _, created, err := c.CreateConversation(t.Context(), url, key, req); err != nil || !created {
		t.Fatal(created, err)
	}
	if info, err := c.ServerInfo(t.Context(), url); err != nil || info.Idle > time.Minute || info.Version == "" {
		t.Fatalf("%+v, %v", info, err)
	}
	if did, err := c.PauseAll(t.Context(), url, key, false); err != nil || did != (Paused{}) {
		t.Fatalf("%+v, %v", did, err)
	}

	// Killed while a command runs, it is dormant again. After its initialisation the conversation
	// exists and the command has ended.
	var started struct{ ID string }
	body := []byte(`{"command":"sleep 3","timeout":600}`)
	if err := c.call(t.Context(), time.Minute,
		request{
			op:     "start",
			method: "POST",
			url:    url + "/api/bash/start_bash_command",
			key:    key,
			body:   body,
		}, &started); err != nil {
		t.Fatal(err)
	}
	kill()
	c.Close()
	url, _ = startAgent(t, bin, env...)
	bind()
	infos, err := c.Conversations(t.Context(), url, key, []string{req.ConversationID})
	if err != nil || infos[0] == nil {
		t.Fatalf("the conversation: %v, %v", infos, err)
	}
	out, err := c.awaitCommand(t.Context(), url, key, started.ID)
	if err != nil || out.ExitCode != -1 || !strings.Contains(out.Stderr, "restarted") {
		t.Fatalf("the lost command: %+v, %v", out, err)
	}
}

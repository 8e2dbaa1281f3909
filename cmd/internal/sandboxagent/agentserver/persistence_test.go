package agentserver

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/scheduler/agent"
)

func TestPersistence_TornFiles(t *testing.T) {
	for name, spoil := range map[string]struct {
		do     func(t *testing.T, file string)
		events string
	}{
		"last line torn":          {func(t *testing.T, f string) { appendTo(t, f, `{"id":"x","timest`) }, "3"},
		"last line without end":   {func(t *testing.T, f string) { appendTo(t, f, `{"id":"x","kind":"K"}`) }, "3"},
		"zeros at the end":        {func(t *testing.T, f string) { appendTo(t, f, string(make([]byte, 500))) }, "3"},
		"a whole line of rubbish": {func(t *testing.T, f string) { appendTo(t, f, "rubbish\n") }, "3"},
		"cut in the last event": {func(t *testing.T, f string) {
			st, err := os.Stat(f)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(f, st.Size()-5); err != nil {
				t.Fatal(err)
			}
		}, "4"}, // the run's end is lost: its message, running, the restart, and the end of what goes on
		"empty": {func(t *testing.T, f string) {
			if err := os.Truncate(f, 0); err != nil {
				t.Fatal(err)
			}
		}, "0"},
		"rubbish in the middle": {func(t *testing.T, f string) {
			b := strings.SplitAfter(string(read(t, f)), "\n")
			if err := os.WriteFile(f, []byte(b[0]+"rubbish\n"+b[1]+b[2]), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "3"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			first := serveAt(t, dir, nil)
			first.want(201, "POST", "/api/conversations", createBody(t, convUID))
			first.settled(convID)
			spoil.do(t, filepath.Join(dir, convID, "events.jsonl"))
			path := "/api/conversations/" + convID + "/events"
			s := serveAt(t, dir, nil)
			s.until(spoil.events+" events", func() bool { return s.want(200, "GET", path+"/count", "") == spoil.events })
			s.want(200, "POST", path, `{"content":[{"type":"text","text":"after"}]}`)
			// The next process finds what was appended after the damage.
			s = serveAt(t, dir, nil)
			p := decodeJSON[agent.Page[map[string]any]](t,
				s.want(200, "GET", path+"/search?sort_order=TIMESTAMP_DESC&limit=1", ""))
			if len(p.Items) != 1 || p.Items[0]["kind"] != event.KindMessage {
				t.Errorf("last event %v", p.Items)
			}
		})
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestPersistence_HalfMadeConversationIsMadeAgain(t *testing.T) {
	dir := t.TempDir()
	half := filepath.Join(dir, ".new-"+convID)
	if err := os.MkdirAll(half, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(half, "events.jsonl"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serveAt(t, dir, nil)
	if _, err := os.Stat(half); !os.IsNotExist(err) {
		t.Errorf("the half-made one is still there: %v", err)
	}
	s.want(404, "GET", "/api/conversations/"+convID, "")
	s.want(201, "POST", "/api/conversations", createBody(t, convUID))
}

func TestPersistence_UnreadableConversationIsNotOverwritten(t *testing.T) {
	dir := t.TempDir()
	serveAt(t, dir, nil).want(201, "POST", "/api/conversations", createBody(t, convUID))
	if err := os.WriteFile(filepath.Join(dir, convID, "meta.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serveAt(t, dir, nil)
	s.want(500, "POST", "/api/conversations", createBody(t, convUID))
	if got := string(read(t, filepath.Join(dir, convID, "meta.json"))); got != "{" {
		t.Errorf("overwritten: %s", got)
	}
	s.want(201, "POST", "/api/conversations", createBody(t, strings.Repeat("a", 32)))
}

// program is the real binary.
type program struct {
	cmd *exec.Cmd
	url string
}

func build(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "sandbox-agent")
	if err := local.BuildGo(t.Context(), "./cmd/sandbox-agent", bin); err != nil {
		t.Fatal(err)
	}
	return bin
}

func runProgram(t *testing.T, bin, dir string, env ...string) *program {
	t.Helper()
	cmd := exec.Command(bin, "--port", "0")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "OH_CONVERSATIONS_PATH=" + dir}, env...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	sc := bufio.NewScanner(stderr)
	for sc.Scan() {
		var line struct{ Msg, Address string }
		if json.Unmarshal(sc.Bytes(), &line) == nil && line.Msg == "serving" {
			go func() {
				for sc.Scan() { //nolint:revive // the pipe is kept empty
				}
			}()
			return &program{cmd, "http://" + strings.Replace(line.Address, "0.0.0.0", "127.0.0.1", 1)}
		}
	}
	t.Fatal("the program did not begin to serve")
	return nil
}

func TestProgram_SurvivesKill(t *testing.T) {
	bin, dir := build(t), t.TempDir()
	env := []string{"OH_SESSION_API_KEYS_0=" + testKey, "OH_SECRET_KEY=SEALCANARY", "BIVOUAC_RESUME_RUNS=0"}
	p := runProgram(t, bin, dir, env...)
	if status, body := call(t, "POST", p.url+"/api/conversations", testKey, createBody(t, convUID)); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	path := "/api/conversations/" + convID + "/events"
	for i := range 5 {
		if status, _ := call(t, "POST", p.url+path, testKey, `{"content":[{"type":"text","text":"hello"}]}`); status != 200 {
			t.Fatal(status)
		}
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = p.cmd.Wait()
		p = runProgram(t, bin, dir, env...)
		want := strconv.Itoa(6 + i) // four state updates, the system prompt and the messages
		if status, n := call(t, "GET", p.url+path+"/count", testKey, ""); status != 200 || n != want {
			t.Fatalf("after kill %d: %d %s events, want %s", i, status, n, want)
		}
	}
	searchDir(t, dir)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

func TestProgram_Flags(t *testing.T) {
	bin := build(t)
	out, err := exec.Command(bin, "--version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "sandbox-agent ") {
		t.Errorf("--version: %s, %v", out, err)
	}
	if out, err := exec.Command(bin, "--help").CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "OH_SECRET_KEY") {
		t.Errorf("--help: %s, %v", out, err)
	}
	for _, args := range [][]string{{"--nonsense"}, {"extra"}} {
		if err := exec.Command(bin, args...).Run(); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
	for _, env := range []string{"OH_SESSION_API_KEYS_0=", "SESSION_API_KEY=", "OH_SESSION_API_KEYS=[7]"} {
		cmd := exec.Command(bin, "--port", "0")
		cmd.Env = []string{env, "OH_CONVERSATIONS_PATH=" + t.TempDir()}
		done := make(chan error, 1)
		go func() { done <- cmd.Run() }()
		select {
		case err := <-done:
			if err == nil {
				t.Errorf("%s: serves", env)
			}
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			t.Errorf("%s: serves", env)
		}
	}
	// Without a key the program is not reachable from other machines.
	p := runProgram(t, bin, t.TempDir())
	if !strings.Contains(p.url, "127.0.0.1") {
		t.Errorf("an open server at %s", p.url)
	}
}

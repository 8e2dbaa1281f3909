package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
)

// program is the configuration of the test program as a server.
func program(t *testing.T, mode string, more map[string]string) map[string]any {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{modeVariable: mode}
	for k, v := range more {
		env[k] = v
	}
	return map[string]any{"command": self, "args": []string{}, "env": env}
}

// connect connects servers and closes them at the end of the test.
func connect(t *testing.T, o Options, servers map[string]any) *Servers {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"mcpServers": servers})
	if err != nil {
		t.Fatal(err)
	}
	o.WorkingDir = t.TempDir()
	if o.Environ == nil {
		o.Environ = os.Environ()
	}
	s := Connect(t.Context(), raw, o)
	t.Cleanup(s.Close)
	return s
}

func find(t *testing.T, s *Servers, name string) tools.Tool {
	t.Helper()
	var names []string
	for _, one := range s.Tools() {
		if one.Definition().Name == name {
			return one
		}
		names = append(names, one.Definition().Name)
	}
	t.Fatalf("there is no tool %s among %q; failures: %v", name, names, s.Failures())
	return nil
}

// run calls a tool as the engine does.
func run(ctx context.Context, t *testing.T, tool tools.Tool, arguments string) (text string, failed bool) {
	t.Helper()
	c, err := tool.Parse(arguments)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(tool.Run(ctx, c.Action))
	if err != nil {
		t.Fatal(err)
	}
	var o struct {
		Kind     string `json:"kind"`
		ToolName string `json:"tool_name"`
		IsError  bool   `json:"is_error"`
	}
	if err := json.Unmarshal(raw, &o); err != nil || o.Kind != "MCPToolObservation" ||
		o.ToolName != tool.Definition().Name {
		t.Fatalf("the observation is %.300s (%v)", raw, err)
	}
	for _, c := range tools.ForModel(raw) {
		text += c.Text
		for _, u := range c.ImageURLs {
			text += "image " + u
		}
	}
	return text, o.IsError
}

func TestProgram_OffersItsTools(t *testing.T) {
	s := connect(t, Options{}, map[string]any{"one": program(t, "server", nil)})
	echo := find(t, s, "echo")
	d := echo.Definition()
	if d.Kind != "MCPToolDefinition" || d.ActionType != "MCPToolAction" || d.ObservationType != "MCPToolObservation" ||
		!d.Annotations.ReadOnlyHint {
		t.Errorf("the definition is %+v", d)
	}
	if schema := string(d.Parameters); !strings.Contains(schema, `"required":["text"]`) ||
		!strings.Contains(schema, `"security_risk"`) {
		t.Errorf("the schema is %s", schema)
	}
	c, err := echo.Parse(`{"text":"a","security_risk":"LOW"}`)
	if err != nil || string(c.Action) != `{"kind":"MCPToolAction","data":{"text":"a"}}` || c.SecurityRisk != "LOW" {
		t.Errorf("the call is %s %+v, %v", c.Action, c, err)
	}
	// The tool has an argument summary of its own, which stays.
	if text, failed := run(t.Context(), t, echo, `{"text":"a","summary":"b"}`); failed ||
		text != "[Tool 'echo' executed.]\necho ab" {
		t.Errorf("echo gives %q, %v", text, failed)
	}
	if text, failed := run(t.Context(), t, find(t, s, "fail"), `{"text":""}`); !failed ||
		!strings.Contains(text, "no such record") {
		t.Errorf("fail gives %q, %v", text, failed)
	}
	if text, failed := run(t.Context(), t, find(t, s, "file_search_all"), `{"text":""}`); failed ||
		!strings.Contains(text, "odd name") {
		t.Errorf("the tool with the odd name gives %q", text)
	}
	if text, _ := run(t.Context(), t, find(t, s, "image"),
		`{"text":""}`); !strings.Contains(text, "image data:image/png;base64,cG5n") {
		t.Errorf("image gives %q", text)
	}
	if text, failed := run(t.Context(), t, echo, `{}`); !failed || !strings.Contains(text, "text") {
		t.Errorf("a call without its argument gives %q, %v", text, failed)
	}
}

func TestProgram_HasNeitherKeysNorShowsSecrets(t *testing.T) {
	s := connect(t, Options{
		Environ: append(os.Environ(), "OH_SECRET_KEY=key-of-server", "SESSION_API_KEY=key-of-session", "PLAIN=seen"),
		Secrets: func() map[string]string { return map[string]string{"TOKEN": "conversation-secret"} },
	}, map[string]any{"one": program(t, "server", map[string]string{"SERVICE_API_KEY": "key-of-service"})})
	text, _ := run(t.Context(), t, find(t, s, "environ"), `{"text":""}`)
	if !strings.Contains(text, "PLAIN=seen") || !strings.Contains(text, "SERVICE_API_KEY=<secret-hidden>") {
		t.Errorf("the environment is %q", text)
	}
	for _, secret := range []string{"key-of-server", "key-of-session", "key-of-service"} {
		if strings.Contains(text, secret) {
			t.Errorf("the environment shows %s", secret)
		}
	}
	if text, _ := run(t.Context(), t, find(t, s, "echo"),
		`{"text":"conversation-secret"}`); strings.Contains(text, "conversation-secret") {
		t.Errorf("echo shows the conversation's secret: %q", text)
	}
}

func TestProgram_Faults(t *testing.T) {
	s := connect(t, Options{CallTime: time.Minute}, map[string]any{"one": program(t, "server", nil)})
	echo := find(t, s, "echo")
	for _, one := range []struct{ tool, want string }{
		{"die", "ended the connection during the call"},
		{"huge", "ended the connection during the call"},
	} {
		if text, failed := run(t.Context(), t, find(t, s, one.tool), `{"text":""}`); !failed ||
			!strings.Contains(text, one.want) || len(text) > 2000 {
			t.Errorf("%s gives %.500q, %v", one.tool, text, failed)
		}
		if text, failed := run(t.Context(), t, echo, `{"text":"again"}`); failed || !strings.Contains(text, "echo again") {
			t.Errorf("after %s the server is not started again: %q", one.tool, text)
		}
	}
	text, failed := run(t.Context(), t, find(t, s, "long"), `{"text":""}`)
	if failed || len(text) > maxText+200 || !strings.Contains(text, "begin") || !strings.HasSuffix(text, "end") ||
		!strings.Contains(text, "bytes were left out") {
		t.Errorf("a long result has %d bytes: %.80q", len(text), text)
	}
}

func TestProgram_HangsInACall(t *testing.T) {
	config := program(t, "server", nil)
	config["timeout"] = 0.3
	s := connect(t, Options{}, map[string]any{"one": config})
	if text, failed := run(t.Context(), t, find(t, s, "hang"), `{"text":""}`); !failed ||
		!strings.Contains(text, "did not answer within 300ms") {
		t.Errorf("hang gives %q, %v", text, failed)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, failed := run(ctx, t, find(t, s, "hang"), `{"text":""}`); !failed {
		t.Error("an interrupted call did not fail")
	}
	// Arguments that fill the pipe of a program that reads nothing any more.
	hang := find(t, s, "hang")
	if err := syscall.Kill(pidOf(t), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	big := `{"text":"` + strings.Repeat("x", 1<<20) + `"}`
	if text, failed := run(t.Context(), t, hang, big); !failed || !strings.Contains(text, "did not answer within 300ms") {
		t.Errorf("a program that does not read gives %.200q, %v", text, failed)
	}
}

// pidOf is the process of the only server.
func pidOf(t *testing.T) int {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		b, _ := os.ReadFile(p)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(p)))
		stat, _ := os.ReadFile(filepath.Join(filepath.Dir(p), "status"))
		if strings.HasPrefix(string(b), self) && strings.Contains(string(stat), fmt.Sprintf("PPid:\t%d\n", os.Getpid())) {
			return pid
		}
	}
	t.Fatal("the server's process is not there")
	return 0
}

func TestConnect_SomeServersFail(t *testing.T) {
	s := connect(t, Options{StartTime: 3 * time.Second}, map[string]any{
		"broken":  program(t, "broken", map[string]string{"SERVICE_API_KEY": "key-of-service"}),
		"garbage": program(t, "garbage", nil),
		"good":    program(t, "server", nil),
		"missing": map[string]any{"command": "no-such-program"},
		"mute":    program(t, "mute", nil),
		"neither": map[string]any{},
		"off":     map[string]any{"command": "no-such-program", "disabled": true},
		"odd":     map[string]any{"url": "http://127.0.0.1:1", "transport": "carrier-pigeon"},
		"refused": map[string]any{"url": "http://user:password@127.0.0.1:1/mcp"},
	})
	find(t, s, "echo")
	var names []string
	for _, f := range s.Failures() {
		names = append(names, f.Server)
		if text := f.Err.Error(); strings.Contains(text, "key-of-service") || strings.Contains(text, "password") {
			t.Errorf("the failure of %s shows a secret: %s", f.Server, text)
		}
		if f.Server == "broken" && !strings.Contains(f.Err.Error(), "no configuration") {
			t.Errorf("the failure does not say what the program wrote: %v", f.Err)
		}
		if f.Server == "mute" && !strings.Contains(f.Err.Error(), "in time") {
			t.Errorf("the failure of a mute server is %v", f.Err)
		}
	}
	slices.Sort(names)
	if want := []string{"broken", "garbage", "missing", "mute", "neither", "odd", "refused"}; !slices.Equal(names, want) {
		t.Errorf("the failures are of %q, want %q", names, want)
	}
	for _, raw := range []string{"", "null", "{}", `{"mcpServers":{}}`} {
		if s := Connect(t.Context(), json.RawMessage(raw), Options{}); len(s.Tools())+len(s.Failures()) > 0 {
			t.Errorf("%s gives %v", raw, s.Failures())
		}
	}
	for _, raw := range []string{"[]", "7", `{"mcpServers":[]}`} {
		if s := Connect(t.Context(), json.RawMessage(raw), Options{}); len(s.Failures()) != 1 {
			t.Errorf("%s gives the failures %v", raw, s.Failures())
		}
	}
}

func TestConnect_NamesThatClash(t *testing.T) {
	s := connect(t, Options{Reserved: []string{"environ"}},
		map[string]any{"a b": program(t, "server", nil), "c": program(t, "server", nil)})
	find(t, s, "a_b_echo")
	find(t, s, "c_echo")
	one := connect(t, Options{Reserved: []string{"environ"}}, map[string]any{"c": program(t, "server", nil)})
	find(t, one, "echo")
	find(t, one, "c_environ")
	seen := map[string]bool{}
	for _, tool := range s.Tools() {
		if name := tool.Definition().Name; seen[name] || name == "environ" {
			t.Errorf("the name %s is not one tool's own", name)
		} else {
			seen[name] = true
		}
	}
}

func TestClose_KillsWhatAServerStarted(t *testing.T) {
	s := connect(t, Options{}, map[string]any{"one": program(t, "server", nil)})
	text, _ := run(t.Context(), t, find(t, s, "daemon"), `{"text":""}`)
	pid, err := strconv.Atoi(text[strings.LastIndex(text, "\n")+1:])
	if err != nil || syscall.Kill(pid, 0) != nil {
		t.Fatalf("there is no daemon: %q", text)
	}
	echo := find(t, s, "echo")
	s.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range 500 {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || strings.Contains(string(b), ") Z ") {
			if text, failed := run(t.Context(), t, echo, `{"text":"x"}`); !failed || !strings.Contains(text, "closed") {
				t.Errorf("a call after Close gives %q", text)
			}
			return
		}
		<-tick.C
	}
	t.Error("the daemon outlives its server")
}

// serve serves handler and counts the requests without the key.
func serve(t *testing.T, handler http.Handler) (url string, bare *atomic.Int64) {
	t.Helper()
	bare = &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer key-of-http" {
			bare.Add(1)
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s.URL, bare
}

func withKey(url, transport string) map[string]any {
	return map[string]any{
		"url":       url,
		"transport": transport,
		"headers":   map[string]string{"Authorization": "Bearer key-of-http"},
	}
}

func TestHTTP_BothTransports(t *testing.T) {
	server := func(*http.Request) *sdk.Server { return newTestServer() }
	for transport, handler := range map[string]http.Handler{
		"sse":             sdk.NewSSEHandler(server, nil),
		"streamable-http": sdk.NewStreamableHTTPHandler(server, nil),
	} {
		t.Run(transport, func(t *testing.T) {
			url, bare := serve(t, handler)
			s := connect(t, Options{CallTime: time.Minute}, map[string]any{"one": withKey(url, transport)})
			echo := find(t, s, "echo")
			if text, failed := run(t.Context(), t, echo, `{"text":"key-of-http"}`); failed ||
				!strings.Contains(text, "echo <secret-hidden>") {
				t.Errorf("echo gives %q, %v", text, failed)
			}
			if text, failed := run(t.Context(), t, find(t, s, "big"), `{"text":""}`); !failed || len(text) > 2000 {
				t.Errorf("big gives %.300q, %v", text, failed)
			}
			if text, failed := run(t.Context(), t, echo, `{"text":"again"}`); failed {
				t.Errorf("after a big result echo gives %q", text)
			}
			if n := bare.Load(); n > 0 {
				t.Errorf("%d requests had no key", n)
			}
		})
	}
}

func TestHTTP_Faults(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"garbage": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>It works!</html>") },
		"mute": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // only then the server sees that the client leaves
			<-r.Context().Done()
		},
		"refuses": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) },
		"flood": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			for range 100 {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		},
	} {
		for _, transport := range []string{"sse", "streamable-http"} {
			t.Run(name+" "+transport, func(t *testing.T) {
				url, _ := serve(t, handler)
				s := connect(t, Options{StartTime: time.Second}, map[string]any{"one": withKey(url, transport)})
				if len(s.Tools()) > 0 || len(s.Failures()) != 1 {
					t.Errorf("the failures are %v", s.Failures())
				}
			})
		}
	}
}

func TestHTTP_ARedirectTakesNoKeyAway(t *testing.T) {
	var seen atomic.Value
	other, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Header.Get("Authorization") + r.Header.Get("X-Key"))
		http.Error(w, "no", http.StatusForbidden)
	}))
	url, _ := serve(t,
		http.RedirectHandler(strings.Replace(other, "127.0.0.1", "localhost", 1), http.StatusTemporaryRedirect))
	config := withKey(url, "streamable-http")
	config["headers"] = map[string]string{"Authorization": "Bearer key-of-http", "X-Key": "key-of-http"}
	connect(t, Options{StartTime: 5 * time.Second}, map[string]any{"one": config})
	if got, _ := seen.Load().(string); got != "" {
		t.Errorf("another server was shown %q", got)
	}
}

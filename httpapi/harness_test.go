package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/proxy"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// syncBuffer is a log that is safe for concurrent use.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// harness is a Server with fakes around it.
type harness struct {
	t       *testing.T
	cluster *fakeCluster
	secrets *fakeSecrets
	agents  *fakeAgents
	logs    *syncBuffer
	server  *Server
	handler http.Handler
	// root is an operator's key; alice and bob are users' keys.
	root, alice, bob string
}

func newHarness(t *testing.T, change ...func(*Config)) *harness {
	t.Helper()
	h := &harness{
		t: t, cluster: &fakeCluster{
			store:   fsm.NewStore(),
			contact: time.Now().Add(-time.Minute),
		}, logs: &syncBuffer{}, agents: &fakeAgents{},
		secrets: &fakeSecrets{entries: map[string][]map[string]string{}},
	}
	registry := prometheus.NewRegistry()
	cfg := DefaultConfig()
	cfg.Git.VerifyTokens = false
	cfg.Operator.Backups = fakeBackups{}
	snapshots := &cfg.Operator.Snapshots
	snapshots.States, snapshots.Dir, snapshots.Version = h.cluster, t.TempDir(), "v1"
	snapshots.Restorer = fakeRestorer{}
	cfg.Events = h.cluster
	cfg.Operator.Observer = h.cluster
	cfg.Operator.Membership, cfg.Operator.Report = h.cluster, h.cluster.Report
	cfg.Registerer, cfg.Gatherer = registry, registry
	cfg.Logger = slog.New(slog.NewJSONHandler(h.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	for _, f := range change {
		f(&cfg)
	}
	server, err := New(cfg, h.cluster, h.secrets, h.agents)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	h.server, h.handler = server, server.Handler()
	h.apply("", &fsm.TermOpenBody{Term: 1, Node: "n1", ClusterID: "c1"})
	h.root = h.issue("root", true)
	h.alice = h.issue("alice", false)
	h.bob = h.issue("bob", false)
	return h
}

// apply applies a command of another client.
func (h *harness) apply(user string, body fsm.Body) fsm.Result {
	h.t.Helper()
	res, err := h.cluster.Propose(context.Background(), fsm.NewCommand(uuid.NewString(), time.Now(), user, body))
	if err != nil {
		h.t.Fatalf("%s: %v", body.CommandType(), err)
	}
	return res
}

func (h *harness) issue(user string, operator bool) string {
	h.t.Helper()
	value := "bvk_" + apikey.Random(apikey.LookupLen) + "_" + apikey.Random(apikey.SecretLen)
	h.apply("",
		&fsm.APIKeyCreateBody{
			Lookup:   apikey.LookupOf(value),
			Hash:     apikey.Hash(value),
			Name:     "k",
			UserID:   user,
			Operator: operator,
		})
	return value
}

// withSpec stores the spec that most tests use.
func (h *harness) withSpec() *harness {
	h.t.Helper()
	h.apply("", &fsm.SpecApplyBody{Replace: true, Specs: []fsm.Spec{
		{ID: "ghcr.io/openhands/agent-server:1.44.0-python", Template: fsm.Template{
			Driver: fsm.DriverDocker, Image: "ghcr.io/openhands/agent-server:1.44.0-python", Args: []string{"--port", "8000"},
			WorkingDir: "/workspace/project", Env: map[string]string{"LOG_JSON": "true", "OH_ENABLE_VNC": "0"},
			CPU: 500, Memory: 512, Ports: map[string]int{
				fsm.PortAgentServer: 8000,
				proxy.PortVSCode:    8001,
			}, NetworkMode: "bridge",
			VolumePath: "/workspace",
		}},
		{ID: "small", Template: fsm.Template{
			Driver: fsm.DriverRawExec, Isolation: fsm.IsolationNone, Command: "/usr/bin/sandbox-agent", Args: []string{
				"--port",
				"${port.agent_server}",
			},
			WorkingDir: "project", CPU: 100, Memory: 64, Ports: map[string]int{fsm.PortAgentServer: 0},
		}},
	}})
	return h
}

// response is a response with its whole body.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (h *harness) do(key, method, path, body string, headers ...string) reply {
	h.t.Helper()
	r := httptest.NewRequest(method, "http://example.org"+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("X-Session-API-Key", key)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.handler.ServeHTTP(w, r)
	res := w.Result()
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return reply{status: res.StatusCode, header: res.Header, body: b}
}

// want fails unless the status matches, and returns the response.
func (r reply) want(t *testing.T, status int) reply {
	t.Helper()
	if r.status != status {
		t.Fatalf("status %d, want %d; body %s", r.status, status, r.body)
	}
	return r
}

// json decodes the body into v.
func (r reply) json(t *testing.T, v any) {
	t.Helper()
	if ct := r.header.Get("Content-Type"); ct != "application/json" {
		t.Fatalf("Content-Type %q", ct)
	}
	if err := json.Unmarshal(r.body, v); err != nil {
		t.Fatalf("%v in %s", err, r.body)
	}
}

// is compares the whole body as JSON.
func (r reply) is(t *testing.T, want string) reply {
	t.Helper()
	var a, b any
	if err := json.Unmarshal([]byte(want), &b); err != nil {
		t.Fatalf("the test's JSON: %v", err)
	}
	r.json(t, &a)
	if diff := cmp.Diff(b, a); diff != "" {
		t.Fatalf("body differs (-want +got):\n%s", diff)
	}
	return r
}

var (
	hexID     = regexp.MustCompile(`"[0-9a-f]{32}"`)
	sandboxID = regexp.MustCompile(`"[0-9A-Za-z]{22}"`)
	wireTm    = regexp.MustCompile(`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z"`)
	keyValue  = regexp.MustCompile(`bvk_[0-9A-Za-z]{12}_[0-9A-Za-z]{43}`)
	proxiedID = regexp.MustCompile(`/sandboxes/[0-9A-Za-z]{22}/`)
	lookup12  = regexp.MustCompile(`"[0-9A-Za-z]{12}"`)
)

// golden compares the body, indented and with random values replaced, with
// testdata/golden/<name>.json.
func (r reply) golden(t *testing.T, name string) reply {
	t.Helper()
	var b bytes.Buffer
	if err := json.Indent(&b, r.body, "", "  "); err != nil {
		t.Fatalf("%v in %s", err, r.body)
	}
	got := b.String()
	for _, s := range []struct {
		re   *regexp.Regexp
		with string
	}{{hexID, `"<hex>"`}, {sandboxID, `"<sandbox>"`}, {wireTm, `"<time>"`}, {keyValue, "<key>"}, {
		proxiedID,
		"/sandboxes/<sandbox>/",
	}, {lookup12, `"<lookup>"`}} {
		got = s.re.ReplaceAllString(got, s.with)
	}
	file := filepath.Join("testdata", "golden", name+".json")
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got+"\n"); diff != "" {
		t.Fatalf("%s differs (-want +got):\n%s", file, diff)
	}
	return r
}

// problems decodes a 422.
func (r reply) problems(t *testing.T) []decode.Problem {
	t.Helper()
	var body struct{ Detail []decode.Problem }
	r.want(t, http.StatusUnprocessableEntity).json(t, &body)
	return body.Detail
}

// summary formats problems as "loc type" lines.
func summary(list []decode.Problem) []string {
	out := make([]string, len(list))
	for i, p := range list {
		out[i] = strings.Join(p.Loc, ".") + " " + p.Type
	}
	return out
}

// createSandbox creates a sandbox through the API.
func (h *harness) createSandbox(key string) string {
	h.t.Helper()
	var sb struct{ ID string }
	h.do(key, "POST", "/api/v1/sandboxes", "").want(h.t, 200).json(h.t, &sb)
	return sb.ID
}

// observe makes a sandbox RUNNING, as the leader does.
func (h *harness) observe(id string, status fsm.SandboxStatus) {
	h.t.Helper()
	v, _ := h.cluster.View(context.Background(), cluster.Stale)
	sb := v.SandboxAny(id)
	if sb == nil {
		h.t.Fatalf("no sandbox %s", id)
	}
	status.Generation = sb.Generation
	status.Since = time.Now()
	h.apply("", &fsm.SandboxObserveBody{Observations: []fsm.Observation{{ID: id, Status: status}}})
}

// running is the status of a running sandbox.
func running() fsm.SandboxStatus {
	return fsm.SandboxStatus{State: fsm.SandboxRunning, Placement: &fsm.Placement{
		AllocID: "a1", NodeID: "m1", Address: "10.1.2.3", Workspace: "/workspace",
		Ports: map[string]int{fsm.PortAgentServer: 21000, proxy.PortVSCode: 21001},
	}}
}

// questioned brings the sandbox and the cluster into the state that the route requires.
func (h *harness) questioned(r route, sb string) {
	h.t.Helper()
	if strings.HasSuffix(r.name, "share") || strings.HasSuffix(r.name, "rotate_key") || r.name == "session.offer" {
		h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	}
	switch noun, _, _ := strings.Cut(r.name, "."); {
	case strings.HasSuffix(noun, "_profile") || noun == "secret" || r.name == "conversation.switch_profile":
		h.raised().withProfiles("alice")
	case noun == "settings_v1":
		h.raised()
	}
	if r.name == "conversation.switch_llm" || r.name == "conversation.switch_profile" {
		h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
		h.server.cfg.APIURLs = []string{"http://10.1.2.3:8440"}
	}
	if r.name == "member.allow" {
		h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
		h.apply("", &fsm.CertificateRevokeBody{Node: "n2"})
	}
	if r.name == "start_task.setup" {
		h.asking(sb)
	}
	if strings.HasSuffix(r.name, "accept_workspace") {
		h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
		h.observe(sb, fsm.SandboxStatus{State: fsm.SandboxError, Reason: fsm.ReasonWorkspace})
	}
}

// withProfiles gives a user an LLM profile, an agent profile and a custom secret.
func (h *harness) withProfiles(user string) *harness {
	h.t.Helper()
	h.apply(user, &fsm.ProfilePutBody{Profile: fsm.Profile{
		Kind: fsm.ProfileLLM, Name: "fast", ID: "p1", Model: "openai/gpt-5", BaseURL: "https://models.example.org/v1",
	}})
	h.apply(user, &fsm.ProfilePutBody{Profile: fsm.Profile{
		Kind: fsm.ProfileAgent, Name: "mine", ID: "p2",
		Document: []byte(`{"agent_kind":"openhands","llm_profile_ref":"fast","system_message_suffix":"Be short."}`),
	}})
	h.apply(user, &fsm.CustomSecretPutBody{Secret: fsm.CustomSecret{
		Name: "NPM", Ref: fsm.SecretRef{Path: fsm.CustomSecretPath(user, "NPM"), Version: 1},
	}})
	return h
}

// conversation creates a conversation in a sandbox, as a finished start task does.
func (h *harness) conversation(user, sandbox string, change ...func(*fsm.Conversation)) string {
	h.t.Helper()
	id, task := newHexID(), newHexID()
	h.apply(user,
		&fsm.StartTaskCreateBody{
			ID:             task,
			ConversationID: id,
			Request:        fsm.StartRequest{AgentType: "default", PRNumber: []int64{}},
		})
	h.apply("", &fsm.StartTaskBindBody{ID: task, SandboxID: sandbox})
	h.apply("",
		&fsm.StartTaskAdvanceBody{
			ID:             task,
			Status:         fsm.StartTaskStartingConversation,
			AgentServerURL: "http://10.1.2.3:21000",
		})
	title := "Conversation " + id[:5]
	conv := fsm.Conversation{
		ID:        id,
		UserID:    user,
		SandboxID: sandbox,
		Title:     &title,
		AutoTitle: true,
		AgentKind: "openhands",
	}
	for _, f := range change {
		f(&conv)
	}
	h.apply("", &fsm.StartTaskFinishBody{ID: task, Conversation: conv})
	return id
}

// startingTask is the task of starting, and startingConversation its conversation.
var (
	startingTask         = strings.Repeat("d", 32)
	startingConversation = strings.Repeat("e", 32)
)

// starting accepts a start of alice's that nobody carries out.
func (h *harness) starting() {
	h.t.Helper()
	h.raised().apply("alice",
		&fsm.StartTaskCreateBody{
			ID:             startingTask,
			ConversationID: startingConversation,
			Request:        fsm.StartRequest{AgentType: "default", PRNumber: []int64{}},
		})
}

// askingTask is the task of asking, and askingHash the hash of its files.
var (
	askingTask  = strings.Repeat("b", 32)
	askingFiles = []fsm.SetupFile{{Path: ".openhands/setup.sh", SHA256: strings.Repeat("5", 64)}}
	askingHash  = fsm.SetupHash(askingFiles)
)

// asking accepts a start of alice's in a sandbox, which asks about a repository's setup script.
func (h *harness) asking(sandbox string) {
	h.t.Helper()
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	h.apply("alice", &fsm.StartTaskCreateBody{
		ID: askingTask, ConversationID: newHexID(), Request: fsm.StartRequest{AgentType: "default", PRNumber: []int64{}},
	})
	h.apply("", &fsm.StartTaskBindBody{ID: askingTask, SandboxID: sandbox})
	h.apply("", &fsm.StartTaskAskBody{ID: askingTask, Setup: fsm.TaskSetup{
		Repository: "https://github.com/octo/app.git", Hash: askingHash, Directory: "/workspace/project/app",
		Files: askingFiles,
	}})
}

func speaksACP(c *fsm.Conversation) { c.AgentKind = "acp" }

func ptr[T any](v T) *T { return &v }

func sprint(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// firstErr returns the first error that is not nil.
func firstErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func itoa(n int) string { return strconv.Itoa(n) }

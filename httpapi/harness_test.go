package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/backup"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/fsm/snapshotfile"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// fakeCluster is a cluster of one, with the real store and faults.
type fakeCluster struct {
	mu    sync.Mutex
	store *fsm.Store
	index uint64
	// proposed counts commands that reached the log.
	proposed int
	// proposeErr and viewErr fail every Propose and every linearizable View;
	// lostErr is returned after the command was applied.
	proposeErr, viewErr, lostErr, readyErr error
	// viewErrLater becomes viewErr with the next write.
	viewErrLater error
	// members are the membership changes that were asked for, unless memberErr
	// fails them.
	members   []string
	memberErr error
	// behind, when set, is what stale views show; with catchUp until a linearizable
	// one was asked for or a command applied, as on a real node.
	behind  *fsm.View
	catchUp bool
	// contact is when the leader was last heard.
	contact time.Time
	// log holds every encoded command, outcomes what those came to that were
	// proposed while behind was set.
	log      [][]byte
	outcomes []error
}

func (c *fakeCluster) Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(c.proposeErr, ctx.Err()); err != nil {
		return fsm.Result{}, err
	}
	if err := cmd.Body.Validate(); err != nil {
		return fsm.Result{}, err
	}
	// Through the log's encoding, as on a real node.
	b, err := cmd.Encode()
	if err != nil {
		return fsm.Result{}, err
	}
	decoded, err := fsm.DecodeCommand(b)
	if err != nil {
		return fsm.Result{}, err
	}
	c.log = append(c.log, b)
	c.index++
	c.proposed++
	c.viewErr = firstErr(c.viewErrLater, c.viewErr)
	res, err := c.store.Apply(c.index, decoded)
	if c.behind != nil {
		c.outcomes = append(c.outcomes, err)
	}
	c.heard()
	if c.lostErr != nil {
		return fsm.Result{}, c.lostErr
	}
	if err != nil {
		return fsm.Result{}, err
	}
	// And through the answer's, as on a follower.
	b, err = json.Marshal(res)
	if err != nil {
		return fsm.Result{}, err
	}
	var out fsm.Result
	return out, json.Unmarshal(b, &out)
}

func (c *fakeCluster) View(_ context.Context, consistency cluster.Consistency) (*fsm.View, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if consistency == cluster.Stale {
		if c.behind != nil {
			return c.behind, nil
		}
		return c.store.View(), nil
	}
	if c.viewErr != nil {
		return nil, c.viewErr
	}
	c.heard()
	return c.store.View(), nil
}

// heard brings this node's own store up to date.
func (c *fakeCluster) heard() {
	if c.catchUp {
		c.behind = nil
	}
}

func (c *fakeCluster) StateSnapshot(ctx context.Context, consistency cluster.Consistency) (*fsm.Snapshot, error) {
	if _, err := c.View(ctx, consistency); err != nil {
		return nil, err
	}
	return c.store.Snapshot(), nil
}

// fakeBackups are two backups, of which one is no good.
type fakeBackups struct{ err error }

func (b fakeBackups) Backups(context.Context) (backup.Report, error) {
	at := time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC)
	return backup.Report{
		Node: "n1", Directory: "/backups", Interval: 3600, Retain: 24,
		Newest: fsm.Backup{File: "b.snap", Node: "n2", Index: 7, Time: at, Size: 100, Failure: "no room", FailedNode: "n1", FailedTime: at},
		Files: []backup.File{
			{File: "b.snap", Size: 100, Verified: true, Manifest: snapshotfile.Manifest{Kind: "bivouac-snapshot", Format: 1, Created: at, Index: 7}},
			{File: "a.snap", Size: 9, Problem: "the file is truncated"},
		},
	}, b.err
}

// fakeRestorer takes no file for a snapshot.
type fakeRestorer struct{}

func (fakeRestorer) Restore(context.Context, io.ReadSeeker, cluster.RestoreOptions) (cluster.Restored, error) {
	return cluster.Restored{}, fsm.Errorf(fsm.CodeInvalid, "the file is no snapshot")
}

func (c *fakeCluster) Status() cluster.Status {
	return cluster.Status{Node: "n1", ID: "1", State: "leader", Term: 3, Leader: "n1", LeaderID: "1",
		LeaderAddress: "127.0.0.1:7001", ProtocolVersion: 1, KnownVersion: 1, LastContact: c.contact,
		Servers: []cluster.Server{{Name: "n1", ID: "1", Address: "127.0.0.1:7001", Voter: true}}}
}

func (c *fakeCluster) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readyErr
}

func (c *fakeCluster) Members(context.Context) []cluster.Member {
	return []cluster.Member{
		{Server: c.Status().Servers[0], Role: cluster.RoleLeader, State: "leader", KnownVersion: 1, AppliedIndex: 7, Lag: new(uint64(0)), LastContact: new(int64(0))},
		{Server: cluster.Server{Name: "n2", ID: "2", Address: "127.0.0.1:7002"}, Role: cluster.RoleNonvoter, Error: "connection refused"},
	}
}

func (c *fakeCluster) TransferLeadership(_ context.Context, to string) error {
	return c.changeMembers("transfer " + to)
}

func (c *fakeCluster) RemoveServer(_ context.Context, name string, o cluster.RemoveOptions) error {
	return c.changeMembers(fmt.Sprintf("remove %s %+v", name, o))
}

func (c *fakeCluster) ReplaceServer(_ context.Context, oldName, newName string, o cluster.RemoveOptions) error {
	return c.changeMembers(fmt.Sprintf("replace %s %s %+v", oldName, newName, o))
}

func (c *fakeCluster) changeMembers(what string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.memberErr != nil {
		return c.memberErr
	}
	c.members = append(c.members, what)
	c.viewErr = firstErr(c.viewErrLater, c.viewErr)
	return nil
}

func (c *fakeCluster) set(f func(c *fakeCluster)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c)
}

func (c *fakeCluster) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proposed
}

// fakeSecrets is a secret store in memory, with faults.
type fakeSecrets struct {
	mu      sync.Mutex
	entries map[string][]map[string]string
	writes  int
	reads   int
	err     error
	// failPath fails the writes of one path.
	failPath string
}

var errStoreAway = fsm.Errorf(fsm.CodeSecretStore, "vault is sealed")

func (s *fakeSecrets) Write(_ context.Context, path string, data map[string]string) (fsm.SecretRef, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return fsm.SecretRef{}, s.err
	}
	if s.failPath != "" && strings.Contains(path, s.failPath) {
		return fsm.SecretRef{}, errStoreAway
	}
	s.writes++
	s.entries[path] = append(s.entries[path], maps.Clone(data))
	return fsm.SecretRef{Path: path, Version: len(s.entries[path])}, nil
}

func (s *fakeSecrets) Read(_ context.Context, ref fsm.SecretRef) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	s.reads++
	path, version := ref.Path, ref.Version
	if version < 1 || version > len(s.entries[path]) {
		return nil, fsm.Errorf(fsm.CodeNotFound, "no such secret")
	}
	return maps.Clone(s.entries[path][version-1]), nil
}

func (s *fakeSecrets) Delete(_ context.Context, path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.entries, path)
	return s.err
}

// paths gives where there is something.
func (s *fakeSecrets) paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.entries))
}

func (s *fakeSecrets) set(f func(s *fakeSecrets)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *fakeSecrets) written() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

// last gives the newest version of an entry.
func (s *fakeSecrets) last(path string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.entries[path]); n > 0 {
		return s.entries[path][n-1]
	}
	return nil
}

// fakeAgents answers for the agent servers.
type fakeAgents struct {
	mu sync.Mutex
	fn func(ctx context.Context, baseURL, key string, ids []string) (map[string]string, error)
	// messages are what was sent, as "url key conversation text run"; sendErr
	// fails it.
	messages []string
	sendErr  error
}

func (a *fakeAgents) SendMessage(_ context.Context, baseURL, key, id string, m fsm.Message) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sendErr != nil {
		return a.sendErr
	}
	a.messages = append(a.messages, sprint("%s %s %s %s %v", baseURL, key, id, m.Content[0].Text, m.Run))
	return nil
}

func (a *fakeAgents) sent() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.messages)
}

func (a *fakeAgents) ExecutionStatuses(ctx context.Context, baseURL, key string, ids []string) (map[string]string, error) {
	a.mu.Lock()
	fn := a.fn
	a.mu.Unlock()
	if fn == nil {
		return nil, errors.New("no agent server")
	}
	return fn(ctx, baseURL, key, ids)
}

// syncBuffer is a log that may be read while it is written.
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

// harness is one Server with its neighbours faked.
type harness struct {
	t       *testing.T
	cluster *fakeCluster
	secrets *fakeSecrets
	agents  *fakeAgents
	logs    *syncBuffer
	server  *Server
	handler http.Handler
	// root is an operator's key, alice and bob are users'.
	root, alice, bob string
}

func newHarness(t *testing.T, change ...func(*Config)) *harness {
	t.Helper()
	h := &harness{
		t: t, cluster: &fakeCluster{store: fsm.NewStore()}, logs: &syncBuffer{}, agents: &fakeAgents{},
		secrets: &fakeSecrets{entries: map[string][]map[string]string{}},
	}
	registry := prometheus.NewRegistry()
	cfg := DefaultConfig()
	cfg.VerifyGitTokens = false
	cfg.Backups = fakeBackups{}
	cfg.Snapshots.States, cfg.Snapshots.Dir, cfg.Snapshots.Version = h.cluster, t.TempDir(), "v1"
	cfg.Snapshots.Restorer = fakeRestorer{}
	cfg.Membership = h.cluster
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

// apply runs a command as somebody else would.
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
	value := "bvk_" + randomBase62(lookupLen) + "_" + randomBase62(secretLen)
	h.apply("", &fsm.APIKeyCreateBody{Lookup: lookupOf(value), Hash: hashKey(value), Name: "k", UserID: user, Operator: operator})
	return value
}

// withSpec stores the spec most tests start sandboxes from.
func (h *harness) withSpec() *harness {
	h.t.Helper()
	h.apply("", &fsm.SpecApplyBody{Replace: true, Specs: []fsm.Spec{
		{ID: "ghcr.io/openhands/agent-server:1.44.0-python", Template: fsm.Template{
			Driver: fsm.DriverDocker, Image: "ghcr.io/openhands/agent-server:1.44.0-python", Args: []string{"--port", "8000"},
			WorkingDir: "/workspace/project", Env: map[string]string{"LOG_JSON": "true", "OH_ENABLE_VNC": "0"},
			CPU: 500, Memory: 512, Ports: map[string]int{fsm.PortAgentServer: 8000, portVSCode: 8001}, NetworkMode: "bridge",
			VolumePath: "/workspace",
		}},
		{ID: "small", Template: fsm.Template{
			Driver: fsm.DriverRawExec, Command: "/usr/bin/sandbox-agent", Args: []string{"--port", "${port.agent_server}"},
			WorkingDir: "project", CPU: 100, Memory: 64, Ports: map[string]int{fsm.PortAgentServer: 0},
		}},
	}})
	return h
}

// response is an answer, read whole.
type response struct {
	status int
	header http.Header
	body   []byte
}

func (h *harness) do(key, method, path, body string, headers ...string) response {
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
	return response{status: res.StatusCode, header: res.Header, body: b}
}

// want fails unless the status is as expected, and gives the answer.
func (r response) want(t *testing.T, status int) response {
	t.Helper()
	if r.status != status {
		t.Fatalf("status %d, want %d; body %s", r.status, status, r.body)
	}
	return r
}

// json reads the answer into v.
func (r response) json(t *testing.T, v any) {
	t.Helper()
	if ct := r.header.Get("Content-Type"); ct != "application/json" {
		t.Fatalf("Content-Type %q", ct)
	}
	if err := json.Unmarshal(r.body, v); err != nil {
		t.Fatalf("%v in %s", err, r.body)
	}
}

// is compares the whole body as JSON.
func (r response) is(t *testing.T, want string) response {
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
	hexID    = regexp.MustCompile(`"[0-9a-f]{32}"`)
	boxID    = regexp.MustCompile(`"[0-9A-Za-z]{22}"`)
	wireTm   = regexp.MustCompile(`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z"`)
	keyValue = regexp.MustCompile(`bvk_[0-9A-Za-z]{12}_[0-9A-Za-z]{43}`)
	doorID   = regexp.MustCompile(`/sandboxes/[0-9A-Za-z]{22}/`)
	lookup12 = regexp.MustCompile(`"[0-9A-Za-z]{12}"`)
)

// golden compares the body, indented and with what is random written as a word,
// with testdata/golden/<name>.json.
func (r response) golden(t *testing.T, name string) response {
	t.Helper()
	var b bytes.Buffer
	if err := json.Indent(&b, r.body, "", "  "); err != nil {
		t.Fatalf("%v in %s", err, r.body)
	}
	got := b.String()
	for _, s := range []struct {
		re   *regexp.Regexp
		with string
	}{{hexID, `"<hex>"`}, {boxID, `"<sandbox>"`}, {wireTm, `"<time>"`}, {keyValue, "<key>"}, {doorID, "/sandboxes/<sandbox>/"}, {lookup12, `"<lookup>"`}} {
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

// problems reads a 422.
func (r response) problems(t *testing.T) []problem {
	t.Helper()
	var body struct{ Detail []problem }
	r.want(t, http.StatusUnprocessableEntity).json(t, &body)
	return body.Detail
}

// summary writes problems as "loc type" lines.
func summary(list []problem) []string {
	out := make([]string, len(list))
	for i, p := range list {
		out[i] = strings.Join(p.Loc, ".") + " " + p.Type
	}
	return out
}

// createSandbox starts a sandbox through the API.
func (h *harness) createSandbox(key string) string {
	h.t.Helper()
	var box struct{ ID string }
	h.do(key, "POST", "/api/v1/sandboxes", "").want(h.t, 200).json(h.t, &box)
	return box.ID
}

// observe makes a sandbox RUNNING, as the leader would.
func (h *harness) observe(id string, status fsm.SandboxStatus) {
	h.t.Helper()
	v, _ := h.cluster.View(context.Background(), cluster.Stale)
	box := v.SandboxAny(id)
	if box == nil {
		h.t.Fatalf("no sandbox %s", id)
	}
	status.Generation = box.Generation
	status.Since = time.Now()
	h.apply("", &fsm.SandboxObserveBody{Observations: []fsm.Observation{{ID: id, Status: status}}})
}

// running is the status of a sandbox that runs.
func running() fsm.SandboxStatus {
	return fsm.SandboxStatus{State: fsm.SandboxRunning, Placement: &fsm.Placement{
		AllocID: "a1", NodeID: "m1", Address: "10.1.2.3", Workspace: "/workspace",
		Ports: map[string]int{fsm.PortAgentServer: 21000, portVSCode: 21001},
	}}
}

// questioned puts the sandbox in ERROR for its workspace where the route needs
// one that is.
func (h *harness) questioned(r route, box string) {
	h.t.Helper()
	if strings.HasSuffix(r.name, "accept_workspace") {
		h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
		h.observe(box, fsm.SandboxStatus{State: fsm.SandboxError, Reason: fsm.ReasonWorkspace})
	}
}

// conversation makes a finished conversation in a sandbox.
func (h *harness) conversation(user, sandbox string, change ...func(*fsm.Conversation)) string {
	h.t.Helper()
	id, task := newHexID(), newHexID()
	h.apply(user, &fsm.StartTaskCreateBody{ID: task, ConversationID: id, Request: fsm.StartRequest{AgentType: "default", PRNumber: []int64{}}})
	h.apply("", &fsm.StartTaskBindBody{ID: task, SandboxID: sandbox})
	h.apply("", &fsm.StartTaskAdvanceBody{ID: task, Status: fsm.StartTaskStartingConversation, AgentServerURL: "http://10.1.2.3:21000"})
	title := "Conversation " + id[:5]
	conv := fsm.Conversation{ID: id, UserID: user, SandboxID: sandbox, Title: &title, AgentKind: "openhands"}
	for _, f := range change {
		f(&conv)
	}
	h.apply("", &fsm.StartTaskFinishBody{ID: task, Conversation: conv})
	return id
}

func ptr[T any](v T) *T { return &v }

func sprint(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// firstErr gives the first error that there is.
func firstErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

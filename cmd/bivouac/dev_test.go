package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/cluster"
)

// running is a development cluster in this process, started like `bivouac dev`.
type running struct {
	*devCluster
	failed <-chan error
	all    []caller
}

// startAll runs all nodes. The channel receives the error of a node that ends
// without being asked to.
func startAll(c *devCluster) <-chan error {
	failed := make(chan error, len(c.nodes))
	for _, n := range c.nodes {
		n.start(failed)
	}
	return failed
}

// startDev starts three nodes on dir and stops them at the test's end.
func startDev(t testing.TB, dir string) *running {
	t.Helper()
	c, err := openDev(devOptions{dataDir: dir, nodes: 3, logLevel: "debug"})
	if err != nil {
		t.Fatal(err)
	}
	return runningDev(t, c)
}

// runningDev runs the nodes of an opened cluster and stops them at the test's end.
func runningDev(t testing.TB, c *devCluster) *running {
	t.Helper()
	r := &running{devCluster: c, failed: startAll(c)}
	t.Cleanup(func() { r.end(t) })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.ready(ctx, r.failed); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.nodes {
		r.all = append(r.all, caller{base: "http://" + n.http, key: c.key.Value})
	}
	return r
}

// end stops the cluster; a second call does nothing.
func (r *running) end(t testing.TB) {
	t.Helper()
	if r.devCluster == nil {
		return
	}
	if err := r.stop(); err != nil {
		t.Errorf("stopping: %v", err)
	}
	r.devCluster = nil
}

// leader waits for a leader and returns its position.
func (r *running) leader(t testing.TB) (leader int) {
	t.Helper()
	eventually(t, "a node leads", func() error {
		for i, n := range r.nodes {
			if n.app != nil && n.app.node.Status().State == "leader" {
				leader = i
				return nil
			}
		}
		return errors.New("none does")
	})
	return leader
}

// kill stops a node as abruptly as is possible within one process.
func (r *running) kill(t testing.TB, i int) {
	t.Helper()
	if err := r.nodes[i].stop(cluster.ErrAbrupt); err != nil {
		t.Errorf("killing %s: %v", r.nodes[i].name, err)
	}
}

// listenAgain binds an address that was just released. A child between fork and exec may still
// hold a copy of the old listener.
func listenAgain(t testing.TB, address string) (ln net.Listener) {
	t.Helper()
	eventually(t, address+" is free", func() (err error) {
		ln, err = net.Listen("tcp", address)
		return err
	})
	return ln
}

// revive starts a killed node again on its addresses.
func (r *running) revive(t testing.TB, i int) {
	t.Helper()
	n := r.nodes[i]
	api, peer := listenAgain(t, n.http), listenAgain(t, n.peer)
	if err := r.wire(n, api, peer); err != nil {
		t.Fatal(err)
	}
	n.start(make(chan error, 1))
	eventually(t, n.name+" is ready", n.app.node.Ready)
}

// others returns the callers of every node but one.
func (r *running) others(i int) []caller {
	return slices.Concat(r.all[:i], r.all[i+1:])
}

func TestDev_EverySeedEndpointOnEveryNode(t *testing.T) {
	t.Parallel()
	r := startDev(t, t.TempDir())
	everySeedEndpoint(t, r.all)
}

func TestDev_SandboxKeepsItsFilesOverPauseAndResume(t *testing.T) {
	t.Parallel()
	r := startDev(t, t.TempDir())
	lifeOfASandbox(t, r.all, "", "")
}

// The origins of --cors-origin are the cluster's, in a directory that was there before too.
func TestDev_AllowsOrigins(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, origin := range []string{"https://one.example", "https://two.example"} {
		c, err := openDev(devOptions{dataDir: dir, nodes: 1, corsOrigins: []string{origin}})
		if err != nil {
			t.Fatal(err)
		}
		r := runningDev(t, c)
		for _, from := range []string{"https://one.example", "https://two.example", "http://localhost:3000"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, r.all[0].base+"/api/settings", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Origin", from)
			req.Header.Set("Access-Control-Request-Method", http.MethodPost)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if got := res.Header.Get("Access-Control-Allow-Origin") == from; got != (from == origin) {
				t.Errorf("with --cors-origin %s a page of %s is allowed: %t", origin, from, got)
			}
		}
		r.end(t)
	}
	if err := (devOptions{nodes: 1, dataDir: dir, corsOrigins: []string{"one.example"}}).check(); err == nil {
		t.Error("an origin without a scheme is taken")
	}
}

func TestDev_OpenRoutesNeedNoKeyAndOthersDo(t *testing.T) {
	t.Parallel()
	r := startDev(t, t.TempDir())
	for _, n := range r.all {
		open := caller{base: n.base}
		rebound, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.base+"/alive", nil)
		if err != nil {
			t.Fatal(err)
		}
		rebound.Host = "rebound.example"
		if res, err := http.DefaultClient.Do(rebound); err != nil || res.StatusCode != http.StatusMisdirectedRequest ||
			res.Body.Close() != nil {
			t.Errorf("a name that only leads here: %+v, %v", res, err)
		}
		for _, path := range []string{"/alive", "/health", "/server_info", "/metrics"} {
			open.do(t, http.StatusOK, http.MethodGet, path, nil)
		}
		// A busy machine may lose its leader for a moment.
		eventually(t, n.base+" is ready", func() error {
			a, err := open.try(http.MethodGet, "/ready", nil)
			if err == nil && a.status != http.StatusOK {
				err = errors.New(a.String())
			}
			return err
		})
		for _, key := range []string{"", "bvk_nonsense", r.key.Value[:len(r.key.Value)-1] + "!"} {
			caller{base: n.base, key: key}.do(t, http.StatusUnauthorized, http.MethodGet, "/api/v1/sandboxes/search", nil)
		}
	}
}

func TestDev_MetricsAreEachNodesOwn(t *testing.T) {
	t.Parallel()
	r := startDev(t, t.TempDir())
	r.all[0].awaitSandbox(t, r.all[1].startSandbox(t), "RUNNING")
	leaders := 0
	for _, n := range r.all {
		n.do(t, http.StatusOK, http.MethodGet, "/api/v1/sandboxes/search", nil) // same store
		metrics := string(n.do(t, http.StatusOK, http.MethodGet, "/metrics", nil).body)
		for _, want := range []string{"bivouac_build_info{", "go_goroutines ", "process_open_fds ",
			`bivouac_sandboxes{state="RUNNING"} 1`,
			`bivouac_sandboxes_by_isolation{isolation="none"} 1`, "bivouac_raft_"} {
			if !strings.Contains(metrics, want) {
				t.Errorf("%s/metrics lacks %s", n.base, want)
			}
		}
		if strings.Contains(metrics, `bivouac_scheduler_steps_total{outcome="ok",step="start"} 1`) {
			leaders++
		}
	}
	if leaders != 1 {
		t.Errorf("%d nodes counted the start, want the leader alone", leaders)
	}
}

func TestDev_RepeatedRequestOverALostLeaderIsOneSandbox(t *testing.T) {
	t.Parallel()
	r := startDev(t, t.TempDir())
	for round := range 3 {
		lost := r.leader(t)
		left := r.others(lost)
		key := fmt.Sprintf("request-%d", round)
		// The first attempt races with the loss of the leader, so its outcome is unknown. The
		// client retries through the other nodes.
		first := make(chan struct{})
		go func() {
			defer close(first)
			_, _ = r.all[lost].with("Idempotency-Key", key).try(http.MethodPost, "/api/v1/sandboxes", nil)
		}()
		r.kill(t, lost)
		<-first
		var answers []string
		for _, n := range append(left, left[0]) {
			eventually(t, "the repeated request", func() error {
				a, err := n.with("Idempotency-Key", key).try(http.MethodPost, "/api/v1/sandboxes", nil)
				if err == nil && a.status != http.StatusOK {
					err = errors.New(a.String())
				}
				if err == nil {
					answers = append(answers, string(a.body))
				}
				return err
			})
		}
		if answers[0] != answers[1] || answers[0] != answers[2] {
			t.Errorf("one request, several answers: %v", answers)
		}
		if list, err := left[0].sandboxes(); err != nil || len(list) != round+1 {
			t.Errorf("round %d: %d sandboxes, %v", round, len(list), err)
		}
		r.revive(t, lost)
	}
	r.sameState(t)
}

func TestDev_LosesANodeAndGoesOn(t *testing.T) {
	t.Parallel()
	r := startDev(t, t.TempDir())
	lost := r.leader(t)
	r.kill(t, lost)
	left := r.others(lost)
	eventually(t, "a write without the old leader", func() error {
		a, err := left[0].try(http.MethodPost, "/api/settings", map[string]string{"language": "after"})
		if err == nil && a.status != http.StatusOK {
			err = errors.New(a.String())
		}
		return err
	})
	want := left[1].do(t, http.StatusOK, http.MethodGet, "/api/settings", nil)
	r.revive(t, lost)
	got := r.all[lost].do(t, http.StatusOK, http.MethodGet, "/api/settings", nil)
	if diff := cmp.Diff(string(want.body), string(got.body)); diff != "" {
		t.Errorf("the node that came back shows something else (-want +got)\n%s", diff)
	}
	r.sameState(t)
}

// sameState checks that all nodes have the same state at the same index.
func (r *running) sameState(t testing.TB) {
	t.Helper()
	eventually(t, "all nodes hold the same state", func() error {
		sums := map[string][]string{}
		for _, n := range r.nodes {
			sum := fmt.Sprintf("%d/%s", n.app.store.Index(), n.app.store.Checksum())
			sums[sum] = append(sums[sum], n.name)
		}
		if len(sums) > 1 {
			return fmt.Errorf("they differ: %v", sums)
		}
		return nil
	})
}

func TestDev_ConversationOutlivesItsLeader(t *testing.T) {
	t.Parallel()
	r := startDev(t, t.TempDir())
	r.all[0].do(t, http.StatusOK, http.MethodPost, "/api/settings",
		map[string]string{"llm_model": "m", "llm_api_key": "k"})
	// Each round loses the leader at another state of the task.
	for round, at := range []string{"", "WORKING", "WAITING_FOR_SANDBOX", "STARTING_CONVERSATION"} {
		lost := r.leader(t)
		left := r.others(lost)
		id := left[0].startConversation(t, fmt.Sprintf("round %d", round))
		if at != "" {
			eventually(t, "the task has begun", func() error {
				task, err := left[0].startTask(id)
				if err == nil && taskOrder(task.Status) < taskOrder(at) {
					err = errors.New(task.Status)
				}
				return err
			})
		}
		r.kill(t, lost)
		task := left[1].awaitTask(t, id)
		left[0].awaitSandbox(t, *task.SandboxID, "RUNNING")
		r.revive(t, lost)

		for _, n := range r.all {
			list, err := n.conversations()
			if err != nil || len(list) != round+1 {
				t.Fatalf("round %d: %s lists %d conversations: %v", round, n.base, len(list), err)
			}
			sandboxes, err := n.sandboxes()
			if err != nil || len(sandboxes) != round+1 {
				t.Fatalf("round %d: %s lists %d sandboxes: %v", round, n.base, len(sandboxes), err)
			}
		}
		r.onlyConversation(t, *task.SandboxID, *task.ConversationID)
	}
	r.sameState(t)
}

// taskOrder returns the position of a start task's status.
func taskOrder(status string) int {
	return slices.Index([]string{"WORKING", "WAITING_FOR_SANDBOX", "PREPARING_REPOSITORY", "RUNNING_SETUP_SCRIPT",
		"SETTING_UP_GIT_HOOKS", "SETTING_UP_SKILLS", "STARTING_CONVERSATION", "READY"}, status)
}

// onlyConversation checks the sandbox in which a conversation was created.
func (r *running) onlyConversation(t testing.TB, sandboxID, conversationID string) {
	t.Helper()
	info, err := r.all[0].sandbox(sandboxID)
	if err != nil {
		t.Fatal(err)
	}
	onlyConversation(t, info, conversationID)
}

func TestDev_RestartKeepsAllState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := startDev(t, dir)
	key := r.key.Value
	r.all[0].do(t, http.StatusOK, http.MethodPost, "/api/settings",
		map[string]any{"language": "en", "llm_model": "m", "llm_api_key": "k"})
	settings := r.all[0].do(t, http.StatusOK, http.MethodGet, "/api/settings", nil)
	task := r.all[1].awaitTask(t, r.all[0].startConversation(t, "hello"))
	paused := r.all[2].startSandbox(t)
	inSandbox(t, r.all[0].awaitSandbox(t, paused, "RUNNING"), "echo kept > kept.txt")
	r.all[0].do(t, http.StatusOK, http.MethodPost, "/api/v1/sandboxes/"+paused+"/pause", nil)
	r.all[0].awaitSandbox(t, paused, "PAUSED")
	agentURL := r.all[0].awaitSandbox(t, *task.SandboxID, "RUNNING").agentURL()
	r.end(t)
	if _, err := (caller{base: agentURL}).try(http.MethodGet, "/health", nil); err == nil {
		t.Errorf("the agent server at %s outlived the program", agentURL)
	}
	if _, err := os.Stat((devLayout{dir}).info()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("dev.json is still there: %v", err)
	}

	r = startDev(t, dir)
	if r.key.Value != key {
		t.Error("the second start has another key")
	}
	checkInfo(t, dir, r)
	again := r.all[2].do(t, http.StatusOK, http.MethodGet, "/api/settings", nil)
	if diff := cmp.Diff(string(settings.body), string(again.body)); diff != "" {
		t.Errorf("settings (-before +after)\n%s", diff)
	}
	r.all[1].awaitSandbox(t, paused, "PAUSED")
	r.all[1].do(t, http.StatusOK, http.MethodPost, "/api/v1/sandboxes/"+paused+"/resume", nil)
	if got := inSandbox(t, r.all[0].awaitSandbox(t, paused, "RUNNING"), "cat kept.txt"); got != "kept\n" {
		t.Errorf("the paused sandbox's file holds %q", got)
	}
	r.all[0].awaitSandbox(t, *task.SandboxID, "RUNNING")
	r.onlyConversation(t, *task.SandboxID, *task.ConversationID)
}

// checkInfo compares dev.json with what runs.
func checkInfo(t testing.TB, dir string, r *running) {
	t.Helper()
	path := devLayout{dir}.info()
	stat, err := os.Stat(path)
	if err != nil || stat.Mode().Perm() != 0o600 {
		t.Fatalf("dev.json: %v, %v", stat, err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got devInfo
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r.info(), got); diff != "" {
		t.Errorf("dev.json (-want +got)\n%s", diff)
	}
}

func TestDev_RevokedKeyIsReplacedOnTheNextStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := startDev(t, dir)
	old := r.key.Value
	r.all[0].do(t, http.StatusOK, http.MethodDelete, "/api/v1/operator/keys/1", nil)
	for _, n := range r.all {
		eventually(t, "the revocation has reached "+n.base, func() error {
			a, err := n.try(http.MethodGet, "/api/settings", nil)
			if err == nil && a.status != http.StatusUnauthorized {
				err = errors.New(a.String())
			}
			return err
		})
	}
	r.end(t)
	r = startDev(t, dir)
	if r.key.Value == old {
		t.Fatal("the revoked key is shown again")
	}
	r.all[2].do(t, http.StatusOK, http.MethodGet, "/api/v1/sandboxes/search", nil)
	if _, err := os.ReadFile(r.layout.key()); err != nil {
		t.Error(err)
	}
}

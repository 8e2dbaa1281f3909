package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// The bounds of the drill, in bytes. anonymousBound is of a node's anonymous memory (RssAnon): the heap
// with what Go has not given back, without the pages of the log's file.
const (
	anonymousBound = 1 << 30
	drillLogBytes  = 64 << 20
	// drillStateBytes is what one user may keep in the state.
	drillStateBytes = 32 << 20
)

// oneUser is a user with a key who tries to hurt the others.
type oneUser struct {
	*testcluster.Cluster
	key     string
	message string

	mu       sync.Mutex
	answers  map[string]int
	starts   []string
	requests int
}

// TestOneUserHurtsNobody has one user with a key send what filled the nodes: starts in sandboxes that
// do not exist, starts with messages of 1 MB, keyed starts, settings of full size, readers that read
// nothing, batches of one large object. No node's memory goes above anonymousBound, the log stays within
// its bytes, and another user's requests succeed. The long form, ten minutes, is for a machine of its
// own: every request of the other user succeeds, with a p99 of at most three times that of before.
func TestOneUserHurtsNobody(t *testing.T) {
	f := testcluster.Start(t, testcluster.Options{
		Bare: true, LogLevel: "warn", Raft: fmt.Sprintf("trailing_bytes = %d", drillLogBytes),
		Config: fmt.Sprintf("limits {\n  user {\n    state_bytes = %d\n  }\n}\n", drillStateBytes),
	})
	op := f.Nodes[0].Client
	spec := map[string]any{"specs": []any{map[string]any{"id": "raw", "template": map[string]any{
		"driver": "raw_exec", "command": "/bin/true", "working_dir": "project", "cpu": 1, "memory": 16, "isolation": "none", "ports": map[string]int{"AGENT_SERVER": 0},
	}}}}
	op.Sure(t, http.MethodPost, "/api/v1/operator/specs", spec, nil)
	u := &oneUser{Cluster: f, key: op.NewKey(t, "mallory"), message: strings.Repeat("x", 1_000_000), answers: map[string]int{}}
	victim := op.NewKey(t, "alice")
	// A cluster that has just started raises its protocol version within seconds.
	testcluster.Eventually(t, "an unknown sandbox is refused", func() error {
		a, err := testcluster.Client{Base: op.Base, Key: victim}.Try(http.MethodPost, conversationsOf, map[string]string{"sandbox_id": "none"})
		if err == nil && a.Status != http.StatusNotFound {
			err = fmt.Errorf("it answers %d", a.Status)
		}
		return err
	})
	testcluster.Eventually(t, "the user has filled what it may keep", func() error {
		u.start(t.Context(), testcluster.Client{Base: op.Base, Key: u.key}, 0)
		if u.answers["start 429"] == 0 {
			return fmt.Errorf("there are %d starts", len(u.starts))
		}
		return nil
	})
	quiet, duration := 5*time.Second, 30*time.Second
	if long() {
		quiet, duration = time.Minute, 10*time.Minute
	}
	before := u.measure(t, victim, quiet)
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var attack sync.WaitGroup
	most := make([]int64, len(f.Nodes))
	attack.Go(func() { u.watchMemory(ctx, t, most) })
	for i, do := range []func(context.Context, testcluster.Client, int){u.unknown, u.start, u.keyed, u.settings, u.batch} {
		attack.Go(func() { u.repeat(ctx, i, do) })
	}
	for i := range 24 {
		attack.Go(func() { u.readNothing(ctx, f.Nodes[i%len(f.Nodes)].Base) })
	}
	during := u.measure(t, victim, duration-2*time.Second)
	attack.Wait()
	for i, n := range f.Nodes {
		if most[i] == 0 || most[i] > anonymousBound {
			t.Errorf("%s had %d MiB of memory, bounded by %d", n.Name, most[i]>>20, anonymousBound>>20)
		}
		testcluster.Eventually(t, "the log is within its bytes", func() error {
			m, err := n.Metrics(t.Context())
			if err == nil && (m["bivouac_raft_log_bytes"] == 0 || m["bivouac_raft_log_bytes"] > drillLogBytes) {
				err = fmt.Errorf("it has %.0f", m["bivouac_raft_log_bytes"])
			}
			return err
		})
	}
	if u.answers["unknown sandbox 200"] > 0 {
		t.Errorf("starts in sandboxes that do not exist were accepted: %v", u.answers)
	}
	ratio := float64(during) / float64(max(before, time.Millisecond))
	if long() && ratio > 3 {
		t.Errorf("the other user's p99 is %s and was %s", during, before)
	}
	t.Logf("--- verdict: one user in %s: %d requests, answers %v; most memory %d MiB of %d; the other user's p99 %s, before %s (%.1f times)",
		duration, u.requests, u.answers, slices.Max(most)>>20, anonymousBound>>20, during, before, ratio)
}

const conversationsOf = "/api/v1/app-conversations"

// measure has a user read and write for a while, one request after the other on all nodes in turn. It
// returns the p99.
func (u *oneUser) measure(t *testing.T, key string, d time.Duration) time.Duration {
	t.Helper()
	var took []time.Duration
	failed := 0
	for i, begin := 0, time.Now(); time.Since(begin) < d; i++ {
		c := testcluster.Client{Base: u.Nodes[i%len(u.Nodes)].Base, Key: key}
		at := time.Now()
		var err error
		if i%2 == 0 {
			err = c.Get(conversationsOf+"/search?limit=10", nil)
		} else {
			err = c.Do(http.MethodPost, "/api/settings", map[string]string{"language": strconv.Itoa(i)}, nil)
		}
		took = append(took, time.Since(at))
		if err != nil {
			failed++
			t.Logf("the other user's request %d: %v", i, err)
		}
	}
	// A machine with two busy cores may change its leader; the long form has one of its own.
	if long() && failed > 0 || failed > len(took)/2 {
		t.Errorf("%d of the other user's %d requests failed", failed, len(took))
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// repeat sends one kind of request until the end, on all nodes in turn.
func (u *oneUser) repeat(ctx context.Context, kind int, do func(context.Context, testcluster.Client, int)) {
	for i := 0; ctx.Err() == nil; i++ {
		do(ctx, testcluster.Client{Base: u.Nodes[(i+kind)%len(u.Nodes)].Base, Key: u.key}, i)
		testcluster.Pause(ctx, 50*time.Millisecond)
	}
}

// send sends one request and counts its answer.
func (u *oneUser) send(ctx context.Context, c testcluster.Client, what, method, path string, in any, header ...string) testcluster.Answer {
	a, err := c.Send(ctx, method, path, in, header...)
	if ctx.Err() != nil {
		return a
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.requests++
	if err != nil {
		u.answers[what+" failed"]++
		return a
	}
	u.answers[fmt.Sprint(what, " ", a.Status)]++
	return a
}

func (u *oneUser) request(sandbox *string, bytes int) map[string]any {
	return map[string]any{"sandbox_id": sandbox, "initial_message": map[string]any{
		"content": []any{map[string]string{"type": "text", "text": u.message[:bytes]}},
	}}
}

func (u *oneUser) unknown(ctx context.Context, c testcluster.Client, _ int) {
	u.send(ctx, c, "unknown sandbox", http.MethodPost, conversationsOf, u.request(new("nosuchsandbox"), len(u.message)))
}

func (u *oneUser) start(ctx context.Context, c testcluster.Client, _ int) {
	var task struct{ ID string }
	if a := u.send(ctx, c, "start", http.MethodPost, conversationsOf, u.request(nil, len(u.message))); a.Decode(&task) == nil {
		u.mu.Lock()
		u.starts = append(u.starts, task.ID)
		u.mu.Unlock()
	}
}

func (u *oneUser) keyed(ctx context.Context, c testcluster.Client, i int) {
	u.send(ctx, c, "keyed start", http.MethodPost, conversationsOf, u.request(nil, 10_000), "Idempotency-Key", fmt.Sprint("k", i))
}

func (u *oneUser) settings(ctx context.Context, c testcluster.Client, i int) {
	text := strings.Repeat(string(rune('a'+i%26)), 4000)
	u.send(ctx, c, "settings", http.MethodPost, "/api/settings", map[string]string{
		"language": text, "agent": text, "llm_model": text, "git_user_name": text, "git_user_email": text,
	})
}

func (u *oneUser) batch(ctx context.Context, c testcluster.Client, i int) {
	u.mu.Lock()
	id := ""
	if len(u.starts) > 0 {
		id = u.starts[i%len(u.starts)]
	}
	u.mu.Unlock()
	if id == "" {
		testcluster.Pause(ctx, 50*time.Millisecond)
		return
	}
	u.send(ctx, c, "batch", http.MethodGet, conversationsOf+"/start-tasks?ids="+strings.Join(slices.Repeat([]string{id}, 100), "&ids="), nil)
	u.send(ctx, c, "page", http.MethodGet, conversationsOf+"/start-tasks/search?limit=100", nil)
}

// readNothing asks for pages and does not read them; it comes back when its connection is closed.
func (u *oneUser) readNothing(ctx context.Context, base string) {
	for ctx.Err() == nil {
		conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
		if err != nil {
			testcluster.Pause(ctx, 100*time.Millisecond)
			continue
		}
		_ = conn.(*net.TCPConn).SetReadBuffer(4096)
		for range 2 {
			_, _ = fmt.Fprintf(conn, "GET %s/start-tasks/search?limit=100 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", conversationsOf, u.key)
		}
		testcluster.Pause(ctx, 15*time.Second)
		_ = conn.Close()
	}
}

// watchMemory keeps the most anonymous memory of each node.
func (u *oneUser) watchMemory(ctx context.Context, t *testing.T, most []int64) {
	for ctx.Err() == nil {
		for i, n := range u.Nodes {
			bytes, err := anonymousMemory(n.Pid())
			if err != nil {
				t.Errorf("%s is gone: %v", n.Name, err)
				return
			}
			most[i] = max(most[i], bytes)
		}
		testcluster.Pause(ctx, 200*time.Millisecond)
	}
}

// anonymousMemory returns a process's RssAnon, in bytes.
func anonymousMemory(pid int) (int64, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if text, found := strings.CutPrefix(lines.Text(), "RssAnon:"); found {
			kib, err := strconv.ParseInt(strings.Fields(text)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no RssAnon", pid)
}

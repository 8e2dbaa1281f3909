package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// attackEnv names the file with the attack for the attacker's process.
const attackEnv = "BIVOUAC_ATTACK"

// userAttack is what a user with a key sends to hurt the others.
type userAttack struct {
	Bases    []string
	Key      string
	Starts   []string
	Duration time.Duration
	// SlowReaders ask for pages and read nothing. Pipeliners ask for pages back to back and read
	// them. Hammers send each kind of request without a pause. Silent sockets send nothing.
	SlowReaders, Pipeliners, Hammers, Silent int
}

// attackResult counts the answers by kind and status.
type attackResult struct{ Answers map[string]int }

// run attacks from a process of its own, at the lowest priority. Attackers have machines of their
// own, so what counts is the work of the nodes and not that of the attacker beside them.
func (a userAttack) run(t *testing.T) (wait func() attackResult) {
	t.Helper()
	dir := t.TempDir()
	file, out := filepath.Join(dir, "attack.json"), filepath.Join(dir, "result.json")
	text, err := json.Marshal(a)
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "nice", "-n", "19", os.Args[0], "-test.run=^TestAttacker$", "-test.timeout=0")
	cmd.Env = append(os.Environ(), attackEnv+"="+file)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() (result attackResult) {
		t.Helper()
		err := cmd.Wait()
		if err == nil {
			text, err = os.ReadFile(out)
		}
		if err == nil {
			err = json.Unmarshal(text, &result)
		}
		if err != nil {
			t.Errorf("the attacker's process: %v", err)
		}
		return result
	}
}

// TestAttacker is the attacker's process; by itself it is skipped.
func TestAttacker(t *testing.T) {
	file := os.Getenv(attackEnv)
	if file == "" {
		t.Skip("it is the process of another test")
	}
	u := &attacker{answers: map[string]int{}, message: strings.Repeat("x", 1_000_000)}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &u.userAttack)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), u.Duration)
	defer cancel()
	u.all(ctx)
	if text, err = json.Marshal(attackResult{u.answers}); err == nil {
		err = os.WriteFile(filepath.Join(filepath.Dir(file), "result.json"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

type attacker struct {
	userAttack
	message string

	mu      sync.Mutex
	answers map[string]int
}

// all attacks until ctx ends.
func (u *attacker) all(ctx context.Context) {
	var tasks sync.WaitGroup
	for i, do := range []func(context.Context, testcluster.Client, int){u.unknown, u.start, u.keyed, u.settings, u.batch} {
		tasks.Go(func() { u.repeat(ctx, i, 50*time.Millisecond, do) })
		for j := range u.Hammers {
			tasks.Go(func() { u.repeat(ctx, i+j, 0, do) })
		}
	}
	for i := range u.SlowReaders {
		tasks.Go(func() { u.onConnections(ctx, i, u.readNothing) })
	}
	for i := range u.Pipeliners {
		tasks.Go(func() { u.onConnections(ctx, i, u.pipeline) })
	}
	for i := range u.Silent {
		tasks.Go(func() {
			u.onConnections(ctx, i, func(ctx context.Context, _ *net.TCPConn) { testcluster.Pause(ctx, 15*time.Second) })
		})
	}
	tasks.Wait()
}

// repeat sends one kind of request until the end, on all nodes in turn.
func (u *attacker) repeat(
	ctx context.Context,
	kind int,
	pause time.Duration,
	do func(context.Context, testcluster.Client, int),
) {
	for i := 0; ctx.Err() == nil; i++ {
		do(ctx, testcluster.Client{Base: u.Bases[(i+kind)%len(u.Bases)], Key: u.Key}, i)
		testcluster.Pause(ctx, pause)
	}
}

// count counts an answer.
func (u *attacker) count(what string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.answers[what]++
}

// send sends one request and counts its answer.
func (u *attacker) send(
	ctx context.Context,
	c testcluster.Client,
	what, method, path string,
	in any,
	header ...string,
) testcluster.Answer {
	a, err := c.Send(ctx, method, path, in, header...)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		u.count(what + " failed")
	default:
		u.count(fmt.Sprint(what, " ", a.Status))
	}
	return a
}

func (u *attacker) request(sandbox *string, bytes int) map[string]any {
	return map[string]any{"sandbox_id": sandbox, "initial_message": map[string]any{
		"content": []any{map[string]string{"type": "text", "text": u.message[:bytes]}},
	}}
}

func (u *attacker) unknown(ctx context.Context, c testcluster.Client, _ int) {
	u.send(ctx, c, "unknown sandbox", http.MethodPost, conversationsOf, u.request(new("nosuchsandbox"), len(u.message)))
}

func (u *attacker) start(ctx context.Context, c testcluster.Client, _ int) {
	u.send(ctx, c, "start", http.MethodPost, conversationsOf, u.request(nil, len(u.message)))
}

func (u *attacker) keyed(ctx context.Context, c testcluster.Client, i int) {
	u.send(ctx, c, "keyed start", http.MethodPost, conversationsOf, u.request(nil, 10_000), "Idempotency-Key",
		fmt.Sprint("k", i))
}

func (u *attacker) settings(ctx context.Context, c testcluster.Client, i int) {
	text := strings.Repeat(string(rune('a'+i%26)), 4000)
	u.send(ctx, c, "settings", http.MethodPost, "/api/settings", map[string]string{
		"language": text, "agent": text, "llm_model": text, "git_user_name": text, "git_user_email": text,
	})
}

func (u *attacker) batch(ctx context.Context, c testcluster.Client, i int) {
	id := u.Starts[i%len(u.Starts)]
	u.send(ctx, c, "batch", http.MethodGet,
		conversationsOf+"/start-tasks?ids="+strings.Join(slices.Repeat([]string{id}, 100), "&ids="), nil)
	u.send(ctx, c, "page", http.MethodGet, conversationsOf+pagesOfStarts, nil)
}

// pagesOfStarts is the listing with the largest pages.
const pagesOfStarts = "/start-tasks/search?limit=100"

// onConnections uses one connection after the other until the end.
func (u *attacker) onConnections(ctx context.Context, i int, use func(context.Context, *net.TCPConn)) {
	for ctx.Err() == nil {
		conn, err := net.Dial("tcp", strings.TrimPrefix(u.Bases[i%len(u.Bases)], "http://"))
		if err != nil {
			testcluster.Pause(ctx, 100*time.Millisecond)
			continue
		}
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		use(ctx, conn.(*net.TCPConn))
		stop()
		_ = conn.Close()
	}
}

// askForPages sends requests for pages, and does not wait for the answers.
func (u *attacker) askForPages(conn net.Conn, n int) error {
	_, err := io.WriteString(conn, strings.Repeat(fmt.Sprintf(
		"GET %s%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", conversationsOf, pagesOfStarts, u.Key), n))
	return err
}

func (u *attacker) readNothing(ctx context.Context, conn *net.TCPConn) {
	_ = conn.SetReadBuffer(4096)
	if u.askForPages(conn, 2) == nil {
		testcluster.Pause(ctx, 15*time.Second)
	}
}

// pipeline keeps 16 requests for pages on their way and reads the answers as fast as it can.
func (u *attacker) pipeline(ctx context.Context, conn *net.TCPConn) {
	const depth = 16
	if u.askForPages(conn, depth) != nil {
		return
	}
	answers := newPipeReader(conn)
	for {
		status, err := answers.next()
		if errors.Is(err, io.EOF) || ctx.Err() != nil {
			return
		}
		if err != nil {
			u.count("pipelined failed")
			testcluster.Pause(ctx, 100*time.Millisecond)
			return
		}
		u.count(fmt.Sprint("pipelined ", status))
		if u.askForPages(conn, 1) != nil {
			return
		}
	}
}

// pipeReader reads one answer after the other from a connection.
type pipeReader struct{ r *bufio.Reader }

func newPipeReader(conn net.Conn) pipeReader { return pipeReader{bufio.NewReaderSize(conn, 64<<10)} }

// next reads an answer and returns its status.
func (p pipeReader) next() (int, error) {
	answer, err := http.ReadResponse(p.r, nil)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

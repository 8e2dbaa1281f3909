package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"bivouac.dev/bivouac/httpapi/wire"
)

// child is the program as a process.
type child struct {
	cmd            *exec.Cmd
	stdout, stderr buffer
	ended          chan struct{}
}

// startChild starts the program. It is killed at the test's end.
func startChild(t testing.TB, dir string, args ...string) *child {
	t.Helper()
	return startChildWith(t, dir, nil, args...)
}

// startChildWith starts the program with env added to its environment.
func startChildWith(t testing.TB, dir string, env []string, args ...string) *child {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: exec.Command(binary, args...), ended: make(chan struct{})}
	c.cmd.Dir = dir
	c.cmd.Env = append(append(os.Environ(), mainEnv+"=1"), env...)
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, &c.stderr
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.ended)
	}()
	t.Cleanup(func() { c.kill() })
	return c
}

// mustRun fails the test when the program has ended.
func (c *child) mustRun(t testing.TB) {
	t.Helper()
	select {
	case <-c.ended:
		t.Fatalf("the program ended: %s", c.stderr.String())
	default:
	}
}

// kill sends SIGKILL.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.ended
}

// wait waits for the end and returns the exit code.
func (c *child) wait(t testing.TB) int {
	t.Helper()
	eventually(t, "the program ends", func() error {
		select {
		case <-c.ended:
			return nil
		default:
			return errors.New("it runs: " + c.stderr.String())
		}
	})
	return c.cmd.ProcessState.ExitCode()
}

// devChild starts `bivouac dev` in dir and waits until it is ready.
func devChild(t testing.TB, dir string, args ...string) (*child, []caller) {
	t.Helper()
	c := startChild(t, dir, append([]string{"dev", "--http-port", "0"}, args...)...)
	var info devInfo
	eventually(t, "bivouac dev is ready", func() error {
		c.mustRun(t)
		// A killed program leaves its dev.json. The greeting follows the new one.
		if !strings.Contains(c.stdout.String(), "Ctrl-C") {
			return errors.New("it has not greeted")
		}
		b, err := os.ReadFile(filepath.Join(dir, ".bivouac", "dev.json"))
		if err != nil {
			return err
		}
		return json.Unmarshal(b, &info)
	})
	var nodes []caller
	for _, n := range info.Nodes {
		nodes = append(nodes, caller{base: n.HTTP, key: info.APIKey})
	}
	return c, nodes
}

func TestBinary_DevStopsOnInterruptAndGreetsReadably(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c, nodes := devChild(t, dir)
	greeting := c.stdout.String()
	for _, n := range nodes {
		if !strings.Contains(greeting, n.base) {
			t.Errorf("the greeting lacks %s:\n%s", n.base, greeting)
		}
	}
	if !strings.Contains(greeting, `isolation = "none"`) {
		t.Errorf("the greeting does not say that sandboxes are not isolated:\n%s", greeting)
	}
	line := greeting[strings.Index(greeting, "curl"):]
	line, _, _ = strings.Cut(line, "\n")
	out, err := exec.Command("sh", "-c", line).Output()
	if err != nil || !strings.Contains(string(out), `"status":"STARTING"`) {
		t.Errorf("the line %q printed %s, %v", line, out, err)
	}
	second := startChild(t, dir, "dev", "--http-port", "0")
	if code := second.wait(t); code != exitFailed || !strings.Contains(second.stderr.String(),
		"is in use by another bivouac") || strings.Count(second.stderr.String(), "\n") != 1 {
		t.Errorf("a second instance: exit %d: %s", code, second.stderr.String())
	}
	if err := c.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := c.wait(t); code != exitOK {
		t.Errorf("exit %d after an interrupt: %s", code, c.stderr.String())
	}
	if _, err := os.Stat(filepath.Join(dir, ".bivouac", "dev.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("dev.json is still there: %v", err)
	}
	for _, line := range strings.Split(strings.TrimSpace(c.stderr.String()), "\n") {
		if !strings.HasPrefix(line, "stopping") && !strings.HasPrefix(line, "starting") {
			t.Errorf("stderr has a line nobody asked for: %q", line)
		}
	}
}

func TestBinary_KilledAtAnyPointLosesNoAcknowledgedWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const rounds = 4
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	c, nodes := devChild(t, dir)
	writers := make([]*writer, len(nodes))
	for i, n := range nodes {
		var made wire.CreatedAPIKey
		n.do(t, http.StatusCreated, http.MethodPost, "/api/v1/operator/keys",
			map[string]any{"user": fmt.Sprintf("writer%d", i), "name": "test"}).json(t, &made)
		writers[i] = &writer{key: made.Key}
	}
	var sandboxes []string
	for round := range rounds {
		sandboxes = append(sandboxes, nodes[round%len(nodes)].startSandbox(t))
		var acknowledged atomic.Int64
		limit := 1 + random.Int64N(60)
		var done sync.WaitGroup
		for i, w := range writers {
			done.Go(func() { w.write(caller{base: nodes[i].base, key: w.key}, &acknowledged) })
		}
		eventually(t, fmt.Sprintf("round %d: %d writes", round, limit), func() error {
			if n := acknowledged.Load(); n < limit {
				return fmt.Errorf("%d so far", n)
			}
			return nil
		})
		c.kill()
		done.Wait()
		c, nodes = devChild(t, dir)
		for i, w := range writers {
			for _, n := range nodes {
				got := caller{base: n.base, key: w.key}.language(t)
				if got < w.acknowledged || got > w.sent {
					t.Errorf("round %d: writer %d: %s shows %d; %d was acknowledged, %d sent", round, i, n.base, got, w.acknowledged,
						w.sent)
				}
			}
		}
	}
	// Every acknowledged sandbox runs again, once. The killed program's processes are gone.
	for _, id := range sandboxes {
		nodes[0].awaitSandbox(t, id, "RUNNING")
	}
	eventually(t, "one process for each sandbox", func() error {
		if got := agentProcesses(t, dir); len(got) != len(sandboxes) {
			return fmt.Errorf("%d processes for %d sandboxes: %v", len(got), len(sandboxes), got)
		}
		return nil
	})
}

// agentProcesses finds the agent servers whose workspace is below dir.
func agentProcesses(t testing.TB, dir string) (found []string) {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		args, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		env, _ := os.ReadFile(filepath.Join(p, "environ"))
		if strings.Contains(string(args), "\x00"+sandboxAgentName+"\x00") && strings.Contains(string(env), "="+dir+"/") {
			found = append(found, p)
		}
	}
	return found
}

func TestBinary_SecondSignalEndsItAtOnceAndHangupReadsTheLogLevel(t *testing.T) {
	t.Parallel()
	s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t)})
	n := s.nodes[0]
	n.start()
	eventually(t, "the node serves", func() error {
		n.process.mustRun(t)
		_, err := n.try(http.MethodGet, "/alive", nil)
		return err
	})
	config, err := os.ReadFile(n.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.config, []byte(strings.Replace(string(config), `"debug"`, `"info"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	n.process.signal(t, syscall.SIGHUP)
	n.process.awaitLog(t, "log.level = info (was debug)")

	// A request with an unfinished body delays the graceful stop, although it has its response.
	conn, err := net.Dial("tcp", strings.TrimPrefix(n.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /api/settings HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
	n.process.awaitLog(t, `"status":401`)
	n.process.signal(t, syscall.SIGTERM)
	n.process.awaitLog(t, "node stopping")
	n.process.signal(t, syscall.SIGTERM)
	if code := n.process.wait(t); code != exitFailed || !strings.Contains(n.process.stderr.String(),
		"told twice to stop") {
		t.Errorf("exit %d: %s", code, lastLines(n.process.stderr.String(), 3))
	}
}

func (c *child) signal(t testing.TB, s os.Signal) {
	t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// awaitLog waits until the program has logged the text.
func (c *child) awaitLog(t testing.TB, text string) {
	t.Helper()
	eventually(t, "it logs "+text, func() error {
		if !strings.Contains(c.stderr.String(), text) {
			return errors.New(lastLines(c.stderr.String(), 5))
		}
		return nil
	})
}

// TestBinary_PeerPortTakenMeanwhile uses processes because of a data race in hashicorp/raft
// v1.7.3: it reads a peer's address for a log line while a change of address writes it.
func TestBinary_PeerPortTakenMeanwhile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c, nodes := devChild(t, dir)
	nodes[0].do(t, http.StatusOK, http.MethodPost, "/api/settings", map[string]string{"language": "7"})
	c.kill()
	peers := func() (known map[string]string) {
		b, err := os.ReadFile(filepath.Join(dir, ".bivouac", "peers.json"))
		if err == nil {
			err = json.Unmarshal(b, &known)
		}
		if err != nil {
			t.Fatal(err)
		}
		return known
	}
	before := peers()
	thief := listenAgain(t, before["n2"])
	defer thief.Close()
	_, nodes = devChild(t, dir)
	if after := peers(); after["n2"] == before["n2"] || after["n1"] != before["n1"] {
		t.Errorf("peer ports were %v and are %v", before, after)
	}
	for _, n := range nodes {
		if got := n.language(t); got != 7 {
			t.Errorf("%s shows %d", n.base, got)
		}
	}
}

// writer increments a value in its user's settings.
type writer struct {
	key                string
	sent, acknowledged int
}

// write writes until the node is gone.
func (w *writer) write(n caller, acknowledged *atomic.Int64) {
	for {
		w.sent++
		a, err := n.try(http.MethodPost, "/api/settings", map[string]string{"language": strconv.Itoa(w.sent)})
		if err != nil {
			return
		}
		if a.status == http.StatusOK {
			w.acknowledged = w.sent
			acknowledged.Add(1)
		}
	}
}

// language reads the counter; 0 if nothing was stored.
func (c caller) language(t testing.TB) int {
	t.Helper()
	var got struct {
		Language string `json:"language"`
	}
	a, err := c.try(http.MethodGet, "/api/settings", nil)
	if err != nil {
		t.Fatal(err)
	}
	if a.status == http.StatusNotFound {
		return 0
	}
	a.json(t, &got)
	n, err := strconv.Atoi(got.Language)
	if err != nil {
		t.Fatalf("%s: %v", a, err)
	}
	return n
}

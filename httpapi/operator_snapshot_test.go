package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/backup"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/fsm/snapshotfile"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/response"
)

const snapshotPath = "/api/v1/operator/snapshot"

func TestSnapshot_IsTheWholeState(t *testing.T) {
	h := newHarness(t).withSpec().withSettings()
	h.createSandbox(h.alice)
	res := h.do(h.root, "GET", snapshotPath, "").want(t, 200)
	m, trial, err := snapshotfile.Load(bytes.NewReader(res.body))
	if err != nil {
		t.Fatal(err)
	}
	v := h.cluster.store.View()
	if trial.View.Index() != v.Index() || m.Node != "n1" || m.Version != "v1" || m.Reason != snapshotfile.ReasonSave ||
		m.Stale {
		t.Errorf("%+v", m)
	}
	if got := res.header.Get("Content-Length"); got != sprint("%d", len(res.body)) {
		t.Errorf("Content-Length %s of %d", got, len(res.body))
	}
	if res.header.Get(response.HeaderIndex) != sprint("%d", v.Index()) ||
		res.header.Get("Content-Type") != "application/x-tar" ||
		!strings.Contains(res.header.Get("Content-Disposition"), sprint("-%d.snap", v.Index())) {
		t.Errorf("%v", res.header)
	}
	restored := fsm.NewStore()
	file, err := snapshotfile.Open(bytes.NewReader(res.body))
	if err != nil {
		t.Fatal(err)
	}
	if err := restored.Restore(file.State()); err != nil || restored.Checksum() != h.cluster.store.Checksum() {
		t.Errorf("another state: %v", err)
	}
	for _, values := range h.secrets.entries {
		for _, entry := range values {
			for name, secret := range entry {
				if trialHolds(t, res.body, secret) {
					t.Errorf("the file holds the value of %s", name)
				}
			}
		}
	}
	if left, err := os.ReadDir(h.server.cfg.Operator.Snapshots.Dir); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

// trialHolds reports whether the decompressed state of a file contains a value.
func trialHolds(t *testing.T, file []byte, value string) bool {
	t.Helper()
	f, err := snapshotfile.Open(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	state, err := io.ReadAll(f.State())
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(state, []byte(value))
}

func TestSnapshot_NoLeader(t *testing.T) {
	h := newHarness(t)
	h.cluster.set(func(c *fakeCluster) { c.viewErr = fsm.Errorf(fsm.CodeNoLeader, "none") })
	for range 5 { // a failed snapshot must leave nothing behind
		res := h.do(h.root, "GET", snapshotPath, "").want(t, 503)
		if res.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	res := h.do(h.root, "GET", snapshotPath+"?stale", "").want(t, 200)
	if m, _, err := snapshotfile.Load(bytes.NewReader(res.body)); err != nil || !m.Stale {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestSnapshot_NotHere(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Operator.Snapshots.States = nil })
	h.do(h.root, "GET", snapshotPath, "").want(t, 501)
	h = newHarness(t, func(c *Config) { c.Operator.Snapshots.Dir = "/nowhere" })
	for range 5 {
		h.do(h.root, "GET", snapshotPath, "").want(t, 500)
	}
}

// heldStates returns a snapshot when released.
type heldStates struct {
	*fakeCluster
	asked, go_ chan struct{}
}

func (s *heldStates) StateSnapshot(ctx context.Context, c cluster.Consistency) (*fsm.Snapshot, error) {
	s.asked <- struct{}{}
	<-s.go_
	return s.fakeCluster.StateSnapshot(ctx, c)
}

func TestSnapshot_AFewAtATime(t *testing.T) {
	held := &heldStates{asked: make(chan struct{}), go_: make(chan struct{})}
	h := newHarness(t, func(c *Config) {
		held.fakeCluster = c.Operator.Snapshots.States.(*fakeCluster)
		c.Operator.Snapshots.States, c.Operator.Snapshots.AtATime = held, 2
	})
	done := make(chan reply, 2)
	for range 2 {
		go func() { done <- h.do(h.root, "GET", snapshotPath, "") }()
		<-held.asked
	}
	res := h.do(h.root, "GET", snapshotPath, "").want(t, 503)
	if res.header.Get("Retry-After") != "10" || !strings.Contains(string(res.body), "other snapshots") {
		t.Errorf("%v %s", res.header, res.body)
	}
	close(held.go_)
	for range 2 {
		(<-done).want(t, 200)
	}
	go func() { <-held.asked }()
	h.do(h.root, "GET", snapshotPath, "").want(t, 200)
}

// largeSnapshot serves a state that compresses to more than a MiB, with short request timeouts and
// small connection buffers.
func largeSnapshot(t *testing.T, slack time.Duration) (h *harness, address string) {
	t.Helper()
	h = newHarness(t, func(c *Config) {
		c.RequestTimeout, c.WriteTimeout = 100*time.Millisecond, 200*time.Millisecond
		c.Operator.Snapshots.AtATime, c.Operator.Snapshots.Slack, c.Operator.Snapshots.BytesPerSecond = 1, slack, 1<<20
	})
	for i := range 500 {
		h.apply(sprint("u%d", i), &fsm.SettingsPutBody{Values: fsm.SettingsValues{LLMModel: ptr(apikey.Random(3000))}})
	}
	server := httptest.NewUnstartedServer(h.handler)
	server.Listener = smallBuffers{server.Listener}
	server.Config.WriteTimeout = h.server.cfg.WriteTimeout
	server.Start()
	t.Cleanup(server.Close)
	return h, server.Listener.Addr().String()
}

type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		_ = conn.(*net.TCPConn).SetWriteBuffer(16 << 10)
	}
	return conn, err
}

// ask sends the request and reads the response's header.
func (h *harness) ask(t *testing.T, address string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.(*net.TCPConn).SetReadBuffer(16 << 10)
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nX-Session-API-Key: %s\r\n\r\n", snapshotPath, h.root)
	resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 4096), nil)
	if err != nil || resp.StatusCode != http.StatusOK || resp.ContentLength < 1<<20 {
		t.Fatalf("%+v %v", resp, err)
	}
	return resp
}

// TestSnapshot_ReceiverThatDoesNotRead: the receiver is cut off and its slot freed.
func TestSnapshot_ReceiverThatDoesNotRead(t *testing.T) {
	t.Parallel()
	h, address := largeSnapshot(t, 100*time.Millisecond)
	resp := h.ask(t, address)
	until(t, "the receiver is given up", func() bool { return h.server.operators.Sending() == 0 })
	if n, err := io.Copy(io.Discard, resp.Body); err == nil || n >= resp.ContentLength {
		t.Errorf("it got all %d bytes", n)
	}
}

// TestSnapshot_ReceiverThatTakesItsTime: a slow receiver gets the whole file, long after the
// timeout of ordinary requests.
func TestSnapshot_ReceiverThatTakesItsTime(t *testing.T) {
	t.Parallel()
	h, address := largeSnapshot(t, time.Minute)
	resp := h.ask(t, address)
	if _, _, err := snapshotfile.Load(&throttled{r: resp.Body, pause: time.Millisecond}); err != nil {
		t.Error(err)
	}
}

// throttled pauses between reads.
type throttled struct {
	r     io.Reader
	pause time.Duration
}

func (s *throttled) Read(b []byte) (int, error) {
	<-time.After(s.pause)
	return s.r.Read(b[:min(len(b), 64<<10)])
}

func TestBackups_List(t *testing.T) {
	h := newHarness(t)
	res := h.do(h.root, "GET", "/api/v1/operator/backups", "").want(t, 200)
	var report backup.Report
	res.json(t, &report)
	if len(report.Files) != 2 || report.Files[1].Problem == "" || report.Newest.FailedNode != "n1" {
		t.Errorf("%s", res.body)
	}
	newHarness(t, func(c *Config) { c.Operator.Backups = nil }).do("", "GET", "/api/v1/operator/backups", "").want(t, 401)
	h = newHarness(t, func(c *Config) { c.Operator.Backups = nil })
	h.do(h.root, "GET", "/api/v1/operator/backups", "").want(t, 404)
	h = newHarness(t, func(c *Config) { c.Operator.Backups = fakeBackups{errors.New("the disk is gone")} })
	h.do(h.root, "GET", "/api/v1/operator/backups", "").want(t, 500)
}

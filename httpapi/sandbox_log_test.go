package httpapi

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// fakeLogs has one sandbox's output, which a test can extend.
type fakeLogs struct {
	mu   sync.Mutex
	err  error
	asks []string
	// more is what a follower reads; a test writes to the other end.
	more   *io.PipeReader
	closed chan struct{}
}

func (l *fakeLogs) Logs(_ context.Context, clusterID, sandboxID, stream string, tail int64, follow bool) (io.ReadCloser, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asks = append(l.asks, sprint("%s %s %s %d %v", clusterID, sandboxID, stream, tail, follow))
	switch {
	case l.err != nil:
		return nil, l.err
	case follow:
		return struct {
			io.Reader
			io.Closer
		}{l.more, closeFunc(sync.OnceFunc(func() { l.more.Close(); close(l.closed) }))}, nil
	}
	return io.NopCloser(strings.NewReader(stream + " of " + sandboxID)), nil
}

// closeFunc is a function as an io.Closer.
type closeFunc func()

func (f closeFunc) Close() error { f(); return nil }

func withLogs(l *fakeLogs) func(*Config) { return func(c *Config) { c.Logs = l } }

func TestSandboxLogs(t *testing.T) {
	l := &fakeLogs{}
	h := newHarness(t, withLogs(l)).withSpec()
	id := h.createSandbox(h.alice)
	path := pathSandboxes + "/" + id + "/logs"
	res := h.do(h.alice, "GET", path, "").want(t, 200)
	if string(res.body) != "stdout of "+id || !strings.HasPrefix(res.header.Get("Content-Type"), "text/plain") {
		t.Fatalf("%s %s", res.header.Get("Content-Type"), res.body)
	}
	h.do(h.alice, "GET", path+"?stream=stderr&tail=100", "").want(t, 200)
	h.do(h.alice, "GET", path+"?tail=0", "").want(t, 200)
	h.do(h.alice, "GET", path+"?tail=1048576&x=y", "").want(t, 200)
	want := sprint("c1 %s stdout 65536 false\nc1 %s stderr 100 false\nc1 %s stdout 0 false\nc1 %s stdout 1048576 false", id, id, id, id)
	if got := strings.Join(l.asks, "\n"); got != want {
		t.Fatalf("asked\n%s\nwant\n%s", got, want)
	}
	for _, query := range []string{"?tail=1048577", "?tail=-1", "?tail=x", "?stream=both", "?follow=perhaps"} {
		h.do(h.alice, "GET", path+query, "").want(t, 422)
	}
	h.do(h.bob, "GET", path, "").want(t, 404).is(t, `{"detail":"Not Found"}`)
	h.do(h.root, "GET", path, "").want(t, 404)
	h.do("", "GET", path, "").want(t, 401)
	h.do(h.secrets.last(fsm.SandboxKeyPath(id))["key"], "GET", path, "").want(t, 401)
	l.err = fsm.Errorf(fsm.CodeNotFound, "no allocation")
	h.do(h.alice, "GET", path, "").want(t, 404).is(t, `{"detail":"The sandbox has no logs yet"}`)
	l.err = fsm.Errorf(fsm.CodeScheduler, "Nomad is away")
	h.do(h.alice, "GET", path, "").want(t, 503)
	if n := h.server.proxy.Load().Sessions; n != 0 {
		t.Fatalf("%d sessions are left", n)
	}
	none := newHarness(t).withSpec()
	none.do(none.alice, "GET", pathSandboxes+"/"+none.createSandbox(none.alice)+"/logs", "").want(t, 501)
}

// follower follows a log on a real connection.
func follower(t *testing.T, change ...func(*Config)) (h *harness, id string, write *io.PipeWriter, read func() (string, error), l *fakeLogs) {
	t.Helper()
	reader, writer := io.Pipe()
	l = &fakeLogs{more: reader, closed: make(chan struct{})}
	h = newHarness(t, append(change, withLogs(l))...).withSpec()
	id = h.createSandbox(h.alice)
	h.observe(id, running())
	front := httptest.NewUnstartedServer(h.handler)
	front.Config.WriteTimeout = 300 * time.Millisecond
	front.Start()
	t.Cleanup(front.Close)
	req, err := http.NewRequestWithContext(t.Context(), "GET", front.URL+pathSandboxes+"/"+id+"/logs?follow=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Session-API-Key", h.alice)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	lines := bufio.NewReader(resp.Body)
	return h, id, writer, func() (string, error) { return lines.ReadString('\n') }, l
}

func TestSandboxLogs_FollowOutlivesEveryTimeout(t *testing.T) {
	h, _, write, read, l := follower(t, func(c *Config) { c.RequestTimeout = 100 * time.Millisecond })
	for _, line := range []string{"one\n", "two\n"} {
		// Idle for longer than the timeouts of the request and the server.
		<-time.After(400 * time.Millisecond)
		if _, err := io.WriteString(write, line); err != nil {
			t.Fatal(err)
		}
		if got, err := read(); got != line {
			t.Fatalf("%q, %v", got, err)
		}
	}
	write.Close() // the task ended
	if got, err := read(); !errors.Is(err, io.EOF) {
		t.Fatalf("%q, %v", got, err)
	}
	<-l.closed
	h.server.proxy.Drain()
	h.do(h.alice, "GET", "/alive", "").want(t, 200)
}

func TestSandboxLogs_FollowEndsWithTheSandboxAndTheNode(t *testing.T) {
	t.Run("deleted", func(t *testing.T) {
		h, id, _, read, l := follower(t)
		h.do(h.alice, "DELETE", pathSandboxes+"/"+id, "").want(t, 200)
		if got, err := read(); !errors.Is(err, io.EOF) {
			t.Fatalf("%q, %v", got, err)
		}
		<-l.closed
	})
	t.Run("node stops", func(t *testing.T) {
		h, id, _, read, l := follower(t)
		h.server.proxy.Drain()
		if got, err := read(); !errors.Is(err, io.EOF) {
			t.Fatalf("%q, %v", got, err)
		}
		<-l.closed
		h.do(h.alice, "GET", pathSandboxes+"/"+id+"/logs?follow=1", "").want(t, 503)
	})
}

func TestSandboxLogs_FollowersAreBounded(t *testing.T) {
	h, id, write, read, _ := follower(t, func(c *Config) { c.Proxy.MaxFollowers = 1 })
	if res := h.do(h.alice, "GET", pathSandboxes+"/"+id+"/logs?follow=1", "").want(t, 503); res.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	h.do(h.alice, "GET", pathSandboxes+"/"+id+"/logs", "").want(t, 200)
	write.Close()
	if _, err := read(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	until(t, "the follower's place is free", func() bool { return h.server.proxy.Load().Sessions == 0 })
}

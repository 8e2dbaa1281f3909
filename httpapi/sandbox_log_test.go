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
	// more is what a follower of stdout reads, moreErr of stderr; a test writes to the other ends.
	more, moreErr *io.PipeReader
	writeErr      *io.PipeWriter
	closed        chan struct{}
	// silent are the streams without output.
	silent map[string]bool
}

func (l *fakeLogs) Logs(_ context.Context, clusterID, sandboxID string, part LogPart) (io.ReadCloser, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asks = append(l.asks, sprint("%s %s %s %d %v", clusterID, sandboxID, part.Stream, part.Tail, part.Follow))
	switch {
	case l.err != nil:
		return nil, l.err
	case part.Follow && part.Stream == streamStderr:
		return l.moreErr, nil
	case part.Follow:
		return struct {
			io.Reader
			io.Closer
		}{l.more, closeFunc(sync.OnceFunc(func() { l.more.Close(); close(l.closed) }))}, nil
	case l.silent[part.Stream]:
		return io.NopCloser(strings.NewReader("")), nil
	case part.Previous:
		return io.NopCloser(strings.NewReader("earlier " + part.Stream + " of " + sandboxID)), nil
	}
	return io.NopCloser(strings.NewReader(part.Stream + " of " + sandboxID)), nil
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
	res := h.do(h.alice, "GET", path+"?stream=stdout", "").want(t, 200)
	if string(res.body) != "stdout of "+id || !strings.HasPrefix(res.header.Get("Content-Type"), "text/plain") {
		t.Fatalf("%s %s", res.header.Get("Content-Type"), res.body)
	}
	h.do(h.alice, "GET", path+"?stream=stderr&tail=100", "").want(t, 200)
	h.do(h.alice, "GET", path+"?stream=stdout&tail=0", "").want(t, 200)
	h.do(h.alice, "GET", path+"?tail=1048576&x=y&stream=stdout", "").want(t, 200)
	want := sprint("c1 %s stdout 65536 false\nc1 %s stderr 100 false\nc1 %s stdout 0 false\nc1 %s stdout 1048576 false",
		id, id, id, id)
	if got := strings.Join(l.asks, "\n"); got != want {
		t.Fatalf("asked\n%s\nwant\n%s", got, want)
	}
	for _, query := range []string{
		"?tail=1048577",
		"?tail=-1",
		"?tail=x",
		"?stream=both",
		"?follow=perhaps",
		"?run=first",
	} {
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

// TestSandboxLogs_BothStreams: without a stream the answer has what the task wrote to either, and
// says which is which where both have something. An agent server writes to stderr alone.
func TestSandboxLogs_BothStreams(t *testing.T) {
	for want, silent := range map[string][]string{
		"==> stdout <==\nstdout of ID\n==> stderr <==\nstderr of ID": nil,
		"stderr of ID": {streamStdout},
		"stdout of ID": {streamStderr},
		"":             {streamStdout, streamStderr},
	} {
		l := &fakeLogs{silent: map[string]bool{}}
		for _, one := range silent {
			l.silent[one] = true
		}
		h := newHarness(t, withLogs(l)).withSpec().raised()
		id := h.createSandbox(h.alice)
		want = strings.ReplaceAll(want, "ID", id)
		for _, got := range []reply{
			h.do(h.alice, "GET", pathSandboxes+"/"+id+"/logs",
				""), h.do(h.alice, "GET", pathSandboxes+"/"+id+"/logs?run=last", ""),
			h.do(h.root, "GET", pathOperator+"/sandboxes/"+id+"/logs?stream=all", ""),
		} {
			if got.status != 200 || string(got.body) != want {
				t.Errorf("%d %q, want %q", got.status, got.body, want)
			}
		}
	}
}

func TestSandboxLogs_OfThePreviousRun(t *testing.T) {
	l := &fakeLogs{}
	h := newHarness(t, withLogs(l)).withSpec()
	id := h.createSandbox(h.alice)
	path := pathSandboxes + "/" + id + "/logs?run=previous"
	if got := string(h.do(h.alice, "GET", path+"&stream=stderr", "").want(t, 200).body); got != "earlier stderr of "+id {
		t.Errorf("%q", got)
	}
	l.err = fsm.Errorf(fsm.CodeNotFound, "no earlier run")
	h.do(h.alice, "GET", path, "").want(t, 404).is(t,
		`{"detail":"The logs of an earlier run of the sandbox are not kept"}`)
}

// TestSandboxLogs_FollowBothStreams: whole lines of both come as they are written.
func TestSandboxLogs_FollowBothStreams(t *testing.T) {
	h, _, write, read, l := follower(t)
	writeErr := l.writeErr
	for _, step := range []struct {
		to   *io.PipeWriter
		text string
		want []string
	}{
		{writeErr, "listening\n", []string{"listening\n"}},
		{write, "hel", nil},
		{writeErr, "warning\n", []string{"warning\n"}},
		{write, "lo\nmore\n", []string{"\n", "==> stdout <==\n", "hello\n", "more\n"}},
		{writeErr, "end", nil},
	} {
		if _, err := io.WriteString(step.to, step.text); err != nil {
			t.Fatal(err)
		}
		for _, want := range step.want {
			if got, err := read(); got != want {
				t.Fatalf("%q, %v, want %q", got, err, want)
			}
		}
	}
	writeErr.Close() // one stream ends, its last line is not whole
	for _, want := range []string{"\n", "==> stderr <==\n"} {
		if got, err := read(); got != want {
			t.Fatalf("%q, %v, want %q", got, err, want)
		}
	}
	write.Close()
	if got, err := read(); got != "end" || !errors.Is(err, io.EOF) {
		t.Fatalf("%q, %v", got, err)
	}
	until(t, "the follower's place is free", func() bool { return h.server.proxy.Load().Sessions == 0 })
}

// TestSandboxLogs_AnOperatorFollows: the log of another user's sandbox goes on until the sandbox
// stops, or the operator's key does.
func TestSandboxLogs_AnOperatorFollows(t *testing.T) {
	for what, end := range map[string]func(*harness, string){
		"the sandbox is deleted": func(h *harness, id string) {
			h.do(h.alice, "DELETE", pathSandboxes+"/"+id,
				"").want(t, 200)
		},
		"the key is revoked": func(h *harness, _ string) { h.revoke(h.root) },
	} {
		t.Run(what, func(t *testing.T) {
			h, id, write, read, l := followerOf(t, func(h *harness, id string) (string, string) {
				return h.root, pathOperator + "/sandboxes/" + id + "/logs?follow=true"
			})
			for range 3 {
				if _, err := io.WriteString(write, "a line\n"); err != nil {
					t.Fatal(err)
				}
				if got, err := read(); got != "a line\n" {
					t.Fatalf("%q, %v", got, err)
				}
			}
			end(h, id)
			if got, err := read(); !errors.Is(err, io.EOF) {
				t.Fatalf("%q, %v", got, err)
			}
			<-l.closed
			if !strings.Contains(h.logs.String(), `"act":"follow logs"`) {
				t.Error("it is not in the log")
			}
		})
	}
}

// follower follows a log on a real connection.
func follower(
	t *testing.T,
	change ...func(*Config),
) (h *harness, id string, write *io.PipeWriter, read func() (string, error), l *fakeLogs) {
	t.Helper()
	return followerOf(t, func(h *harness, id string) (string, string) {
		return h.alice, pathSandboxes + "/" + id + "/logs?follow=true"
	}, change...)
}

// followerOf is follower with another key and path.
func followerOf(
	t *testing.T, of func(*harness, string) (key, path string), change ...func(*Config),
) (h *harness, id string, write *io.PipeWriter, read func() (string, error), l *fakeLogs) {
	t.Helper()
	reader, writer := io.Pipe()
	l = &fakeLogs{more: reader, closed: make(chan struct{})}
	l.moreErr, l.writeErr = io.Pipe()
	h = newHarness(t, append(change, withLogs(l))...).withSpec().raised()
	id = h.createSandbox(h.alice)
	h.observe(id, running())
	front := httptest.NewUnstartedServer(h.handler)
	front.Config.WriteTimeout = 300 * time.Millisecond
	front.Start()
	t.Cleanup(front.Close)
	key, path := of(h, id)
	req, err := http.NewRequestWithContext(t.Context(), "GET", front.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Session-API-Key", key)
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
	l.writeErr.Close()
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
	h, id, write, read, l := follower(t, func(c *Config) { c.Proxy.MaxFollowers = 1 })
	if res := h.do(h.alice, "GET", pathSandboxes+"/"+id+"/logs?follow=1",
		"").want(t, 503); res.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	h.do(h.alice, "GET", pathSandboxes+"/"+id+"/logs", "").want(t, 200)
	write.Close()
	l.writeErr.Close()
	if _, err := read(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	until(t, "the follower's place is free", func() bool { return h.server.proxy.Load().Sessions == 0 })
}

package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/access"
)

func logs(t *testing.T, r *Runner, stream string, tail int64) string {
	t.Helper()
	rc, err := r.Logs(ctx, testJob("s1"), scheduler.LogPart{Stream: stream, Tail: tail})
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	b, err := io.ReadAll(rc)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestLogs_OfATask(t *testing.T) {
	dir := t.TempDir()
	r := newRunner(t, dir, "talk")
	o := start(t, r, testJob("s1"))
	waitFor(t, "the output", func() bool { return logs(t, r, "stdout", -1) != "" && logs(t, r, "stderr", -1) != "" })
	for _, c := range []struct {
		stream string
		tail   int64
		want   string
	}{{"stdout", -1, "to stdout\n"}, {"stderr", -1, "to stderr\n"}, {"stdout", 4, "out\n"}, {"stdout", 0, ""}, {
		"stderr",
		1 << 40,
		"to stderr\n",
	}} {
		if got := logs(t, r, c.stream, c.tail); got != c.want {
			t.Errorf("%s, tail %d: %q, want %q", c.stream, c.tail, got, c.want)
		}
	}
	for name, c := range map[string]struct {
		job    scheduler.Job
		stream string
		code   fsm.Code
	}{
		"no sandbox": {testJob("other"), "stdout", fsm.CodeNotFound}, "stream": {testJob("s1"), "stdin", fsm.CodeInvalid},
		"another cluster's": {scheduler.Job{SandboxID: "s1", ClusterID: "c2"}, "stdout", fsm.CodeNotFound},
	} {
		if _, err := r.Logs(ctx, c.job, scheduler.LogPart{Stream: c.stream}); fsm.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}

	// A follower sees new output, and the end when the task is stopped.
	rc, err := r.Logs(ctx, testJob("s1"), scheduler.LogPart{Stream: "stdout", Tail: -1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	resp, err := client.Get(access.AgentURL(o.Placement) + "/?say=hello")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	want := "to stdout\nhello\n"
	b := make([]byte, len(want))
	if _, err := io.ReadFull(rc, b); err != nil || string(b) != want {
		t.Errorf("followed: %q, %v", b, err)
	}
	if err := r.Stop(ctx, nowJob(r, "s1")); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(rc); err != nil || len(rest) != 0 {
		t.Errorf("after the stop: %q, %v", rest, err)
	}
	if got := logs(t, r, "stdout", -1); got != want {
		t.Errorf("of a stopped task: %q", got)
	}
	// The logs survive the program and are deleted with the sandbox.
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = newRunner(t, dir, "talk")
	if got := logs(t, r, "stdout", -1); got != want {
		t.Errorf("after a restart: %q", got)
	}
	if err := r.Remove(ctx, nowJob(r, "s1")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Logs(ctx, testJob("s1"), scheduler.LogPart{Stream: "stdout"}); fsm.CodeOf(err) != fsm.CodeNotFound {
		t.Errorf("of a removed sandbox: %v", err)
	}
}

// TestLogs_OfThePreviousRun: a start begins a run, also after a restart of this program.
func TestLogs_OfThePreviousRun(t *testing.T) {
	dir := t.TempDir()
	r := newRunner(t, dir, "talk")
	previous := func(tail int64) (string, error) {
		rc, err := r.Logs(ctx, testJob("s1"), scheduler.LogPart{Stream: "stdout", Tail: tail, Previous: true})
		if err != nil {
			return "", err
		}
		defer rc.Close()
		b, err := io.ReadAll(rc)
		return string(b), err
	}
	begin := func(say string) {
		t.Helper()
		job := nowJob(r, "s1")
		o := start(t, r, job)
		resp, err := client.Get(access.AgentURL(o.Placement) + "/?say=" + say)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		waitFor(t, "the output", func() bool { return strings.HasSuffix(logs(t, r, "stdout", -1), say+"\n") })
		if err := r.Stop(ctx, nowJob(r, "s1")); err != nil {
			t.Fatal(err)
		}
		await(t, r, "s1", "its end", func(o scheduler.Observed) bool { return o.Live == 0 })
	}
	begin("one")
	if _, err := previous(-1); fsm.CodeOf(err) != fsm.CodeNotFound {
		t.Errorf("before the second run: %v", err)
	}
	begin("two")
	if got, err := previous(-1); got != "to stdout\none\n" || err != nil {
		t.Errorf("after the second run: %q, %v", got, err)
	}
	if got, err := previous(4); got != "one\n" || err != nil {
		t.Errorf("its end: %q, %v", got, err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = newRunner(t, dir, "talk")
	begin("three")
	if got, err := previous(-1); !strings.HasSuffix(got, "to stdout\ntwo\n") || err != nil {
		t.Errorf("after a restart: %q, %v", got, err)
	}
}

// TestStream_FollowersSeeEveryByteWhileFilesTurn: readers that keep up read a whole stream
// whose files are rotated many times.
func TestStream_FollowersSeeEveryByteWhileFilesTurn(t *testing.T) {
	s := newStream(filepath.Join(t.TempDir(), "log"), 200)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	const lines = 200
	turn := make(chan struct{})
	got := make(chan string, 2)
	for range 2 {
		rc := s.reader(ctx, 0, true)
		go func() {
			defer rc.Close()
			var all bytes.Buffer
			p := make([]byte, 7)
			seen := 0
			for {
				n, err := rc.Read(p)
				all.Write(p[:n])
				for ; seen < bytes.Count(all.Bytes(), []byte("\n")); seen++ {
					turn <- struct{}{}
				}
				if err != nil {
					got <- all.String()
					return
				}
			}
		}()
	}
	var want strings.Builder
	for i := range lines {
		line := fmt.Sprintf("line %d\n", i)
		want.WriteString(line)
		s.write([]byte(line))
		<-turn // both have read it
		<-turn
	}
	s.end()
	for range 2 {
		if text := <-got; text != want.String() {
			t.Errorf("read %d bytes, want %d", len(text), want.Len())
		}
	}
	if len(s.changed) != 0 || s.base == 0 {
		t.Error("the files did not turn")
	}
}

func TestStream_SlowReaderGoesOnWithTheOldestKept(t *testing.T) {
	s := newStream(filepath.Join(t.TempDir(), "log"), 10)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	slow := s.reader(ctx, -1, true)
	fixed := s.reader(ctx, -1, false)
	s.write([]byte("0123456789abcdefghijABCDEF"))
	s.end()
	if b, err := io.ReadAll(slow); err != nil || string(b) != "abcdefghijABCDEF" {
		t.Errorf("%q, %v", b, err)
	}
	if b, err := io.ReadAll(fixed); err != nil || len(b) != 0 {
		t.Errorf("beyond its end: %q, %v", b, err)
	}
	// Another program continues where this one ended.
	s = newStream(s.path, 10)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.write([]byte("GHIJ!"))
	r := s.reader(ctx, 12, true)
	s.end()
	if b, err := io.ReadAll(r); err != nil || string(b) != "ABCDEFGHIJ!" {
		t.Errorf("%q, %v", b, err)
	}
	// Missing files are the end of the stream.
	r = s.reader(ctx, -1, true)
	if err := os.Remove(s.former()); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); err != nil || len(b) != 0 {
		t.Errorf("gone: %q, %v", b, err)
	}
}

func TestStream_ReadsEndWithTheirCaller(t *testing.T) {
	s := newStream(filepath.Join(t.TempDir(), "log"), 10)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	defer s.end()
	read := func(r io.Reader) chan error {
		done := make(chan error, 1)
		go func() { _, err := r.Read(make([]byte, 1)); done <- err }()
		return done
	}
	closed := s.reader(ctx, 0, true)
	done := read(closed)
	for range 2 {
		if err := closed.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := <-done; !errors.Is(err, fs.ErrClosed) {
		t.Error(err)
	}
	c, cancel := context.WithCancel(ctx)
	done = read(s.reader(c, 0, true))
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestRunner_DeferredMember(t *testing.T) {
	r := newRunner(t, t.TempDir(), "serve")
	job := testJob("s1")
	job.Deferred = true
	job.Template.Env = map[string]string{
		"OH_SESSION_API_KEYS_0": "theirs",
		"SESSION_API_KEY":       "theirs",
		"OH_SESSION_API_KEYS":   `["theirs"]`,
		"GORACE":                "atexit_sleep_ms=0",
	}
	if err := r.Start(ctx, job); err != nil {
		t.Fatal(err)
	}
	dormant := func(o scheduler.Observed) bool {
		return o.Placement != nil && ask(o, "OH_DEFERRED_INIT") == "1" && ask(o, "OH_SECRET_KEY") == "SEALCANARY" &&
			ask(o, "OH_SESSION_API_KEYS_0")+ask(o, "OH_SESSION_API_KEYS")+ask(o, "SESSION_API_KEY") == ""
	}
	o := await(t, r, "s1", "a dormant task", dormant)
	// Its process ends. The next one is dormant, too.
	if err := syscall.Kill(pidOf(t, r, "s1"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	o = await(t, r, "s1", "another dormant task", func(n scheduler.Observed) bool {
		return n.Placement != nil && n.Placement.AllocID != o.Placement.AllocID && dormant(n)
	})
	// The same request again changes nothing. After a pause it is no longer a pool member.
	job.ModifyIndex = o.ModifyIndex
	if err := r.Start(ctx, job); err != nil || r.look("s1", "c1").ModifyIndex != o.ModifyIndex {
		t.Errorf("the same start again: %v", err)
	}
	if err := r.Stop(ctx, job); err != nil {
		t.Fatal(err)
	}
	o = await(t, r, "s1", "its end", func(n scheduler.Observed) bool { return n.Live == 0 })
	job.ModifyIndex, job.RevertTo, job.HasVersion, job.Deferred = o.ModifyIndex, 0, true, false
	o = start(t, r, job)
	if got := ask(o, "OH_DEFERRED_INIT"); got != "" {
		t.Errorf("after the pause: OH_DEFERRED_INIT=%s", got)
	}
}

func TestRunner_DeferredNeedsItsSecretKey(t *testing.T) {
	r := newRunner(t, t.TempDir(), "serve")
	r.cfg.Secrets = fakeSecrets{"sandboxes/x/session": {"key": testKey}}
	job := testJob("s1")
	job.Deferred = true
	var f *scheduler.Failure
	if err := r.Start(ctx, job); !errors.As(err, &f) || f.Reason != fsm.ReasonSecretStore {
		t.Error(err)
	}
}

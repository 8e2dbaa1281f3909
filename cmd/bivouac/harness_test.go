package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds every wait in these tests. It is generous because the machine may be busy;
// only a failure reaches it.
const patience = 90 * time.Second

// mainEnv makes the test binary behave as bivouac itself.
const mainEnv = "BIVOUAC_TEST_MAIN"

// TestMain lets the test binary act as the program: as child processes of the tests, and in the
// sandboxes that `bivouac dev` starts with its own binary.
func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" || (len(os.Args) > 1 && os.Args[1] == sandboxAgentName) {
		main()
	}
	os.Exit(m.Run())
}

// eventually polls check until it returns nil. After patience it fails the test with check's
// last error.
func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: not within %s: %v", what, patience, err)
		case <-tick.C:
		}
	}
}

// caller is a client of one node.
type caller struct {
	base, key string
	header    http.Header
	// follow is how long an answer that has no end is read.
	follow time.Duration
}

// answer is a node's response.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// json decodes the body into out.
func (a answer) json(t testing.TB, out any) {
	t.Helper()
	if err := json.Unmarshal(a.body, out); err != nil {
		t.Fatalf("the answer is not JSON: %v\n%s", err, a.body)
	}
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

// try sends one request. body is nil, a string that is sent unchanged, or a value that is sent
// as JSON.
func (c caller) try(method, path string, body any) (answer, error) {
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(b)
	default:
		enc, err := json.Marshal(b)
		if err != nil {
			return answer{}, err
		}
		reader = bytes.NewReader(enc)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, reader)
	if err != nil {
		return answer{}, err
	}
	for name, values := range c.header {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", "application/json")
	if c.key != "" {
		req.Header.Set("X-Session-API-Key", c.key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	if c.follow > 0 {
		defer time.AfterFunc(c.follow, cancel).Stop()
	}
	b, err := io.ReadAll(resp.Body)
	if c.follow > 0 && ctx.Err() != nil {
		err = nil
	}
	return answer{status: resp.StatusCode, header: resp.Header, body: b}, err
}

// do is try for a request that must have the given status.
func (c caller) do(t testing.TB, want int, method, path string, body any) answer {
	t.Helper()
	a, err := c.try(method, path, body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	if a.status != want {
		t.Fatalf("%s %s answered %s, want %d", method, path, a, want)
	}
	return a
}

// with returns a caller that also sends a header.
func (c caller) with(name, value string) caller {
	h := c.header.Clone()
	if h == nil {
		h = http.Header{}
	}
	h.Set(name, value)
	c.header = h
	return c
}

// buffer is a bytes.Buffer that is safe for concurrent use.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// runCommand runs a whole command line in this process.
func runCommand(t testing.TB, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runCommandWith(t, env, "", args...)
}

// runCommandWith is runCommand with an input.
func runCommandWith(
	t testing.TB,
	env map[string]string,
	stdin string,
	args ...string,
) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs buffer
	p := &program{
		stdin:  strings.NewReader(stdin),
		stdout: &out,
		stderr: &errs,
		getenv: func(name string) string { return env[name] },
	}
	code = p.run(t.Context(), args)
	return code, out.String(), errs.String()
}

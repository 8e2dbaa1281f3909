package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
)

const (
	// maxMessage bounds one message of a server, in bytes.
	maxMessage = 16 << 20
	// maxTools bounds the tools of one server.
	maxTools = 200
	// maxDescription bounds a tool's description, in bytes.
	maxDescription = 16 << 10
	// maxStderr is how much of the end of stderr is kept for the reason of a failure.
	maxStderr = 2 << 10
	// stopTime is how long a program may take to end after its stdin was closed.
	stopTime = time.Second
)

// server is one server. A session that ended is opened again by the next call.
type server struct {
	config
	options Options
	life    context.Context //nolint:containedctx // it ends when the conversation's servers are closed

	mu      sync.Mutex // held while a session is opened
	session *session   // nil without one
	closed  bool
}

// session is a connection with a server.
type session struct {
	client *sdk.ClientSession
	end    func() // ends the program or the requests; it may be called often
	ended  chan struct{}
}

// open connects and lists the tools.
func (s *server) open(ctx context.Context) ([]*tool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.StartTime)
	defer cancel()
	one, err := s.connected(ctx)
	if err != nil {
		return nil, err
	}
	var list []*tool
	for t, err := range one.client.Tools(ctx, nil) {
		if err != nil {
			s.drop(one)
			return nil, s.failure("it did not list its tools", err, ctx)
		}
		if len(list) == maxTools {
			break // the rest is left out: no model can choose among more
		}
		list = append(list, newTool(s, t))
	}
	return list, nil
}

// connected returns the session and opens it if there is none.
func (s *server) connected(ctx context.Context) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the conversation's servers are closed")
	}
	if s.session != nil {
		select {
		case <-s.session.ended:
			s.session.end()
			s.session = nil
		default:
			return s.session, nil
		}
	}
	// The session outlives this call; only its start is bound to ctx.
	life, cut := context.WithCancel(s.life)
	transport, end, about, err := s.transport(life, cut)
	if err != nil {
		cut()
		return nil, err
	}
	unbind := context.AfterFunc(ctx, end)
	c := sdk.NewClient(&sdk.Implementation{Name: "bivouac", Version: "1"},
		&sdk.ClientOptions{Capabilities: &sdk.ClientCapabilities{}})
	client, err := c.Connect(life, transport, nil)
	if !unbind() && err == nil {
		err = context.Cause(ctx)
		_ = client.Close() // it was cut
	}
	if err != nil {
		end()
		return nil, s.failure("it did not start", errors.Join(err, about()), ctx)
	}
	one := &session{client: client, end: end, ended: make(chan struct{})}
	go func() {
		_ = client.Wait() // why it ended is in the calls
		end()
		close(one.ended)
	}()
	s.session = one
	return one, nil
}

// drop ends a session that can't be used any more.
func (s *server) drop(one *session) {
	one.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == one {
		s.session = nil
	}
}

// abandon drops the present session: a call of it did not return.
func (s *server) abandon() {
	s.mu.Lock()
	one := s.session
	s.mu.Unlock()
	if one != nil {
		s.drop(one)
	}
}

func (s *server) close() {
	s.mu.Lock()
	one := s.session
	s.session, s.closed = nil, true
	s.mu.Unlock()
	if one != nil {
		one.close()
	}
}

// close ends a session, and tells an HTTP server so if it listens.
func (one *session) close() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = one.client.Close() // the session ends in any case
	}()
	select {
	case <-done:
	case <-time.After(stopTime):
	}
	one.end()
	<-done
}

// failure is an error without secrets.
func (s *server) failure(what string, err error, ctx context.Context) error {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return fmt.Errorf("%s in time", what)
	}
	return fmt.Errorf("%s: %s", what, cut(s.masked(err.Error()), maxStderr))
}

// transport returns the way to the server, a function that ends it, and what else is known of why it
// failed. cancel ends life, and with it the connection's requests.
func (s *server) transport(
	life context.Context,
	cancel context.CancelFunc,
) (sdk.Transport, func(), func() error, error) {
	if s.kind() == "stdio" {
		return s.program(cancel)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	client := &http.Client{Transport: &caller{base: transport, life: life, headers: s.Headers, origin: originOf(s.URL)}}
	end := sync.OnceFunc(func() { cancel(); transport.CloseIdleConnections() })
	nothing := func() error { return nil }
	if s.kind() == "sse" {
		return &sdk.SSEClientTransport{Endpoint: s.URL, HTTPClient: client, MaxEventSize: maxMessage}, end, nothing, nil
	}
	return &sdk.StreamableClientTransport{
		Endpoint:             s.URL,
		HTTPClient:           client,
		MaxEventSize:         maxMessage,
		DisableStandaloneSSE: true,
		MaxRetries:           2,
	}, end, nothing, nil
}

// caller adds the configured headers to requests to the configured server, and bounds answers.
type caller struct {
	base    http.RoundTripper
	life    context.Context //nolint:containedctx // requests end with it
	headers map[string]string
	origin  string
}

func originOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// RoundTrip implements http.RoundTripper.
func (c *caller) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme+"://"+r.URL.Host == c.origin { // no other server gets the key, after a redirect neither
		r = r.Clone(r.Context())
		for name, v := range c.headers {
			r.Header.Set(name, v)
		}
	}
	ctx, cancel := context.WithCancel(r.Context())
	unbind := context.AfterFunc(c.life, cancel)
	resp, err := c.base.RoundTrip(r.WithContext(ctx))
	if err != nil {
		unbind()
		cancel()
		return nil, err
	}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxMessage)
	}
	resp.Body = &body{resp.Body, func() { unbind(); cancel() }}
	return resp, nil
}

// body is an answer that frees its request.
type body struct {
	io.ReadCloser
	free func()
}

// Close implements io.Closer.
func (b *body) Close() error {
	defer b.free()
	return b.ReadCloser.Close()
}

// program starts a program that is spoken to over its stdin and stdout.
func (s *server) program(cancel context.CancelFunc) (sdk.Transport, func(), func() error, error) {
	dir := s.options.WorkingDir
	if s.Cwd != "" {
		dir = s.Cwd
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(s.options.WorkingDir, dir)
		}
	}
	environ := s.options.Environ
	for name, v := range s.Env {
		environ = append(environ[:len(environ):len(environ)], name+"="+v)
	}
	path, err := tools.LookPath(s.Command, dir, environ)
	if err != nil {
		return nil, nil, nil, err
	}
	cmd := exec.Command(path, s.Args...)
	cmd.Dir = dir
	tree := tools.NewTree(cmd, environ, s.options.Credential)
	errText := &tail{}
	cmd.Stderr = errText
	cmd.WaitDelay = stopTime
	// Files of our own: Wait closes those of exec before the last answer is read.
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, errors.Join(err, inR.Close(), inW.Close())
	}
	cmd.Stdin, cmd.Stdout = inR, outW
	err = cmd.Start()
	inR.Close()
	outW.Close()
	if err != nil {
		return nil, nil, nil, errors.Join(fmt.Errorf("it can't be started: %w", err), inW.Close(), outR.Close())
	}
	exited := make(chan struct{})
	var exit error
	go func() {
		exit = tree.Wait()
		close(exited)
	}()
	end := sync.OnceFunc(func() {
		inW.Close()
		select {
		case <-exited:
		case <-time.After(stopTime):
		}
		tree.Kill()
		<-exited
		outR.Close()
		cancel()
	})
	about := func() error {
		select {
		case <-exited:
		case <-time.After(stopTime):
			return nil
		}
		if text := strings.TrimSpace(errText.String()); text != "" {
			return errors.New(text)
		}
		return exit
	}
	return &sdk.IOTransport{Reader: outR, Writer: inW, MaxLineLength: maxMessage}, end, about, nil
}

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p[max(0, len(p)-maxStderr):]...)
	t.b = bytes.Clone(t.b[max(0, len(t.b)-maxStderr):])
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.b), "\uFFFD")
}

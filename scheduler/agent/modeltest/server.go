package modeltest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Protocol is one vendor's protocol.
type Protocol struct {
	Name string
	// Routes are patterns of http.ServeMux.
	Routes []string
	// Key returns the key that a request bears.
	Key func(*http.Request) string
	// Parse fills Model, Stream, Messages and Tools. Its error is answered with 400, in the
	// protocol's words.
	Parse func(*http.Request, *Request) error
	// Whole is the body of an answer that is not streamed.
	Whole func(Request, Answer) any
	// Chunks are the server-sent events of an answer that is streamed, the last one included.
	Chunks func(Request, Answer) []Chunk
	// Error is the body of an error.
	Error func(status int, code, message string) any
}

// Chunk is one server-sent event. An empty Event leaves the event's name out.
type Chunk struct{ Event, Data string }

// Server serves a script. Its methods may be called from any goroutine.
type Server struct {
	address string // host and port, kept while it is down

	mu       sync.Mutex
	script   *Script
	requests []*Request
	arrived  chan struct{} // closed and replaced with every request
	http     *http.Server
	listener net.Listener
}

// New serves a script on a free loopback port until the test ends.
func New(tb testing.TB, script *Script) *Server {
	tb.Helper()
	s, err := Start("127.0.0.1:0", script)
	if err != nil {
		tb.Fatalf("modeltest: %v", err)
	}
	tb.Cleanup(s.Down)
	return s
}

// Start serves a script at an address until Down. An error says what is wrong with the script or
// the address.
func Start(address string, script *Script) (*Server, error) {
	if err := script.check(); err != nil {
		return nil, err
	}
	s := &Server{address: address, script: script, arrived: make(chan struct{})}
	return s, s.Up()
}

// Up serves again after Down, at the same address.
func (s *Server) Up() error {
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", s.address)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.address = l.Addr().String()
	s.listener = l
	s.http = &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	go s.http.Serve(l) //nolint:errcheck // it ends with Down, and a test sees a server that is gone
	return nil
}

// Down closes the listener and every connection: the next request is refused.
func (s *Server) Down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener.Close() // Serve may not have begun, and then Close does not know it
	s.http.Close()
}

// URL is the server's root, such as http://127.0.0.1:40001.
func (s *Server) URL() string { return "http://" + s.address }

// BaseURL is the base of OpenAI's protocols: the root and /v1.
func (s *Server) BaseURL() string { return s.URL() + "/v1" }

// SetScript replaces the script.
func (s *Server) SetScript(script *Script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = script
}

// Requests returns the requests so far, those without the right key included.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Request, len(s.requests))
	for i, r := range s.requests {
		list[i] = *r
	}
	return list
}

// Wait waits until n requests have arrived, or until ctx ends.
func (s *Server) Wait(ctx context.Context, n int) error {
	for {
		s.mu.Lock()
		have, arrived := len(s.requests), s.arrived
		s.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d requests arrived: %w", have, n, ctx.Err())
		}
	}
}

// protocols are those that are served.
func protocols() []Protocol { return []Protocol{chat(), responses(), anthropic(), gemini()} }

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	for _, p := range protocols() {
		for _, route := range p.Routes {
			mux.HandleFunc(route, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, p) })
		}
	}
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("GET /requests", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, s.Requests())
	})
	return mux
}

// models lists the script's models as OpenAI does.
func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	script := s.script
	s.mu.Unlock()
	p := chat()
	if script.Key != "" && p.Key(r) != script.Key {
		writeProblem(w, p, problems[Unauthorized])
		return
	}
	data := []any{}
	for _, m := range script.Models {
		one := map[string]any{"id": m, "object": "model", "created": 0, "owned_by": "modeltest"}
		if script.Window > 0 {
			one["max_model_len"] = script.Window
		}
		data = append(data, one)
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": data})
}

// serve answers one request of a protocol.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, p Protocol) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	req := &Request{Protocol: p.Name, Path: r.URL.RequestURI(), Header: r.Header.Clone(), Body: body, Key: p.Key(r)}
	bad := p.Parse(r, req)
	answer, refused := s.choose(req, bad)
	status := &statusWriter{ResponseWriter: w}
	defer func() {
		gone := r.Context().Err() != nil
		s.mu.Lock()
		req.Status, req.Gone = status.status, gone
		s.mu.Unlock()
	}()
	if refused != nil {
		writeProblem(status, p, *refused)
		return
	}
	if answer.Hold != nil {
		select {
		case <-answer.Hold:
		case <-r.Context().Done():
			return
		}
	}
	respond(status, r, p, *req, answer)
}

// choose records a request and chooses its answer, or says why it is refused.
func (s *Server) choose(req *Request, bad error) (Answer, *problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, req)
	req.Number = len(s.requests)
	close(s.arrived)
	s.arrived = make(chan struct{})
	if s.script.Key != "" && req.Key != s.script.Key {
		p := problems[Unauthorized]
		return Answer{}, &p
	}
	if bad != nil {
		return Answer{}, &problem{http.StatusBadRequest, "invalid_request_error", bad.Error()}
	}
	if m := s.script.Models; len(m) > 0 && !slices.Contains(m, req.Model) {
		return Answer{}, &problem{
			http.StatusNotFound,
			"model_not_found",
			fmt.Sprintf("The model `%s` does not exist.", req.Model),
		}
	}
	a, ok := s.script.answer(*req)
	if !ok {
		return Answer{}, &problem{
			http.StatusBadRequest,
			"invalid_request_error",
			"The script has no answer to: " + req.LastUser(),
		}
	}
	a.Calls = slices.Clone(a.Calls)
	for i := range a.Calls {
		if a.Calls[i].ID == "" {
			a.Calls[i].ID = "call_" + strconv.Itoa(req.Number) + "_" + strconv.Itoa(i+1)
		}
	}
	return a, nil
}

// respond gives the answer, or its fault.
func respond(w http.ResponseWriter, r *http.Request, p Protocol, req Request, a Answer) {
	f := a.Fault
	if f.is(Slow) && !wait(r.Context(), f.delay()) {
		return
	}
	if f.is(Hangup) {
		panic(http.ErrAbortHandler)
	}
	if problem, is := f.problem(w.Header()); is {
		writeProblem(w, p, problem)
		return
	}
	if req.Stream {
		stream(w, r, p, req, a)
		return
	}
	switch {
	case f.is(Garbage):
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, "<html>502 Bad Gateway</html>")
	case f.is(Empty):
		writeJSON(w, http.StatusOK, map[string]any{})
	case f.is(StreamError):
		writeProblem(w, p, problems[ServerError])
	case f.is(Truncated), f.is(Cut):
		whole := mustJSON(p.Whole(req, a))
		w.Header().Set("Content-Type", "application/json")
		if f.is(Truncated) {
			w.Header().Set("Content-Length", strconv.Itoa(len(whole)))
		}
		fmt.Fprintf(w, "%s", whole[:len(whole)/2])
	default:
		writeJSON(w, http.StatusOK, p.Whole(req, a))
	}
}

// stream writes the answer as server-sent events.
func stream(w http.ResponseWriter, r *http.Request, p Protocol, req Request, a Answer) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	flush.Flush() //nolint:errcheck // a client that is gone ends the request's context
	chunks, cut := a.Fault.chunks(p.Chunks(req, a), p)
	for _, c := range chunks {
		if a.Fault.is(SlowChunks) && !wait(r.Context(), a.Fault.delay()) {
			return
		}
		if c.Event != "" {
			fmt.Fprintf(w, "event: %s\n", c.Event)
		}
		fmt.Fprintf(w, "data: %s\n\n", c.Data)
		if errors.Is(flush.Flush(), net.ErrClosed) || r.Context().Err() != nil {
			return
		}
	}
	if cut {
		panic(http.ErrAbortHandler)
	}
}

// wait pauses. False means that the client is gone.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// statusWriter remembers the status.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(b []byte) (int, error) {
	w.status = cmp.Or(w.status, http.StatusOK)
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController flush.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func writeProblem(w http.ResponseWriter, p Protocol, problem problem) {
	writeJSON(w, problem.status, p.Error(problem.status, problem.code, problem.message))
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, "%s", mustJSON(body))
}

// mustJSON marshals what this package made.
func mustJSON(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

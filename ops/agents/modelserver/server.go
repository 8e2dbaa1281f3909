package modelserver

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Request is a request as the server got it.
type Request struct {
	// Number counts the requests of one server, from 1.
	Number   int
	Body     map[string]any
	Header   http.Header
	Messages []Message
	Tools    []string
}

// Message is one message of a request.
type Message struct {
	Role string
	Text string
	// Pictures are the addresses of the message's pictures.
	Pictures  []string
	Calls     []Call
	CallID    string
	Reasoning bool
	// Thought is what only the thought's maker knows: it with its signature, or its encrypted content.
	Thought string
	// Empty reports that there is neither a text nor a call.
	Empty bool
}

// Call is one call of a tool.
type Call struct {
	ID, Name string
	// Arguments are the text of a JSON object.
	Arguments string
}

// Has reports whether the request has a member that is not null.
func (r *Request) Has(member string) bool { return r.Body[member] != nil }

// Streams reports whether a stream is asked for.
func (r *Request) Streams() bool { return r.Body["stream"] == true }

// Any reports whether a message is as f says.
func (r *Request) Any(f func(Message) bool) bool { return slices.ContainsFunc(r.Messages, f) }

// Refusal is an answer that refuses the request.
type Refusal struct {
	Status int
	Body   string
}

// refuse is a refusal in OpenAI's form.
func refuse(status int, format string, args ...any) *Refusal {
	return &Refusal{status, asJSON(map[string]any{"error": map[string]any{
		"message": fmt.Sprintf(format, args...), "type": "invalid_request_error", "param": nil, "code": nil,
	}})}
}

// flat is a refusal in the form of vLLM and Mistral.
func flat(status int, format string, args ...any) *Refusal {
	return &Refusal{status, asJSON(map[string]any{
		"object": "error", "message": fmt.Sprintf(format, args...), "type": "BadRequestError", "code": status,
	})}
}

// Server shows one behaviour.
type Server struct {
	URL string

	behaviour Behaviour
	mu        sync.Mutex
	requests  []*Request
}

// New serves a behaviour on a loopback port until the test ends.
func New(tb testing.TB, b Behaviour) *Server {
	tb.Helper()
	s := &Server{behaviour: b}
	h := httptest.NewServer(http.HandlerFunc(s.serve))
	tb.Cleanup(h.Close)
	s.URL = h.URL + "/v1"
	return s
}

// Requests is how many requests there were.
func (s *Server) Requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

func (s *Server) serve(w http.ResponseWriter, hr *http.Request) {
	api := s.behaviour.API
	if api == "" {
		api = Completions
	}
	if hr.URL.Path != "/v1"+api.path() {
		if s.behaviour.Elsewhere != nil {
			write(w, s.behaviour.Elsewhere)
			return
		}
		http.NotFound(w, hr)
		return
	}
	body, err := io.ReadAll(hr.Body)
	if err != nil {
		return
	}
	r, err := parse(api, hr.Header, body)
	if err != nil {
		write(w, refuse(http.StatusBadRequest, "%v", err))
		return
	}
	s.mu.Lock()
	s.requests = append(s.requests, r)
	r.Number = len(s.requests)
	s.mu.Unlock()
	if f := s.behaviour.Refuse; f != nil {
		if refusal := f(r); refusal != nil {
			write(w, refusal)
			return
		}
	}
	a := &Reply{W: w, R: r, gone: hr.Context().Done()}
	a.stream = a.streamOf(api)
	a.plan(s.behaviour.Text)
	if s.behaviour.Answer != nil {
		s.behaviour.Answer(a)
		return
	}
	a.Good()
}

func write(w http.ResponseWriter, r *Refusal) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(r.Status)
	fmt.Fprint(w, r.Body)
}

// parse reads a request. Like every server, it takes a call without its result for an error.
func parse(api API, header http.Header, body []byte) (*Request, error) {
	r := &Request{Header: header}
	err := json.Unmarshal(body, &r.Body)
	if err != nil {
		return nil, err
	}
	switch api {
	case Messages:
		err = parseMessages(r, body)
	case Responses:
		err = parseResponses(r, body)
	case Completions:
		err = parseChat(r, body)
	}
	if err != nil {
		return nil, err
	}
	return r, paired(r.Messages)
}

func parseChat(r *Request, body []byte) error {
	var typed struct {
		Messages []struct {
			Role      string          `json:"role"`
			Content   json.RawMessage `json:"content"`
			Reasoning string          `json:"reasoning_content"`
			CallID    string          `json:"tool_call_id"`
			Calls     []struct {
				ID       string `json:"id"`
				Function struct {
					Name      string `json:"name"`
					Arguments string `json:"arguments"`
				} `json:"function"`
			} `json:"tool_calls"`
		} `json:"messages"`
		Tools []struct {
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(body, &typed); err != nil {
		return err
	}
	for _, t := range typed.Tools {
		r.Tools = append(r.Tools, t.Function.Name)
	}
	for _, m := range typed.Messages {
		one := Message{Role: m.Role, CallID: m.CallID, Reasoning: m.Reasoning != ""}
		one.Text, one.Pictures = contents(m.Content)
		for _, c := range m.Calls {
			one.Calls = append(one.Calls, Call{c.ID, c.Function.Name, c.Function.Arguments})
		}
		one.Empty = one.Text == "" && len(one.Pictures) == 0
		r.Messages = append(r.Messages, one)
	}
	return nil
}

func contents(raw json.RawMessage) (text string, pictures []string) {
	if len(raw) == 0 || json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var parts []struct {
		Text  string `json:"text"`
		Image struct {
			URL string `json:"url"`
		} `json:"image_url"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return "", nil
	}
	for _, p := range parts {
		text += p.Text
		if p.Image.URL != "" {
			pictures = append(pictures, p.Image.URL)
		}
	}
	return text, pictures
}

// paired reports a call without a result and arguments that are no object.
func paired(messages []Message) error {
	open := map[string]bool{}
	for i, m := range messages {
		if m.Role == "tool" {
			if !open[m.CallID] {
				return fmt.Errorf("messages[%d]: no open call has the id %q", i, m.CallID)
			}
			delete(open, m.CallID)
			continue
		}
		if len(open) > 0 {
			return fmt.Errorf("messages[%d]: tool_call_ids without a response before it", i)
		}
		for _, c := range m.Calls {
			var object map[string]any
			if json.Unmarshal([]byte(c.Arguments), &object) != nil || object == nil {
				return fmt.Errorf("messages[%d]: the arguments of %s are no object: %s", i, c.Name, c.Arguments)
			}
			open[c.ID] = true
		}
	}
	return nil
}

//nolint:gochecknoglobals // compiled once, read-only
var directory = regexp.MustCompile(`The working directory is (\S+)`)

// where is the directory that the prompt names.
func (r *Request) where() string {
	for _, m := range r.Messages {
		if found := directory.FindStringSubmatch(m.Text); found != nil {
			return found[1]
		}
	}
	return "/nowhere"
}

// written reports whether a result after the task says that the file is there.
func (r *Request) written() bool {
	begun := false
	for _, m := range r.Messages {
		isResult := m.Role == "tool" || strings.Contains(m.Text, "EXECUTION RESULT of [")
		if begun && isResult && strings.Contains(m.Text, "created successfully at: ") &&
			strings.Contains(m.Text, "/"+File) {
			return true
		}
		begun = begun || strings.Contains(m.Text, Task)
	}
	return false
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // what this package makes encodes
	}
	return string(b)
}

package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// Patience bounds every wait. It is generous, because the machine may be busy,
// and is reached by a failure only.
const Patience = 90 * time.Second

// Eventually waits until check returns nil, asking again and again, and fails
// the test with check's last word when Patience ends.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	if err := Await(Patience, check); err != nil {
		t.Fatalf("%s: not within %s: %v", what, Patience, err)
	}
}

// Await is Eventually with another patience and without a test: it gives
// check's last error when the time is over.
func Await(patience time.Duration, check func() error) error {
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-deadline:
			return err
		case <-tick.C:
		}
	}
}

// Client speaks to one node, or to one sandbox's agent server.
type Client struct {
	Base, Key string
	// HTTP makes the requests; nil is http.DefaultClient, which repeats one with
	// an Idempotency-Key by itself when its connection breaks.
	HTTP *http.Client
}

// Answer is what came back.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// String shows the answer in a failure's message.
func (a Answer) String() string { return fmt.Sprintf("%d %s", a.Status, a.Body) }

// Decode reads the body of an answer that must be a 2xx.
func (a Answer) Decode(out any) error {
	if a.Status/100 != 2 {
		return errors.New(a.String())
	}
	return json.Unmarshal(a.Body, out)
}

// Try makes one request; in is sent as JSON unless nil. header is pairs of
// names and values.
func (c Client) Try(method, path string, in any, header ...string) (Answer, error) {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return Answer{}, err
		}
		body = bytes.NewReader(raw)
	}
	return c.send(method, path, body, append([]string{"Content-Type", "application/json"}, header...))
}

func (c Client) send(method, path string, body io.Reader, header []string) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.Base+path, body)
	if err != nil {
		return Answer{}, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if c.Key != "" {
		req.Header.Set("X-Session-API-Key", c.Key)
	}
	resp, err := cmp.Or(c.HTTP, http.DefaultClient).Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return Answer{Status: resp.StatusCode, Header: resp.Header, Body: raw}, err
}

// Sure makes the request until it succeeds, as a client with retries does: the
// same Idempotency-Key each time, so that it happens once. out takes the body
// and may be nil. A refusal (4xx but 429) fails the test.
func (c Client) Sure(t testing.TB, method, path string, in, out any) {
	t.Helper()
	key := fmt.Sprintf("drill-%d", time.Now().UnixNano())
	Eventually(t, method+" "+path+" on "+c.Base, func() error {
		a, err := c.Try(method, path, in, "Idempotency-Key", key)
		switch {
		case err != nil:
			return err
		case a.Status/100 == 4 && a.Status != http.StatusTooManyRequests && a.Status != http.StatusConflict:
			t.Fatalf("%s %s on %s: %s", method, path, c.Base, a)
		case a.Status/100 != 2:
			return errors.New(a.String())
		case out != nil:
			return json.Unmarshal(a.Body, out)
		}
		return nil
	})
}

// Sandbox is the part of a SandboxInfo (api-contract.md A.7) that is used here.
type Sandbox struct {
	ID            string  `json:"id"`
	SpecID        string  `json:"sandbox_spec_id"`
	Status        string  `json:"status"`
	StatusDetail  *string `json:"status_detail"`
	SessionAPIKey *string `json:"session_api_key"`
	ExposedURLs   []struct {
		Name string `json:"name"`
		URL  string `json:"url"`
	} `json:"exposed_urls"`
}

// Detail is the status_detail, "" for none.
func (s Sandbox) Detail() string {
	if s.StatusDetail == nil {
		return ""
	}
	return *s.StatusDetail
}

// Inside gives a client of the sandbox's agent server.
func (s Sandbox) Inside() Client {
	c := Client{}
	if s.SessionAPIKey != nil {
		c.Key = *s.SessionAPIKey
	}
	for _, u := range s.ExposedURLs {
		if u.Name == "AGENT_SERVER" {
			c.Base = u.URL
		}
	}
	return c
}

// ErrGone: the node does not know the sandbox (any more).
var ErrGone = errors.New("no such sandbox")

// Sandbox reads one.
func (c Client) Sandbox(id string) (Sandbox, error) {
	a, err := c.Try(http.MethodGet, "/api/v1/sandboxes?id="+url.QueryEscape(id), nil)
	if err != nil {
		return Sandbox{}, err
	}
	var list []*Sandbox
	if err := a.Decode(&list); err != nil {
		return Sandbox{}, err
	}
	if len(list) != 1 || list[0] == nil {
		return Sandbox{}, fmt.Errorf("%w: %s", ErrGone, id)
	}
	return *list[0], nil
}

// AwaitSandbox waits until the sandbox has the status.
func (c Client) AwaitSandbox(t testing.TB, id, status string) (sb Sandbox) {
	t.Helper()
	Eventually(t, "sandbox "+id+" is "+status, func() (err error) {
		if sb, err = c.Sandbox(id); err == nil && sb.Status != status {
			err = fmt.Errorf("it is %s (%s)", sb.Status, sb.Detail())
		}
		return err
	})
	return sb
}

// StartSandbox starts one of the spec ("" for the default) and gives its id.
func (c Client) StartSandbox(t testing.TB, spec string) string {
	t.Helper()
	return c.NewSandbox(t, spec).ID
}

// NewSandbox is StartSandbox, and gives the whole answer.
func (c Client) NewSandbox(t testing.TB, spec string) (sb Sandbox) {
	t.Helper()
	path := "/api/v1/sandboxes"
	if spec != "" {
		path += "?sandbox_spec_id=" + url.QueryEscape(spec)
	}
	c.Sure(t, http.MethodPost, path, nil, &sb)
	return sb
}

// Change asks for "pause" or "resume" of a sandbox, or "delete".
func (c Client) Change(t testing.TB, id, what string) {
	t.Helper()
	method, path := http.MethodPost, "/api/v1/sandboxes/"+id+"/"+what
	if what == "delete" {
		method, path = http.MethodDelete, "/api/v1/sandboxes/"+id
	}
	Eventually(t, what+" of "+id, func() error {
		a, err := c.Try(method, path, nil)
		if err == nil && a.Status/100 != 2 && (what != "delete" || a.Status != http.StatusNotFound) {
			err = errors.New(a.String())
		}
		return err
	})
}

// StartTask is the part of an AppConversationStartTask (A.5) that is used here.
type StartTask struct {
	ID             string  `json:"id"`
	Status         string  `json:"status"`
	Detail         *string `json:"detail"`
	ConversationID *string `json:"app_conversation_id"`
	SandboxID      *string `json:"sandbox_id"`
}

// StartConversation creates a conversation and gives its start task's id.
func (c Client) StartConversation(t testing.TB) string {
	t.Helper()
	var task StartTask
	c.Sure(t, http.MethodPost, "/api/v1/app-conversations", map[string]any{
		"initial_message": map[string]any{"content": []any{map[string]string{"type": "text", "text": "hello"}}},
	}, &task)
	return task.ID
}

// AwaitTask waits until the start task is READY.
func (c Client) AwaitTask(t testing.TB, id string) (task StartTask) {
	t.Helper()
	Eventually(t, "start task "+id+" is READY", func() error {
		a, err := c.Try(http.MethodGet, "/api/v1/app-conversations/start-tasks?ids="+id, nil)
		if err != nil {
			return err
		}
		var list []*StartTask
		if err := a.Decode(&list); err != nil {
			return err
		}
		if len(list) != 1 || list[0] == nil {
			return fmt.Errorf("no start task %s: %s", id, a)
		}
		task = *list[0]
		if task.Status == "ERROR" {
			t.Fatalf("start task %s ended in ERROR: %s", id, a.Body)
		}
		if task.Status != "READY" {
			return fmt.Errorf("it is %s: %s", task.Status, a.Body)
		}
		return nil
	})
	return task
}

// Count gives how many items a list endpoint shows, lists as they are or pages
// of up to a hundred.
func (c Client) Count(path string) (int, error) {
	a, err := c.Try(http.MethodGet, path, nil)
	if err != nil {
		return 0, err
	}
	var page struct{ Items []json.RawMessage }
	if bytes.HasPrefix(bytes.TrimSpace(a.Body), []byte("[")) {
		err := a.Decode(&page.Items)
		return len(page.Items), err
	}
	err = a.Decode(&page)
	return len(page.Items), err
}

// WriteFile writes a file in a RUNNING sandbox.
func (s Sandbox) WriteFile(path, content string) error {
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	part, err := w.CreateFormFile("file", "file")
	if err == nil {
		_, err = part.Write([]byte(content))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	a, err := s.Inside().send(http.MethodPost, "/api/file/upload?path="+url.QueryEscape(path), &buf, []string{"Content-Type", w.FormDataContentType()})
	if err == nil && a.Status/100 != 2 {
		err = errors.New(a.String())
	}
	return err
}

// ReadFile reads a file in a RUNNING sandbox.
func (s Sandbox) ReadFile(path string) (string, error) {
	a, err := s.Inside().Try(http.MethodGet, "/api/file/download?path="+url.QueryEscape(path), nil)
	if err == nil && a.Status/100 != 2 {
		err = errors.New(a.String())
	}
	return string(a.Body), err
}

// WorkspaceDir asks a RUNNING sandbox where its workspace is. Where a command
// starts is no answer: that may be the directory of one allocation.
func (s Sandbox) WorkspaceDir() (string, error) {
	if s.SpecID == "docker" {
		return "/workspace", nil // and no shell to ask
	}
	a, err := s.Inside().Try(http.MethodPost, "/api/bash/execute_bash_command", map[string]any{"command": `dirname "$OH_CONVERSATIONS_PATH"`})
	if err != nil {
		return "", err
	}
	var out struct {
		Stdout *string `json:"stdout"`
	}
	if err := a.Decode(&out); err != nil {
		return "", err
	}
	if out.Stdout == nil {
		return "", errors.New("dirname printed nothing: " + string(a.Body))
	}
	return strings.TrimSpace(*out.Stdout), nil
}

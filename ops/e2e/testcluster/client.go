package testcluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/httpapi/client"
)

// Patience bounds every wait. It is generous because the machine may be busy; only a failure
// reaches it.
const Patience = 90 * time.Second

// Eventually polls check until it returns nil. After Patience it fails the test with check's
// last error.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	if err := Await(Patience, check); err != nil {
		t.Fatalf("%s: not within %s: %v", what, Patience, err)
	}
}

// Await polls check until it returns nil. After patience it returns check's last error. Long waits
// poll less often, since the polling itself would keep the nodes, Nomad and Vault busy: they end
// 5 % late, and at most 100 ms.
func Await(patience time.Duration, check func() error) error {
	begin := time.Now()
	return poll(patience, func() time.Duration {
		return min(max(time.Since(begin)/20, 20*time.Millisecond), 100*time.Millisecond)
	}, check)
}

// Poll is Await with one interval.
func Poll(patience, interval time.Duration, check func() error) error {
	return poll(patience, func() time.Duration { return interval }, check)
}

func poll(patience time.Duration, interval func() time.Duration, check func() error) error {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-deadline.C:
			return err
		case <-time.After(interval()):
		}
	}
}

// Pause waits until d has passed or ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Client is a client of one node, or of one sandbox's agent server.
type Client struct {
	Base, Key string
	// HTTP sends the requests. nil is http.DefaultClient, which retries a request with an
	// Idempotency-Key by itself when its connection breaks.
	HTTP *http.Client
}

// Answer is a response.
type Answer = client.Response

// Try sends one request. in is sent as JSON unless it is nil or an io.Reader. header has pairs of
// names and values.
func (c Client) Try(method, path string, in any, header ...string) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return c.Send(ctx, method, path, in, header...)
}

// Send is Try until ctx ends.
func (c Client) Send(ctx context.Context, method, path string, in any, header ...string) (Answer, error) {
	api := client.Client{Address: c.Base, Key: c.Key, HTTP: cmp.Or(c.HTTP, http.DefaultClient)}
	return api.Send(ctx, method, path, in, header...)
}

// Do sends a request that must succeed, and decodes the response into out, which may be nil.
func (c Client) Do(method, path string, in, out any, header ...string) error {
	a, err := c.Try(method, path, in, header...)
	if err != nil {
		return err
	}
	return a.Decode(out)
}

// Get reads what the path names into out, which may be nil.
func (c Client) Get(path string, out any) error { return c.Do(http.MethodGet, path, nil, out) }

// Serves returns nil if the node is ready.
func (c Client) Serves() error { return c.Get("/ready", nil) }

// Status is the part of GET /api/v1/operator/status that tests use.
type Status struct {
	ID, Leader, State string
	Ready             bool
	Term              uint64
	Commit            uint64 `json:"commit_index"`
	Applied           uint64 `json:"applied_index"`
	Protocol          int    `json:"protocol_version"`
	Servers           []struct {
		Name, ID, Address string
		Voter             bool
	}
}

// Status reads the node's status.
func (c Client) Status() (s Status, err error) { return s, c.Get("/api/v1/operator/status", &s) }

// Votes returns nil if the cluster has exactly count members and all of them vote.
func (c Client) Votes(count int) error {
	s, err := c.Status()
	if err != nil {
		return err
	}
	voters := 0
	for _, server := range s.Servers {
		if server.Voter {
			voters++
		}
	}
	if voters != count || len(s.Servers) != count {
		return fmt.Errorf("%d of %d members vote: %v", voters, len(s.Servers), s.Servers)
	}
	return nil
}

// Metrics reads the node's metrics: a value for each series, named as in the text format.
func (c Client) Metrics(ctx context.Context) (map[string]float64, error) {
	a, err := c.Send(ctx, http.MethodGet, "/metrics", nil)
	if err == nil {
		err = a.Decode(nil)
	}
	if err != nil {
		return nil, err
	}
	values := map[string]float64{}
	for line := range strings.Lines(string(a.Body)) {
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64); err == nil {
			values[line[:at]] = v
		}
	}
	return values, nil
}

// Sure sends the request until it succeeds, as a client with retries does: with the same
// Idempotency-Key each time, so that it takes effect once. out receives the body and may be
// nil. A 4xx other than 429 fails the test.
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

// Sandbox is the part of a SandboxInfo (API.md, "Sandboxes: members") that tests use.
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

// Detail returns the status_detail, "" for none.
func (s Sandbox) Detail() string {
	if s.StatusDetail == nil {
		return ""
	}
	return *s.StatusDetail
}

// Inside returns a client of the sandbox's agent server.
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

// ErrGone means that the node does not know the object (any more).
var ErrGone = errors.New("no such object")

// Sandbox reads one sandbox.
func (c Client) Sandbox(id string) (Sandbox, error) {
	var list []*Sandbox
	if err := c.Get("/api/v1/sandboxes?id="+url.QueryEscape(id), &list); err != nil {
		return Sandbox{}, err
	}
	if len(list) != 1 || list[0] == nil {
		return Sandbox{}, fmt.Errorf("%w: %s", ErrGone, id)
	}
	return *list[0], nil
}

// SandboxIn reads one sandbox, which must have the status.
func (c Client) SandboxIn(id, status string) (Sandbox, error) {
	sb, err := c.Sandbox(id)
	if err == nil && sb.Status != status {
		err = fmt.Errorf("it is %s (%s)", sb.Status, sb.Detail())
	}
	return sb, err
}

// AwaitSandbox waits until the sandbox has the status.
func (c Client) AwaitSandbox(t testing.TB, id, status string) (sb Sandbox) {
	t.Helper()
	Eventually(t, "sandbox "+id+" is "+status, func() (err error) {
		sb, err = c.SandboxIn(id, status)
		return err
	})
	return sb
}

// StartSandbox creates a sandbox of the spec ("" for the default) and returns its id.
func (c Client) StartSandbox(t testing.TB, spec string) string {
	t.Helper()
	return c.NewSandbox(t, spec).ID
}

// NewSandbox is StartSandbox, but returns the whole response.
func (c Client) NewSandbox(t testing.TB, spec string) (sb Sandbox) {
	t.Helper()
	path := "/api/v1/sandboxes"
	if spec != "" {
		path += "?sandbox_spec_id=" + url.QueryEscape(spec)
	}
	c.Sure(t, http.MethodPost, path, nil, &sb)
	return sb
}

// Change requests a sandbox's "pause", "resume" or "delete".
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

// StartTask is the part of an AppConversationStartTask (API.md, "Start tasks: members") that
// tests use.
type StartTask struct {
	ID             string  `json:"id"`
	Status         string  `json:"status"`
	Detail         *string `json:"detail"`
	ConversationID *string `json:"app_conversation_id"`
	SandboxID      *string `json:"sandbox_id"`
}

// StartConversation creates a conversation and returns its start task's id.
func (c Client) StartConversation(t testing.TB) string {
	t.Helper()
	var task StartTask
	c.Sure(t, http.MethodPost, "/api/v1/app-conversations", map[string]any{
		"initial_message": map[string]any{"content": []any{map[string]string{"type": "text", "text": "hello"}}},
	}, &task)
	return task.ID
}

// Text returns the detail, "" for none.
func (s StartTask) Text() string {
	if s.Detail == nil {
		return ""
	}
	return *s.Detail
}

// Task reads one start task.
func (c Client) Task(id string) (StartTask, error) {
	var list []*StartTask
	if err := c.Get("/api/v1/app-conversations/start-tasks?ids="+id, &list); err != nil {
		return StartTask{}, err
	}
	if len(list) != 1 || list[0] == nil {
		return StartTask{}, fmt.Errorf("%w: start task %s", ErrGone, id)
	}
	return *list[0], nil
}

// AwaitTask waits until the start task is READY.
func (c Client) AwaitTask(t testing.TB, id string) (task StartTask) {
	t.Helper()
	Eventually(t, "start task "+id+" is READY", func() error {
		var err error
		if task, err = c.Task(id); err != nil {
			return err
		}
		if task.Status == "ERROR" {
			t.Fatalf("start task %s ended in ERROR: %s", id, task.Text())
		}
		if task.Status != "READY" {
			return fmt.Errorf("it is %s: %s", task.Status, task.Text())
		}
		return nil
	})
	return task
}

// NewKey makes a key of a user.
func (c Client) NewKey(t testing.TB, user string) string {
	t.Helper()
	var made struct{ Key string }
	c.Sure(t, http.MethodPost, "/api/v1/operator/keys", map[string]string{"user": user, "name": "drill"}, &made)
	return made.Key
}

// SetPool sets the size of a spec's warm pool.
func (c Client) SetPool(t testing.TB, spec string, size int) {
	t.Helper()
	c.Sure(t, http.MethodPost, "/api/v1/operator/specs/"+spec+"/pool", map[string]int{"size": size}, nil)
}

// Pool returns the number of a warm pool's members.
func (c Client) Pool(spec string) (ready, all int, err error) {
	var out struct {
		Items []struct {
			ID      string
			Members struct{ Ready, All int } `json:"pool_members"`
		}
	}
	if err := c.Get("/api/v1/operator/specs", &out); err != nil {
		return 0, 0, err
	}
	for _, s := range out.Items {
		if s.ID == spec {
			return s.Members.Ready, s.Members.All, nil
		}
	}
	return 0, 0, fmt.Errorf("%w: spec %s", ErrGone, spec)
}

// Count returns the number of items of a list endpoint, whether it is a plain list or pages of
// up to a hundred.
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
	a, err := s.Inside().Try(http.MethodPost, "/api/file/upload?path="+url.QueryEscape(path), &buf, "Content-Type",
		w.FormDataContentType())
	if err == nil {
		err = a.Decode(nil)
	}
	return err
}

// ReadFile reads a file in a RUNNING sandbox.
func (s Sandbox) ReadFile(path string) (string, error) {
	a, err := s.Inside().Try(http.MethodGet, "/api/file/download?path="+url.QueryEscape(path), nil)
	if err == nil {
		err = a.Decode(nil)
	}
	return string(a.Body), err
}

// WorkspaceDir asks a RUNNING sandbox for the path of its workspace. The working directory of a
// command is not reliable: it may be the directory of one allocation.
func (s Sandbox) WorkspaceDir() (string, error) {
	if s.SpecID == "docker" {
		return "/workspace", nil // it has no shell to ask
	}
	return s.Shell(`dirname "$OH_CONVERSATIONS_PATH"`)
}

// Shell runs a command in a RUNNING sandbox and returns what it prints.
func (s Sandbox) Shell(command string) (string, error) {
	var out struct {
		Stdout *string `json:"stdout"`
		Stderr *string `json:"stderr"`
	}
	if err := s.Inside().Do(http.MethodPost, "/api/bash/execute_bash_command", map[string]any{"command": command},
		&out); err != nil {
		return "", err
	}
	if out.Stdout == nil {
		return "", fmt.Errorf("%s printed nothing: %+v", command, out)
	}
	return strings.TrimSpace(*out.Stdout), nil
}

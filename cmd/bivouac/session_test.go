package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/scheduler/agent"

	"bivouac.dev/bivouac/httpapi/wire"
)

// The steps of a client's session, for both kinds of test clusters: the nodes of `bivouac dev`,
// and those on real Nomad and Vault.

// sandboxInfo is the SandboxInfo of API.md, "Sandboxes: members".
type sandboxInfo struct {
	ID            string  `json:"id"`
	SpecID        string  `json:"sandbox_spec_id"`
	Status        string  `json:"status"`
	SessionAPIKey *string `json:"session_api_key"`
	ExposedURLs   []struct {
		Name string `json:"name"`
		URL  string `json:"url"`
		Port int    `json:"port"`
	} `json:"exposed_urls"`
	StatusDetail *string `json:"status_detail"`
}

// agentURL returns the address of the sandbox's agent server.
func (s sandboxInfo) agentURL() string {
	for _, u := range s.ExposedURLs {
		if u.Name == "AGENT_SERVER" {
			return u.URL
		}
	}
	return ""
}

// startTaskInfo is the AppConversationStartTask of
// API.md, "Start tasks: members".
type startTaskInfo struct {
	ID             string  `json:"id"`
	Status         string  `json:"status"`
	Detail         *string `json:"detail"`
	ConversationID *string `json:"app_conversation_id"`
	SandboxID      *string `json:"sandbox_id"`
}

// conversationInfo is the part of an AppConversation that the tests read.
type conversationInfo struct {
	ID              string  `json:"id"`
	SandboxID       string  `json:"sandbox_id"`
	SandboxStatus   string  `json:"sandbox_status"`
	ExecutionStatus *string `json:"execution_status"`
	Title           *string `json:"title"`
}

func (c caller) sandbox(id string) (sandboxInfo, error) {
	a, err := c.try(http.MethodGet, "/api/v1/sandboxes?id="+url.QueryEscape(id), nil)
	if err != nil {
		return sandboxInfo{}, err
	}
	var list []*sandboxInfo
	if err := decode(a, &list); err != nil {
		return sandboxInfo{}, err
	}
	if len(list) != 1 || list[0] == nil {
		return sandboxInfo{}, fmt.Errorf("no sandbox %s: %s", id, a)
	}
	return *list[0], nil
}

// awaitSandbox waits until the sandbox has the state.
func (c caller) awaitSandbox(t testing.TB, id, state string) (info sandboxInfo) {
	t.Helper()
	eventually(t, "sandbox "+id+" is "+state, func() (err error) {
		info, err = c.sandbox(id)
		if err == nil && info.Status != state {
			err = fmt.Errorf("it is %s (%s)", info.Status, text(info.StatusDetail))
		}
		return err
	})
	return info
}

func (c caller) startTask(id string) (startTaskInfo, error) {
	a, err := c.try(http.MethodGet, "/api/v1/app-conversations/start-tasks?ids="+id, nil)
	if err != nil {
		return startTaskInfo{}, err
	}
	var list []*startTaskInfo
	if err := decode(a, &list); err != nil {
		return startTaskInfo{}, err
	}
	if len(list) != 1 || list[0] == nil {
		return startTaskInfo{}, fmt.Errorf("no start task %s: %s", id, a)
	}
	return *list[0], nil
}

// awaitTask waits until the start task is READY.
func (c caller) awaitTask(t testing.TB, id string) (task startTaskInfo) {
	t.Helper()
	eventually(t, "start task "+id+" is READY", func() (err error) {
		task, err = c.startTask(id)
		if err == nil && task.Status == "ERROR" {
			t.Fatalf("start task %s ended in ERROR: %s", id, text(task.Detail))
		}
		if err == nil && task.Status != "READY" {
			err = fmt.Errorf("it is %s", task.Status)
		}
		return err
	})
	return task
}

// conversations lists all of the caller's conversations.
func (c caller) conversations() ([]conversationInfo, error) {
	a, err := c.try(http.MethodGet, "/api/v1/app-conversations", nil)
	if err != nil {
		return nil, err
	}
	var list []conversationInfo
	return list, decode(a, &list)
}

// sandboxes lists all of the caller's sandboxes.
func (c caller) sandboxes() ([]sandboxInfo, error) {
	a, err := c.try(http.MethodGet, "/api/v1/sandboxes/search", nil)
	if err != nil {
		return nil, err
	}
	var page wire.Page[sandboxInfo]
	return page.Items, decode(a, &page)
}

// create sends a POST until its outcome is known, as clients do: on a busy machine a leader may be
// lost at any time.
func (c caller) create(t testing.TB, path string, body any) answer {
	t.Helper()
	c = c.with("Idempotency-Key", rand.Text())
	var a answer
	eventually(t, "the answer to POST "+path, func() (err error) {
		if a, err = c.try(http.MethodPost, path, body); err == nil && a.status == http.StatusServiceUnavailable {
			err = errors.New(a.String())
		}
		return err
	})
	if a.status != http.StatusOK {
		t.Fatalf("POST %s answered %s", path, a)
	}
	return a
}

// startConversation creates a conversation and returns its start task's id.
func (c caller) startConversation(t testing.TB, message string) string {
	t.Helper()
	var task startTaskInfo
	c.create(t, "/api/v1/app-conversations", map[string]any{
		"initial_message": map[string]any{"content": []any{map[string]string{"type": "text", "text": message}}},
	}).json(t, &task)
	return task.ID
}

// startSandbox starts a sandbox of the default spec and returns its id.
func (c caller) startSandbox(t testing.TB) string {
	t.Helper()
	return c.startSandboxOf(t, "")
}

// startSandboxOf starts a sandbox of a spec and returns its id.
func (c caller) startSandboxOf(t testing.TB, spec string) string {
	t.Helper()
	path := "/api/v1/sandboxes"
	if spec != "" {
		path += "?sandbox_spec_id=" + url.QueryEscape(spec)
	}
	var info sandboxInfo
	c.create(t, path, nil).json(t, &info)
	return info.ID
}

// deleteSandbox deletes a sandbox and waits until it is gone on every node.
func deleteSandbox(t testing.TB, nodes []caller, id string) {
	t.Helper()
	nodes[0].do(t, http.StatusOK, http.MethodDelete, "/api/v1/sandboxes/"+id, nil)
	for _, n := range nodes {
		a := n.do(t, http.StatusOK, http.MethodGet, "/api/v1/sandboxes?id="+id, nil)
		if strings.TrimSpace(string(a.body)) != "[null]" {
			t.Errorf("%s still shows the deleted sandbox: %s", n.base, a)
		}
	}
}

// decode decodes a response with status 200.
func decode(a answer, out any) error {
	if a.status != http.StatusOK {
		return errors.New(a.String())
	}
	return json.Unmarshal(a.body, out)
}

func text(s *string) string {
	if s == nil {
		return "no detail"
	}
	return *s
}

// inSandbox runs a shell command in a RUNNING sandbox and returns its output.
func inSandbox(t testing.TB, info sandboxInfo, command string) string {
	t.Helper()
	c := agent.New(agent.Config{})
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := c.RunCommand(ctx, info.agentURL(), *info.SessionAPIKey, agent.Command{Command: command})
	if err != nil {
		t.Fatalf("running %q in sandbox %s: %v", command, info.ID, err)
	}
	if out.ExitCode != 0 {
		t.Fatalf("%q in sandbox %s: exit %d: %s", command, info.ID, out.ExitCode, out.Stdout+out.Stderr)
	}
	return out.Stdout
}

// keepFile writes a file into a RUNNING sandbox's workspace and returns its path. dir is the
// folder. "" asks the sandbox, whose commands must not start in an allocation's directory,
// which keeps files for a while too.
func keepFile(t testing.TB, info sandboxInfo, dir, content string) string {
	t.Helper()
	if dir == "" {
		dir = strings.TrimSpace(inSandbox(t, info, `dirname "$OH_CONVERSATIONS_PATH"`))
		if at := strings.TrimSpace(inSandbox(t, info, "pwd")); !strings.HasPrefix(at+"/", dir+"/") {
			t.Errorf("commands of sandbox %s start in %s, its workspace is %s", info.ID, at, dir)
		}
	}
	path := dir + "/kept.txt"
	c := agent.New(agent.Config{})
	defer c.Close()
	if err := c.Upload(t.Context(), info.agentURL(), *info.SessionAPIKey, path, []byte(content)); err != nil {
		t.Fatalf("writing %s in sandbox %s: %v", path, info.ID, err)
	}
	return path
}

// keptFile reads a file in a RUNNING sandbox.
func keptFile(t testing.TB, info sandboxInfo, path string) string {
	t.Helper()
	inside := caller{base: info.agentURL(), key: *info.SessionAPIKey}
	return string(inside.do(t, http.StatusOK, http.MethodGet, "/api/file/download?path="+url.QueryEscape(path), nil).body)
}

// lifeOfASandbox starts, pauses, resumes and deletes a sandbox, each step through another node.
// The file and the id must stay the same. dir is as in keepFile.
func lifeOfASandbox(t *testing.T, nodes []caller, spec, dir string) {
	t.Helper()
	at := func(i int) caller { return nodes[i%len(nodes)] }
	id := at(0).startSandboxOf(t, spec)
	info := at(1).awaitSandbox(t, id, "RUNNING")
	if info.SessionAPIKey == nil || info.agentURL() == "" {
		t.Fatalf("a RUNNING sandbox without key or URL: %+v", info)
	}
	path := keepFile(t, info, dir, "kept")

	for round := range 2 {
		for range 2 { // a second pause is allowed
			at(2).do(t, http.StatusOK, http.MethodPost, "/api/v1/sandboxes/"+id+"/pause", "{}")
		}
		if paused := at(0).awaitSandbox(t, id, "PAUSED"); paused.SessionAPIKey != nil || paused.agentURL() != "" {
			t.Errorf("a paused sandbox shows its key or URL: %+v", paused)
		}
		for range 2 {
			at(round).do(t, http.StatusOK, http.MethodPost, "/api/v1/sandboxes/"+id+"/resume", nil)
		}
		info = at(2).awaitSandbox(t, id, "RUNNING")
		if got := keptFile(t, info, path); got != "kept" {
			t.Errorf("after resume %d the file holds %q", round+1, got)
		}
	}
	deleteSandbox(t, nodes, id)
}

// everySeedEndpoint calls each of the seed's eleven endpoints once on each node. What was
// written through one node must be visible through the others.
func everySeedEndpoint(t *testing.T, nodes []caller) {
	t.Helper()
	for i, n := range nodes {
		others := slices.Concat(nodes[:i], nodes[i+1:])
		language := fmt.Sprintf("l%d", i)
		n.do(t, http.StatusOK, http.MethodPost, "/api/settings",
			map[string]any{"language": language, "llm_model": "m", "llm_api_key": "sk-test"})
		n.do(t, http.StatusOK, http.MethodPost, "/api/add-git-providers",
			map[string]any{"provider_tokens": map[string]any{"github": map[string]any{"token": "t", "host": "h" + language}}})
		for _, o := range append(others, n) {
			var got struct {
				Language *string            `json:"language"`
				KeySet   bool               `json:"llm_api_key_set"`
				Tokens   map[string]*string `json:"provider_tokens_set"`
			}
			o.do(t, http.StatusOK, http.MethodGet, "/api/settings", nil).json(t, &got)
			if text(got.Language) != language || !got.KeySet || text(got.Tokens["github"]) != "h"+language {
				t.Errorf("%s does not show what %s wrote: %+v", o.base, n.base, got)
			}
		}
		var specs struct {
			Items []map[string]any `json:"items"`
		}
		n.do(t, http.StatusOK, http.MethodGet, "/api/v1/sandbox-specs/search", nil).json(t, &specs)
		if len(specs.Items) == 0 {
			t.Errorf("%s lists no sandbox specs", n.base)
		}
		sandboxOnEveryNode(t, n, others)
		conversationOnEveryNode(t, n, others)
	}
}

func sandboxOnEveryNode(t *testing.T, n caller, others []caller) {
	t.Helper()
	id := n.startSandbox(t)
	for _, o := range others {
		list, err := o.sandboxes()
		if err != nil || !slices.ContainsFunc(list, func(s sandboxInfo) bool { return s.ID == id }) {
			t.Errorf("%s does not list sandbox %s: %v", o.base, id, err)
		}
	}
	n.awaitSandbox(t, id, "RUNNING")
	n.do(t, http.StatusOK, http.MethodPost, "/api/v1/sandboxes/"+id+"/pause", nil)
	n.awaitSandbox(t, id, "PAUSED")
	n.do(t, http.StatusOK, http.MethodPost, "/api/v1/sandboxes/"+id+"/resume", nil)
	n.awaitSandbox(t, id, "RUNNING")
	n.do(t, http.StatusOK, http.MethodDelete, "/api/v1/sandboxes/"+id, nil)
}

func conversationOnEveryNode(t *testing.T, n caller, others []caller) {
	t.Helper()
	task := n.awaitTask(t, n.startConversation(t, "hello"))
	var old struct {
		Status         string  `json:"status"`
		ConversationID string  `json:"conversation_id"`
		State          *string `json:"conversation_status"`
	}
	n.do(t, http.StatusOK, http.MethodPost, "/api/conversations", map[string]any{"initial_user_msg": "hi"}).json(t, &old)
	if old.Status != "ok" || old.ConversationID == "" || text(old.State) != "STARTING" {
		t.Errorf("POST /api/conversations on %s: %+v", n.base, old)
	}
	for _, id := range []string{*task.ConversationID, old.ConversationID} {
		for _, o := range append(others, n) {
			var found conversationInfo
			eventually(t, "conversation "+id+" on "+o.base, func() error {
				list, err := o.conversations()
				if i := slices.IndexFunc(list, func(c conversationInfo) bool { return c.ID == id }); i >= 0 {
					found = list[i]
					return nil
				}
				return errors.Join(err, errors.New("it is not listed"))
			})
			if found.SandboxStatus != "RUNNING" {
				t.Errorf("conversation %s on %s: %+v", id, o.base, found)
			}
		}
	}
	list, err := n.conversations()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		if c.SandboxStatus != "MISSING" {
			n.do(t, http.StatusOK, http.MethodDelete, "/api/v1/sandboxes/"+c.SandboxID, nil)
		}
	}
}

// plainID removes the dashes of a UUID.
func plainID(id string) string { return strings.ToLower(strings.ReplaceAll(id, "-", "")) }

// onlyConversation asks the agent server in the sandbox: it must have that conversation and no
// other.
func onlyConversation(t testing.TB, info sandboxInfo, conversationID string) {
	t.Helper()
	var page struct {
		Items []struct {
			ID string `json:"id"`
		} `json:"items"`
	}
	inside := caller{base: info.agentURL(), key: *info.SessionAPIKey}
	inside.do(t, http.StatusOK, http.MethodGet, "/api/conversations/search", nil).json(t, &page)
	if len(page.Items) != 1 || plainID(page.Items[0].ID) != conversationID {
		t.Errorf("sandbox %s holds %v, want only conversation %s", info.ID, page.Items, conversationID)
	}
}

package apiwalk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
)

// World is the cluster with what was planted there: two users and what is
// theirs. A walks; B must not notice.
type World struct {
	nodes    []string
	client   *http.Client
	operator string
	a, b     person

	mu     sync.Mutex
	tokens []string
	// of has ids by the kind of thing, A's and those that are nobody's.
	of map[string][]string
}

// person is a user with what was planted for them.
type person struct {
	name, key string
	// secret stands in every secret member; private in what only its owner may
	// see, and mcp in what its owner gets back.
	secret, private, mcp       string
	sandbox, conversation, box string // box is the sandbox's key
	task                       string
}

// caller is who sends a request.
type caller struct {
	name, key string
	bearer    bool
	// who is "a", "operator", "box" (A's sandbox) or "" for a stranger.
	who string
	// sandbox is the box's.
	sandbox string
}

// kinds of ids by the words a description uses for them.
func kindOf(name string) string {
	switch name {
	case "sandbox_id", "sandbox_ids", "sandbox_id__eq":
		return "sandbox"
	case "conversation_id", "conversation_ids", "conversation_id__eq", "parent_conversation_id":
		return "conversation"
	case "task_ids":
		return "task"
	case "sandbox_spec_id", "spec_id", "spec_ids":
		return "spec"
	case "user_id", "user":
		return "user"
	case "key_id":
		return "key"
	case "secret_name":
		return "secret"
	}
	return ""
}

// nameOf tells parameters apart that share a wire name ("id", "ids").
func (w *World) nameOf(op *operation, p *openapi3.Parameter) string {
	if p.Name != "id" && p.Name != "ids" {
		return p.Name
	}
	switch {
	case strings.Contains(op.path, "/start-tasks"):
		return "task_ids"
	case strings.Contains(op.path, "/app-conversations"):
		return "conversation_ids"
	case strings.Contains(op.path, "/sandboxes"):
		return "sandbox_ids"
	case strings.Contains(op.path, "specs"):
		return "spec_ids"
	case strings.Contains(op.path, "/keys"):
		return "key_id"
	}
	return "user_id"
}

// idOf gives an id of the kind that name stands for: A's own, B's, or one that
// does not exist. Operators may change what is B's, so they are not told it.
func (w *World) idOf(rng *rand.Rand, c caller, access, name string) string {
	kind := kindOf(name)
	switch {
	case kind == "":
		return ""
	case kind == "spec" && access == "operator":
		return pick(rng, []string{"walk", "nosuch", "a/b/c"}) // the default one is needed
	}
	if kind == "key" {
		w.mu.Lock()
		defer w.mu.Unlock()
		// Chance must not hit a key that the walk needs.
		return pick(rng, append([]string{"999999999"}, w.of[kind]...))
	}
	foreign := map[string]string{"sandbox": w.b.sandbox, "conversation": w.b.conversation, "task": w.b.task, "user": w.b.name}[kind]
	if foreign != "" && c.who != "operator" && rng.IntN(100) < 30 {
		return foreign
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if own := w.of[kind]; len(own) > 0 && rng.IntN(100) < 85 {
		return own[len(own)-1-rng.IntN(min(len(own), 12))]
	}
	if kind == "user" && access == "operator" {
		return "walk-nobody"
	}
	return pick(rng, []string{"00000000000000000000000000000000", "6f0c4e3b-9a7d-4c1e-8f2b-5a6d7c8e9f01", "nosuch", "6F0C4E3B9A7D4C1E8F2B5A6D7C8E9F01"})
}

// learn takes ids and page tokens out of an answer to A or to an operator.
func (w *World) learn(op *operation, c caller, body []byte) {
	var v any
	if c.who != "a" && c.who != "operator" || json.Unmarshal(body, &v) != nil {
		return
	}
	kind := map[string]string{"sandbox.create": "sandbox", "sandbox.search": "sandbox", "conversation.search": "conversation", "conversation.list": "conversation",
		"conversation.start": "task", "start_task.search": "task", "api_key.create": "key"}[op.id]
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gather(v, kind)
}

func (w *World) gather(v any, kind string) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			w.gather(e, kind)
		}
	case map[string]any:
		if token, is := v["next_page_id"].(string); is && len(w.tokens) < 500 {
			w.tokens = append(w.tokens, token)
		}
		if items, is := v["items"]; is {
			w.gather(items, kind)
			return
		}
		id := ""
		switch one := v["id"].(type) {
		case string:
			id = one
		case float64:
			id = fmt.Sprint(int64(one))
		}
		if user, is := v["user"].(string); is && user == w.b.name {
			return
		}
		if kind != "" && id != "" && len(w.of[kind]) < 5000 {
			w.of[kind] = append(w.of[kind], id)
		}
	}
}

// token gives a page token: a real one, one cut short, or nonsense.
func (w *World) token(rng *rand.Rand) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.tokens) > 0 && rng.IntN(3) > 0 {
		t := pick(rng, w.tokens)
		if rng.IntN(2) == 0 {
			return t[:rng.IntN(len(t)+1)]
		}
		return t
	}
	return pick(rng, []string{"", "0", "100", "-1", "AAAA", "////", "bm90YXRva2Vu", "%", strings.Repeat("A", 1000), w.b.sandbox, w.b.conversation})
}

// box is a sandbox of A's, with its key.
func (w *World) box() caller {
	w.mu.Lock()
	defer w.mu.Unlock()
	return caller{name: "A's sandbox", key: w.a.box, who: "box", sandbox: w.a.sandbox}
}

// renewBox takes another sandbox of A's for the one whose key opens nothing any
// more: A deletes and pauses what is A's.
func (w *World) renewBox() error {
	box := w.box()
	err := w.call(box.key, http.MethodGet, "/api/v1/sandboxes/"+box.sandbox+"/settings/secrets", nil, nil)
	if !errors.Is(err, errUnexpected) {
		return err
	}
	var page struct {
		Items []struct {
			ID     string
			Status string
			Key    *string `json:"session_api_key"`
		}
	}
	if err := w.call(w.a.key, http.MethodGet, "/api/v1/sandboxes/search?limit=100", nil, &page); err != nil {
		return err
	}
	for _, one := range page.Items {
		if one.Key != nil && one.Status == "RUNNING" {
			w.mu.Lock()
			w.a.sandbox, w.a.box = one.ID, *one.Key
			w.mu.Unlock()
			return nil
		}
	}
	return nil // A has none now; the next look may find one
}

// callerOf chooses who sends a request to an operation with that access.
func (w *World) callerOf(rng *rand.Rand, access string) caller {
	a := caller{name: "A", key: w.a.key, who: "a", bearer: rng.IntN(3) == 0}
	operator := caller{name: "the operator", key: w.operator, who: "operator"}
	box := w.box()
	strangers := []caller{{name: "nobody"}, {name: "a stranger", key: "bvk_AAAAAAAAAAAA_" + strings.Repeat("B", 43)}, {name: "a liar", key: w.a.key + "x"}, {name: "B's id", key: w.b.sandbox, bearer: true}}
	n := rng.IntN(100)
	switch {
	case n < 5:
		return pick(rng, strangers)
	case n < 9:
		return box
	case access == "operator" && n < 80:
		return operator
	case access == "sandbox" && n < 80:
		return box
	}
	return a
}

func (w *World) secretOf(c caller) string {
	if c.who == "operator" {
		return "operators-own-words"
	}
	return w.a.secret
}

func (w *World) mcpSecretOf(caller) string { return w.a.mcp }

// tame keeps an operator's requests from doing what the walk could not go on
// after: taking the specs away, or running anything.
func (w *World) tame(r *request, v any) {
	m, is := v.(map[string]any)
	if !is {
		return
	}
	switch r.op.id {
	case "spec.apply":
		m["replace"] = false
		if specs, is := m["specs"].([]any); is {
			for _, one := range specs {
				if spec, is := one.(map[string]any); is {
					if id, is := spec["id"].(string); !is || id != "" {
						spec["id"] = "walk"
					}
					delete(spec, "pool")
				}
			}
		}
	case "spec.pool":
		if n, is := m["size"].(int64); is && n > 0 {
			m["size"] = int64(0)
		}
	case "api_key.create":
		if user, is := m["user"].(string); is && user != "" {
			m["user"] = "walk-c"
		}
	}
}

// errUnexpected: setting up did not get the answer it needs.
var errUnexpected = errors.New("unexpected answer")

// call makes one request that must succeed; out may be nil.
func (w *World) call(key, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequest(method, w.nodes[0]+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Session-API-Key", key)
	res, err := w.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("%w: %s %s: %d %s", errUnexpected, method, path, res.StatusCode, raw)
	}
	switch out := out.(type) {
	case nil:
		return nil
	case *string:
		*out = string(raw)
		return nil
	}
	return json.Unmarshal(raw, out)
}

// await asks until check is content.
func await(patience time.Duration, check func() error) error {
	deadline := time.After(patience)
	tick := time.NewTicker(100 * time.Millisecond)
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

// snapshot is all that B has, as B sees it, one line for each question.
func (w *World) snapshot() (string, error) {
	var lines []string
	ask := func(key, path string) error {
		var text string
		if err := w.call(key, http.MethodGet, path, nil, &text); err != nil {
			return err
		}
		lines = append(lines, path+" "+text)
		return nil
	}
	for _, path := range []string{"/api/settings", "/api/v1/app-conversations/search", "/api/v1/app-conversations?ids=" + w.b.conversation, "/api/v1/app-conversations/count",
		"/api/v1/sandboxes/search", "/api/v1/app-conversations/start-tasks/search", "/sandboxes/" + w.b.sandbox + "/AGENT_SERVER/api/conversations/search",
		"/sandboxes/" + w.b.sandbox + "/AGENT_SERVER/api/conversations/" + w.b.conversation + "/events/count"} {
		if err := ask(w.b.key, path); err != nil {
			return "", err
		}
	}
	secrets := "/api/v1/sandboxes/" + w.b.sandbox + "/settings/secrets"
	for _, path := range []string{secrets, secrets + "/" + url.PathEscape("CUSTOM"), secrets + "/GITHUB_TOKEN"} {
		if err := ask(w.b.box, path); err != nil {
			return "", err
		}
	}
	return strings.Join(lines, "\n"), nil
}

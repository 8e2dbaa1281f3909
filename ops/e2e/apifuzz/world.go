package apifuzz

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"github.com/getkin/kin-openapi/openapi3"
)

// World is the cluster with two users and their objects. A's requests are fuzzed; B's objects
// must not change.
type World struct {
	nodes    []string
	operator string
	a, b     person

	mu     sync.Mutex
	tokens []string
	// issued are the credentials in answers to A and the operator: keys, and shares' tokens.
	issued []string
	shares []string
	// of holds ids by kind: A's, and some that no one has.
	of map[string][]string
}

// person is a user and its objects.
type person struct {
	name, key string
	// secret is in every secret member, private in what only its owner may see, and mcp in what
	// is returned to its owner.
	secret, private, mcp              string
	sandbox, conversation, sandboxKey string
	task                              string
}

// caller is the sender of a request.
type caller struct {
	name, key string
	bearer    bool
	// who is "a", "operator", "sandbox" (A's) or "" for no key.
	who string
	// sandbox is the id of the caller that is a sandbox.
	sandbox string
}

// kindOf returns the kind of id that a described name stands for.
func kindOf(name string) string {
	switch name {
	case "sandbox_id", "sandbox_ids", "sandbox_id__eq":
		return "sandbox"
	case "conversation_id", "conversation_ids", "conversation_id__eq", "parent_conversation_id":
		return "conversation"
	case "task_id", "task_ids":
		return "task"
	case "sandbox_spec_id", "spec_id", "spec_ids":
		return "spec"
	case "user_id", "user":
		return "user"
	case "key_id":
		return "key"
	case "secret_name":
		return "secret"
	case "port":
		return "port"
	case "owner":
		return "owner"
	case "share_id":
		return "share"
	}
	return ""
}

// nameOf tells parameters apart that share a wire name ("id", "ids").
func (w *World) nameOf(op *operation, p *openapi3.Parameter) string {
	if p.Name == "user" && strings.Contains(op.path, "/operator/") {
		return "owner"
	}
	if p.Name != "id" && p.Name != "ids" {
		return p.Name
	}
	switch {
	case strings.HasSuffix(op.path, "/share"):
		return "share_id"
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

// idOf returns an id of the name's kind: A's own, B's, or one that does not exist. Operators
// don't get B's ids, because they may change B's objects.
func (w *World) idOf(rng *rand.Rand, c caller, access, name string) string {
	kind := kindOf(name)
	switch {
	case kind == "":
		return ""
	case kind == "spec" && access == "operator":
		return pick(rng, []string{"walk", "nosuch", "a/b/c"}) // the default spec is needed
	}
	if kind == "key" {
		w.mu.Lock()
		defer w.mu.Unlock()
		// A random number must not be a key that the run needs.
		return pick(rng, append([]string{"999999999"}, w.of[kind]...))
	}
	foreign := map[string]string{
		"sandbox":      w.b.sandbox,
		"conversation": w.b.conversation,
		"task":         w.b.task,
		"user":         w.b.name,
	}[kind]
	if foreign != "" && c.who != "operator" && rng.IntN(100) < 30 {
		return foreign
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if main := map[string]string{"sandbox": w.a.sandbox, "conversation": w.a.conversation}[kind]; main != "" &&
		rng.IntN(100) < 25 {
		return main
	}
	if own := w.of[kind]; len(own) > 0 && rng.IntN(100) < 85 {
		return own[len(own)-1-rng.IntN(min(len(own), 12))]
	}
	if kind == "user" && access == "operator" {
		return "walk-nobody"
	}
	return pick(rng,
		[]string{
			"00000000000000000000000000000000",
			"6f0c4e3b-9a7d-4c1e-8f2b-5a6d7c8e9f01",
			"nosuch",
			"6F0C4E3B9A7D4C1E8F2B5A6D7C8E9F01",
		})
}

// learn collects ids and page tokens from responses to A or an operator.
func (w *World) learn(op *operation, c caller, body []byte) {
	var v any
	if c.who != "a" && c.who != "operator" || json.Unmarshal(body, &v) != nil {
		return
	}
	kind := map[string]string{"sandbox.create": "sandbox", "sandbox.search": "sandbox",
		"conversation.search": "conversation", "conversation.list": "conversation",
		"conversation.start": "task", "start_task.search": "task", "api_key.create": "key", "sandbox.share": "share",
		"sandbox.shares": "share"}[op.id]
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gather(v, kind)
	w.gatherCredentials(v)
}

// mostIssued bounds the credentials that are searched for.
const mostIssued = 300

// gatherCredentials collects the keys and the shares' tokens of an answer.
func (w *World) gatherCredentials(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			w.gatherCredentials(e)
		}
	case map[string]any:
		for name, e := range v {
			text, _ := e.(string)
			switch _, token, linked := strings.Cut(text, "#bivouac="); {
			case name == "url" && linked && v["expires_at"] != nil:
				w.shares, text = append(w.shares, token), token
			case name == "key" || name == "session_api_key":
			default:
				w.gatherCredentials(e)
				continue
			}
			if len(text) >= 20 && len(w.issued) < mostIssued && !slices.Contains(w.issued, text) {
				w.issued = append(w.issued, text)
			}
		}
	}
}

// shareTokens returns the tokens of the shares that A made.
func (w *World) shareTokens() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.shares)
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

// token returns a page token: a real one, a truncated one, or nonsense.
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
	return pick(rng,
		[]string{
			"",
			"0",
			"100",
			"-1",
			"AAAA",
			"////",
			"bm90YXRva2Vu",
			"%",
			strings.Repeat("A", 1000),
			w.b.sandbox,
			w.b.conversation,
		})
}

// ofSandbox returns a sandbox of A's with its key.
func (w *World) ofSandbox() caller {
	w.mu.Lock()
	defer w.mu.Unlock()
	return caller{name: "A's sandbox", key: w.a.sandboxKey, who: "sandbox", sandbox: w.a.sandbox}
}

// isMain reports whether the id is A's present sandbox or its first conversation.
func (w *World) isMain(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return id == w.a.sandbox || id == w.a.conversation
}

// renewSandbox chooses another sandbox of A's after the current key became invalid: A's requests
// delete and pause its sandboxes.
func (w *World) renewSandbox() error {
	own := w.ofSandbox()
	err := w.call(own.key, http.MethodGet, "/api/v1/sandboxes/"+own.sandbox+"/settings/secrets", nil, nil)
	if !errors.Is(err, errUnexpected) {
		return err
	}
	var page struct{ Items []testcluster.Sandbox }
	if err := w.call(w.a.key, http.MethodGet, "/api/v1/sandboxes/search?limit=100", nil, &page); err != nil {
		return err
	}
	for _, one := range page.Items {
		if one.SessionAPIKey != nil && one.Status == "RUNNING" {
			w.mu.Lock()
			w.a.sandbox, w.a.sandboxKey = one.ID, *one.SessionAPIKey
			w.mu.Unlock()
			return nil
		}
	}
	return nil // A has none now; the next call may find one
}

// callerOf chooses the sender of a request to an operation with that access.
func (w *World) callerOf(rng *rand.Rand, access string) caller {
	a := caller{name: "A", key: w.a.key, who: "a", bearer: rng.IntN(3) == 0}
	operator := caller{name: "the operator", key: w.operator, who: "operator"}
	own := w.ofSandbox()
	strangers := []caller{
		{name: "nobody"},
		{name: "a stranger", key: "bvk_AAAAAAAAAAAA_" + strings.Repeat("B", 43)},
		{name: "a liar", key: w.a.key + "x"},
		{name: "B's id", key: w.b.sandbox, bearer: true},
	}
	n := rng.IntN(100)
	switch {
	case n < 5:
		return pick(rng, strangers)
	case n < 9:
		return own
	case access == "operator" && n < 80:
		return operator
	case access == "sandbox" && n < 80:
		return own
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

// tame keeps an operator's requests from ending the run: from deleting the specs and B's sandbox,
// and from running programs.
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
	case "config.set": // a policy pauses and deletes what is B's, and so does pause_oldest
		delete(m, "policy")
		if limits, is := m["limits"].(map[string]any); is {
			delete(limits, "on_limit")
		}
		m["git"] = map[string]any{"verify_tokens": false} // nobody outside is asked
	case "api_key.create":
		if user, is := m["user"].(string); is && user != "" {
			m["user"] = "walk-c"
		}
	}
}

// errUnexpected: the setup got an unexpected response.
var errUnexpected = errors.New("unexpected answer")

// call sends one request that must succeed; out may be nil.
func (w *World) call(key, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a, err := w.as(key).Send(ctx, method, path, in)
	if err != nil {
		return err
	}
	if !a.OK() {
		return fmt.Errorf("%w: %s %s: %s", errUnexpected, method, path, a)
	}
	if text, is := out.(*string); is {
		*text = string(a.Body)
		return nil
	}
	return a.Decode(out)
}

// as returns a client of the first node with the key.
func (w *World) as(key string) testcluster.Client {
	return testcluster.Client{Base: w.nodes[0], Key: key}
}

// agentEvents and storedEvents are the paths of the events of B's conversation, in its sandbox and in the
// cluster.
func (w *World) agentEvents() string {
	return "/sandboxes/" + w.b.sandbox + "/AGENT_SERVER/api/conversations/" + w.b.conversation + "/events"
}

func (w *World) storedEvents() string {
	return "/api/v1/conversation/" + w.b.conversation + "/events"
}

// settled returns nil when the cluster has the events of B's conversation: they change what B sees.
func (w *World) settled() error {
	var there, here string
	if err := w.call(w.b.key, http.MethodGet, w.agentEvents()+"/count", nil, &there); err != nil {
		return err
	}
	if err := w.call(w.b.key, http.MethodGet, w.storedEvents()+"/count", nil, &here); err != nil {
		return err
	}
	if there != here {
		return fmt.Errorf("the agent server has %s events of B's and the cluster %s", there, here)
	}
	return nil
}

// snapshot returns all of B's objects as B sees them, one line per request.
func (w *World) snapshot() (string, error) {
	var lines []string
	code := regexp.MustCompile(`#bivouac=[^"]*`)                         // another one after five minutes
	used := regexp.MustCompile(`"metrics":.*?,"parent_conversation_id"`) // a node counts it a while later
	ask := func(key, path string) error {
		var text string
		if err := w.call(key, http.MethodGet, path, nil, &text); err != nil {
			return fmt.Errorf("%w, after\n%s", err, strings.Join(lines, "\n"))
		}
		text = used.ReplaceAllString(text, `"parent_conversation_id"`)
		lines = append(lines, path+" "+code.ReplaceAllString(text, "#bivouac="))
		return nil
	}
	for _, path := range []string{"/api/settings", "/api/v1/app-conversations/search",
		"/api/v1/app-conversations?ids=" + w.b.conversation, "/api/v1/app-conversations/count",
		"/api/v1/sandboxes/search", "/api/v1/app-conversations/start-tasks/search",
		"/sandboxes/" + w.b.sandbox + "/AGENT_SERVER/api/conversations/search",
		w.agentEvents() + "/count", w.storedEvents() + "/count", w.storedEvents() + "/search"} {
		if err := ask(w.b.key, path); err != nil {
			return "", err
		}
	}
	secrets := "/api/v1/sandboxes/" + w.b.sandbox + "/settings/secrets"
	for _, path := range []string{secrets, secrets + "/" + url.PathEscape("CUSTOM"), secrets + "/GITHUB_TOKEN"} {
		if err := ask(w.b.sandboxKey, path); err != nil {
			return "", err
		}
	}
	return strings.Join(lines, "\n"), nil
}

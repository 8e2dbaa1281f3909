package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// canaries generates secret values that can be recognized wherever they leak.
type canaries struct {
	values []string
	// names says what a value is that doesn't name itself.
	names map[string]string
}

// value returns a new canary; what names its field.
func (c *canaries) value(what string) string {
	v := fmt.Sprintf("canary-%s-%s", what, hex.EncodeToString([]byte(what)))
	c.values = append(c.values, v)
	return v
}

// settings returns a settings body with a canary in every secret field.
func (c *canaries) settings() map[string]any {
	return map[string]any{
		"language": "en", "llm_model": "m",
		"llm_api_key":     c.value("llm"),
		"search_api_key":  c.value("search"),
		"sandbox_api_key": c.value("sandbox"),
		"secrets_store": map[string]any{
			"provider_tokens": map[string]any{"gitlab": map[string]any{"token": c.value("store-provider")}},
			"custom_secrets":  map[string]any{"MY_SECRET": map[string]any{"secret": c.value("custom"), "description": "mine"}},
		},
		"mcp_config": c.mcp("settings"),
	}
}

// mcp returns an MCP configuration with credentials in every place that allows them.
func (c *canaries) mcp(where string) map[string]any {
	return map[string]any{
		"sse_servers": []any{
			map[string]any{
				"url":     "https://sse.example.org/?token=" + c.value(where+"-sse-url"),
				"api_key": c.value(where + "-sse"),
			},
		},
		"shttp_servers": []any{map[string]any{"url": "https://shttp.example.org/", "api_key": c.value(where + "-shttp")}},
		"stdio_servers": []any{map[string]any{"name": "s", "command": "c", "args": []string{
			"--token",
			c.value(where + "-arg"),
		},
			"env": map[string]string{"TOKEN": c.value(where + "-env")}}},
	}
}

// conversation returns a conversation body with a canary in every secret field.
func (c *canaries) conversation() map[string]any {
	return map[string]any{
		"initial_message": map[string]any{"content": []any{map[string]any{"type": "text", "text": "hello"}}},
		"secrets":         map[string]any{"GIVEN": c.value("given")},
		"plugins": []any{map[string]any{
			"source": "https://user:" + c.value("plugin") + "@git.example.org/p.git",
			"parameters": map[string]any{
				"endpoint": c.value("parameter"),
				"deep":     []any{map[string]any{"a": c.value("deep-parameter")}},
			},
		}},
		"observability_metadata": map[string]any{"trace": c.value("metadata")},
		"processors": []any{map[string]any{"kind": "SetTitleCallbackProcessor", "channel": c.value("processor"),
			"to": map[string]any{"url": "https://example.org/hook/" + c.value("processor-url")}}},
	}
}

// issued adds a credential that the product made. Text around it ("bvk_", an id) is not secret.
func (c *canaries) issued(t testing.TB, what, value string) {
	t.Helper()
	if len(value) < 16 {
		t.Fatalf("%s is %q", what, value)
	}
	c.values = append(c.values, value)
	if c.names == nil {
		c.names = map[string]string{}
	}
	c.names[value] = what
}

// leak returns the first canary in b, in plain text or in a usual encoding, also compressed.
func (c *canaries) leak(b []byte) string {
	for _, what := range c.leaks(b) {
		return what
	}
	return ""
}

// leaks returns all canaries in b, those that were issued by their names.
func (c *canaries) leaks(b []byte) (list []string) {
	texts := append([][]byte{b}, unzipped(b)...)
	for _, v := range c.distinct() {
		within := slices.ContainsFunc(forms(v), func(form string) bool {
			return slices.ContainsFunc(texts, func(text []byte) bool { return bytes.Contains(text, []byte(form)) })
		})
		if within {
			list = append(list, cmp.Or(c.names[v], v))
		}
	}
	return list
}

// distinct returns the values without repetitions.
func (c *canaries) distinct() []string {
	return slices.Compact(slices.Sorted(slices.Values(c.values)))
}

// forms returns the encodings in which a value is looked for. In base64 it may begin at any byte
// of a group of three.
func forms(v string) []string {
	list := []string{v, hex.EncodeToString([]byte(v))}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 {
			text := enc.EncodeToString([]byte(strings.Repeat("x", before) + v))
			list = append(list, text[(8*before+5)/6:len(text)-2])
		}
	}
	return list
}

// unzipped returns what is compressed with gzip anywhere in b, as in a file of a snapshot.
func unzipped(b []byte) (texts [][]byte) {
	magic := []byte{0x1f, 0x8b, 0x08}
	for {
		at := bytes.Index(b, magic)
		if at < 0 {
			return texts
		}
		b = b[at:]
		if zip, err := gzip.NewReader(bytes.NewReader(b)); err == nil {
			text, _ := io.ReadAll(zip) // behind it is what is no gzip
			texts = append(texts, text)
		}
		b = b[len(magic):]
	}
}

// search reads every file below dir and fails the test for each leak.
func (c *canaries) search(t *testing.T, dir string) (files int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		if v := c.leak(b); v != "" {
			t.Errorf("%s holds %s", path, v)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// answers sends the canaries through every field, also in invalid requests, and checks the
// responses. GET /api/settings returns the MCP configuration to its owner (API.md, "Settings:
// read") and is left out.
func (c *canaries) answers(t *testing.T, n caller) (tasks []string) {
	t.Helper()
	check := func(want int, method, path string, body any) answer {
		t.Helper()
		a := n.do(t, want, method, path, body)
		if v := c.leak(a.body); v != "" {
			t.Errorf("%s %s shows %s: %s", method, path, v, a)
		}
		if v := c.leak(fmt.Append(nil, a.header)); v != "" {
			t.Errorf("%s %s shows %s in its header", method, path, v)
		}
		return a
	}
	check(http.StatusOK, http.MethodPost, "/api/settings", c.settings())
	check(http.StatusOK, http.MethodPost, "/api/add-git-providers", map[string]any{
		"provider_tokens": map[string]any{"github": map[string]any{"token": c.value("provider")}},
		"mcp_config":      c.mcp("providers"),
	})
	var task startTaskInfo
	check(http.StatusOK, http.MethodPost, "/api/v1/app-conversations", c.conversation()).json(t, &task)
	check(http.StatusOK, http.MethodPost, "/api/conversations",
		map[string]any{"initial_user_msg": "hi", "mcp_config": c.mcp("v0")})
	profile := "/api/v1/settings/profiles/fast"
	check(http.StatusOK, http.MethodPost, "/api/v1/settings",
		map[string]any{"agent_settings_diff": map[string]any{"llm": map[string]any{"api_key": c.value("nested-llm")}}})
	check(http.StatusCreated, http.MethodPost, profile,
		map[string]any{"llm": map[string]any{"model": "m", "api_key": c.value("profile")}})
	check(http.StatusOK, http.MethodPost, profile+"/activate", map[string]any{})
	check(http.StatusOK, http.MethodGet, profile, nil)
	check(http.StatusCreated, http.MethodPost, "/api/v1/secrets",
		map[string]any{"name": "SINGLE", "value": c.value("single")})
	check(http.StatusUnprocessableEntity, http.MethodPost, "/api/agent-profiles/mine", map[string]any{
		"llm_profile_ref": "fast", "verification": map[string]any{"critic_api_key": c.value("critic")},
	})

	for path, body := range map[string]any{
		"/api/settings": map[string]any{
			"llm_api_key": []any{c.value("wrong-llm")},
			"mcp_config":  map[string]any{"sse_servers": []any{map[string]any{"url": "ftp://" + c.value("wrong-url")}}},
		},
		"/api/add-git-providers": map[string]any{
			"provider_tokens": map[string]any{"nonsense": map[string]any{"token": c.value("wrong-provider")}},
		},
		"/api/v1/app-conversations": map[string]any{
			"secrets": map[string]any{"OH_NAME": c.value("wrong-secret")},
			"plugins": []any{map[string]any{"source": []any{c.value("wrong-plugin")}}},
		},
		"/api/conversations": map[string]any{
			"mcp_config": map[string]any{
				"stdio_servers": []any{
					map[string]any{"name": "a b", "command": "c", "env": map[string]any{"T": c.value("wrong-env")}},
				},
			},
		},
	} {
		check(http.StatusUnprocessableEntity, http.MethodPost, path, body)
	}
	c.addresses(check)
	check(http.StatusUnprocessableEntity, http.MethodPost, "/api/settings", `{"llm_api_key": "`+c.value("broken")+`", `)
	caller{base: n.base, key: "bvk_" + c.value("key")}.do(t, http.StatusUnauthorized, http.MethodGet, "/api/settings", nil)

	n.awaitTask(t, task.ID)
	for _, path := range []string{
		"/api/v1/app-conversations/start-tasks?ids=" + task.ID,
		"/api/v1/app-conversations",
		"/api/v1/sandboxes/search",
		"/metrics",
		"/server_info",
	} {
		check(http.StatusOK, http.MethodGet, path, nil)
	}
	return append(tasks, task.ID)
}

// addresses sends URLs with user information to every member that may be a URL: they are refused.
func (c *canaries) addresses(check func(want int, method, path string, body any) answer) {
	start, v0 := "/api/v1/app-conversations", "/api/conversations"
	task := func(repo string) map[string]any {
		return map[string]any{
			"git_provider": "github",
			"task_type":    "OPEN_ISSUE",
			"repo":         repo,
			"issue_number": 1,
			"title":        "t",
		}
	}
	for i, one := range []struct {
		path string
		body func(url string) map[string]any
	}{
		{"/api/settings", func(url string) map[string]any { return map[string]any{"llm_base_url": url} }},
		{"/api/settings", func(url string) map[string]any { return map[string]any{"sandbox_base_container_image": url} }},
		{"/api/settings", func(url string) map[string]any { return map[string]any{"sandbox_runtime_container_image": url} }},
		{start, func(url string) map[string]any { return map[string]any{"selected_repository": url} }},
		{start, func(url string) map[string]any { return map[string]any{"selected_branch": url} }},
		{start, func(url string) map[string]any { return map[string]any{"suggested_task": task(url)} }},
		{start, func(url string) map[string]any {
			return map[string]any{"processors": []any{map[string]any{"kind": "XCallbackProcessor", "deep": []any{url}}}}
		}},
		{v0, func(url string) map[string]any { return map[string]any{"repository": url} }},
		{v0, func(url string) map[string]any { return map[string]any{"suggested_task": task(url)} }},
		{v0, func(url string) map[string]any {
			return map[string]any{"create_microagent": map[string]any{"repo": url}}
		}},
	} {
		for _, form := range []string{
			"https://user:%s@example.org/a/b",
			"https://%s@example.org/a/b",
			"user:%s@example.org/a/b",
		} {
			check(http.StatusUnprocessableEntity, http.MethodPost, one.path,
				one.body(fmt.Sprintf(form, c.value(fmt.Sprintf("address-%d", i)))))
		}
	}
}

func TestDev_NoSecretOutsideTheSealedFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := startDev(t, dir)
	var c canaries
	c.answers(t, r.all[1])
	for _, n := range r.nodes {
		if err := n.app.node.Snapshot(t.Context()); err != nil {
			t.Error(err)
		}
	}
	c.search(t, dir)
	leader := r.leader(t)
	r.kill(t, leader)
	r.revive(t, leader)
	key := r.key.Value
	r.end(t)
	if files := c.search(t, dir); files < 12 {
		t.Errorf("only %d files were searched", files)
	}

	// The development cluster's key is in one file only.
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || path == (devLayout{dir}).key() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(strings.Split(key, "_")[2])) {
			t.Errorf("%s holds the API key", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

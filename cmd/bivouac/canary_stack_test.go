package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/httpapi"
)

// canarySearch is a search of a whole stack.
type canarySearch struct {
	*stack
	c canaries
	// user is the key of a user who is no operator, balancer the address of HAProxy or of a node.
	user, balancer string
	proxy          *local.HAProxy
	sandbox        string
	// talk is a conversation with canaries in its events.
	talk  talk
	table []string
}

// plainText is no secret: a place in which it should be and is not was not searched.
const plainText = "plain-title-of-the-canaries"

// found writes a line of the table, and fails the test for a leak.
func (s *canarySearch) found(t testing.TB, place string, looked int, leaks []string) {
	t.Helper()
	result := "nothing"
	if len(leaks) > 0 {
		result = strings.Join(leaks, ", ")
		t.Errorf("%s: %s", place, result)
	}
	if looked == 0 {
		t.Errorf("%s was not searched", place)
	}
	s.table = append(s.table, fmt.Sprintf("%-58s %5d  %s", place, looked, result))
}

// noSecretOutsideVault sends canaries through every field, has every kind of key and token made,
// and then looks for them in everything that the nodes wrote, and that Nomad and Vault have.
func (s *stack) noSecretOutsideVault(t *testing.T) {
	x := &canarySearch{stack: s}
	tasks := x.c.answers(t, s.nodes[2].caller)
	task, err := s.nodes[0].startTask(tasks[0])
	if err != nil {
		t.Fatal(err)
	}
	info := s.nodes[0].awaitSandbox(t, *task.SandboxID, "RUNNING")
	x.c.issued(t, "a sandbox's key, of a conversation", *info.SessionAPIKey)
	x.balance(t)
	x.issueKeys(t)
	x.issueLinks(t)
	x.converse(t)

	x.awaitSnapshots(t)
	x.nodesFiles(t)
	x.eventsFiles(t)
	x.backup(t)
	x.debugArchive(t)
	x.answersToGET(t)
	x.goroutines(t)
	x.inNomad(t)
	x.inVault(t)
	x.processes(t)
	x.homeOfTheClient(t)
	if x.proxy != nil {
		raw, err := os.ReadFile(x.proxy.Log)
		if err != nil {
			t.Fatal(err)
		}
		x.found(t, "HAProxy's log", 1, x.leaks(raw))
	}
	t.Logf("%d values were planted or issued: %s", len(x.c.distinct()), strings.Join(x.c.kinds(), ", "))
	t.Logf("searched, how many files or answers, found:\n%s", strings.Join(x.table, "\n"))
	for _, id := range []string{x.sandbox, x.talk.sandbox} {
		s.nodes[0].do(t, http.StatusOK, http.MethodDelete, "/api/v1/operator/sandboxes/"+id, nil)
	}
	s.deleteAll(t)
	s.nodes[0].do(t, http.StatusOK, http.MethodDelete, "/api/v1/operator/specs/pages", nil)
}

// homeOfTheClient: what a conversation configures is not configured for whoever runs Nomad's client.
func (x *canarySearch) homeOfTheClient(t *testing.T) {
	out, _ := exec.CommandContext(t.Context(), "git", "config", "--global", "--get", "user.name").Output()
	if strings.Contains(string(out), plainText) {
		t.Errorf("a sandbox set the git user of the Nomad client: %s", out)
	}
}

// without returns the canaries that are not in the list.
func (c *canaries) without(list []string) *canaries {
	left := &canaries{names: c.names}
	for _, v := range c.distinct() {
		if !slices.Contains(list, cmp.Or(c.names[v], v)) {
			left.values = append(left.values, v)
		}
	}
	return left
}

// kinds lists what was planted, and what was issued.
func (c *canaries) kinds() (list []string) {
	for _, v := range c.values {
		what := c.names[v]
		if what == "" {
			parts := strings.Split(v, "-")
			what = strings.Join(parts[1:len(parts)-1], "-")
		}
		if !slices.Contains(list, what) {
			list = append(list, what)
		}
	}
	return list
}

// leaks returns the canaries in b that may not be there.
func (s *canarySearch) leaks(b []byte) []string { return s.c.leaks(b) }

// keyOfASandbox begins the names of sandboxes' keys.
const keyOfASandbox = "a sandbox's key"

// balance starts HAProxy, for the requests that follow.
func (s *canarySearch) balance(t *testing.T) {
	s.balancer = s.nodes[0].base
	if local.HAProxyInstalled() == "" {
		if required("haproxy") {
			t.Fatal("haproxy is not installed")
		}
		return
	}
	var nodes []string
	for _, n := range s.nodes {
		nodes = append(nodes, strings.TrimPrefix(n.base, "http://"))
	}
	var err error
	if s.proxy, err = local.StartHAProxy(t.Context(), local.HAProxyOptions{Dir: t.TempDir(), Nodes: nodes}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, "HAProxy", s.proxy.Close) })
	s.balancer = s.proxy.Address
	eventually(t, "HAProxy has nodes", func() error {
		a, err := s.through(s.nodes[0].key).try(http.MethodGet, "/api/settings", nil)
		if err == nil && a.status != http.StatusOK {
			err = errors.New(a.String())
		}
		return err
	})
}

// through is a caller through HAProxy.
func (s *canarySearch) through(key string) caller { return caller{base: s.balancer, key: key} }

// issueKeys has keys of a user and of operators made, with and without an Idempotency-Key, and
// uses each.
func (s *canarySearch) issueKeys(t *testing.T) {
	s.c.issued(t, "the first operator's key", strings.SplitN(s.nodes[0].key, "_", 3)[2])
	for _, one := range []struct {
		user, idempotency string
		operator          bool
	}{{user: "dora"}, {user: "dora", idempotency: "again"}, {user: "olga", operator: true}} {
		n := s.nodes[1].caller
		if one.idempotency != "" {
			n = n.with("Idempotency-Key", one.idempotency)
		}
		var made struct{ Key string }
		body := map[string]any{"user": one.user, "name": "search", "operator": one.operator}
		n.do(t, http.StatusCreated, http.MethodPost, "/api/v1/operator/keys", body).json(t, &made)
		what := fmt.Sprintf("a key of %s (operator: %t, Idempotency-Key: %t)", one.user, one.operator, one.idempotency != "")
		s.c.issued(t, what, strings.SplitN(made.Key, "_", 3)[2])
		if one.idempotency != "" {
			a := n.do(t, http.StatusConflict, http.MethodPost, "/api/v1/operator/keys", body)
			s.found(t, "the answer to a repeated creation of a key", 1, s.leaks(a.body))
		}
		s.through(made.Key).do(t, http.StatusOK, http.MethodGet, "/api/v1/sandboxes/search?limit=1&key="+made.Key, nil)
		if one.user == "dora" {
			s.user = made.Key
		}
	}
	var c canaries
	s.through(s.user).do(t, http.StatusOK, http.MethodPost, "/api/settings", c.settings())
}

// issueLinks has a sandbox's key, a code, a share and a pass made, and then another key.
func (s *canarySearch) issueLinks(t *testing.T) {
	operator, user := s.nodes[0].caller, s.through(s.user)
	var specs struct {
		Items []struct {
			ID       string
			Template map[string]any
		}
	}
	operator.do(t, http.StatusOK, http.MethodGet, "/api/v1/operator/specs", nil).json(t, &specs)
	pages := specs.Items[slices.IndexFunc(specs.Items, func(i struct {
		ID       string
		Template map[string]any
	}) bool {
		return i.ID == "raw"
	})].Template
	pages["ports"].(map[string]any)["WORKER_1"] = 0
	operator.do(t, http.StatusOK, http.MethodPost, "/api/v1/operator/specs",
		map[string]any{"specs": []any{map[string]any{"id": "pages", "template": pages}}})

	s.sandbox = user.startSandboxOf(t, "pages")
	before := *user.awaitSandbox(t, s.sandbox, "RUNNING").SessionAPIKey
	s.c.issued(t, "a sandbox's key before the rotation", before)
	at := "/api/v1/sandboxes/" + s.sandbox
	for _, way := range []string{"code", "share"} {
		_, token := user.workerURL(t, s.sandbox)
		if way == "share" {
			var share struct{ URL string }
			user.do(t, http.StatusOK, http.MethodPost, at+"/ports/WORKER_1/share", map[string]any{}).json(t, &share)
			_, token, _ = strings.Cut(share.URL, "#bivouac=")
		}
		s.c.issued(t, "the "+way+" of a page", token)
		var opened struct{ To string }
		s.through("").do(t, http.StatusOK, http.MethodPost, "/sandboxes/"+s.sandbox+"/WORKER_1/.bivouac/open",
			map[string]string{"code": token}).json(t, &opened)
		_, pass, _ := strings.Cut(opened.To, "/.bivouac/")
		pass, _, _ = strings.Cut(pass, "/")
		s.c.issued(t, "the pass of a "+way, pass)
		if a, err := s.through("").try(http.MethodGet, opened.To+"/?a=b", nil); err != nil ||
			a.status == http.StatusUnauthorized {
			t.Errorf("the pass of a %s: %s, %v", way, a, err)
		}
	}
	agent := "/sandboxes/" + s.sandbox + "/AGENT_SERVER/api/conversations/count"
	for _, key := range []string{before, "wrong"} {
		_, _ = s.through(key).try(http.MethodGet, agent+"?session_api_key="+before+"&tkn="+before, nil)
	}
	user.do(t, http.StatusOK, http.MethodPost, at+"/rotate-key", nil)
	eventually(t, "the sandbox has another key", func() error {
		info, err := user.sandbox(s.sandbox)
		if err == nil && (info.SessionAPIKey == nil || *info.SessionAPIKey == before) {
			err = errors.New(info.Status)
		}
		if err == nil {
			s.c.issued(t, "a sandbox's key after the rotation", *info.SessionAPIKey)
		}
		return err
	})
	s.through(before).do(t, http.StatusUnauthorized, http.MethodGet, agent, nil)
	s.through(s.c.values[len(s.c.values)-1]).do(t, http.StatusOK, http.MethodGet, agent, nil)
}

// awaitSnapshots writes until every node has a snapshot with the plain text, which is written here.
func (s *canarySearch) awaitSnapshots(t *testing.T) {
	eventually(t, "every node has a snapshot", func() error {
		settings := s.c.settings()
		settings["git_user_name"] = plainText
		if _, err := s.nodes[0].try(http.MethodPost, "/api/settings", settings); err != nil {
			return err
		}
		for _, n := range s.nodes {
			files, err := filepath.Glob(filepath.Join(n.dir, "data", "snapshots", "*", "*"))
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(files, func(file string) bool { return hasPlain(file) }) {
				return errors.New(n.name + " has none")
			}
		}
		return nil
	})
}

func hasPlain(file string) bool { return hasText(file, plainText) }

// hasText reports whether the search finds a text in a file.
func hasText(file, text string) bool {
	raw, err := os.ReadFile(file)
	plain := canaries{values: []string{text}}
	return err == nil && plain.leak(raw) != ""
}

// nodesFiles searches what the nodes wrote: the Raft log, the snapshots and the logs.
func (s *canarySearch) nodesFiles(t *testing.T) {
	for _, n := range s.nodes {
		logs := 0
		files, leaks := s.files(t, n.dir, func(path string) bool {
			if strings.HasSuffix(path, ".wal") && hasPlain(path) {
				logs++
			}
			return true
		})
		if logs == 0 {
			t.Errorf("the search can't read the Raft log of %s", n.name)
		}
		s.found(t, n.name+": Raft log, snapshots and other files", files, leaks)
		output := n.process.stdout.String() + n.process.stderr.String()
		s.found(t, n.name+": log at debug, lines", strings.Count(output, "\n"), s.leaks([]byte(output)))
	}
}

// files searches the files below dir for which in returns true.
func (s *canarySearch) files(t *testing.T, dir string, in func(path string) bool) (files int, leaks []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil || !d.Type().IsRegular() || !in(path) {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // removed meanwhile
		}
		files++
		for _, v := range s.leaks(b) {
			leaks = append(leaks, v+" in "+path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, leaks
}

// backup searches a file of the whole state.
func (s *canarySearch) backup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bivouac.snap")
	mustRun(t, nil, "operator", "snapshot", "save", file, "--address", s.nodes[1].base, "--api-key-file", s.keyFile)
	if !hasPlain(file) || !hasText(file, s.talk.event) {
		t.Error("the search can't read a backup, or the backup has no events")
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s.found(t, "operator snapshot save", 1, s.leaks(raw))
}

// answersToGET searches the answers to every GET that needs no id, and to those of a sandbox, as
// the user and as an operator. The owner reads the MCP configuration and sandboxes' keys and codes.
func (s *canarySearch) answersToGET(t *testing.T) {
	var doc struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(httpapi.Description(), &doc); err != nil {
		t.Fatal(err)
	}
	sandbox := strings.NewReplacer("{sandbox_id}", s.sandbox)
	const followed = "/api/v1/operator/log" // without an end
	paths := []string{
		"/api/v1/sandboxes?id=" + s.sandbox, "/api/v1/sandbox-specs?id=pages", "/api/v1/operator/debug/config",
		"/api/v1/operator/debug/metrics", "/api/v1/operator/pprof/goroutine",
	}
	for path, methods := range doc.Paths {
		if methods["get"] != nil && !strings.Contains(sandbox.Replace(path), "{") {
			paths = append(paths, sandbox.Replace(path))
		}
	}
	for who, key := range map[string]string{"a user": s.user, "an operator": s.nodes[0].key} {
		var leaks []string
		answered := 0
		for _, path := range paths {
			c := caller{base: s.nodes[1].base, key: key}
			if path == followed {
				c.follow = 2 * time.Second
			}
			a, err := c.try(http.MethodGet, path, nil)
			if err != nil {
				t.Fatal(path, err)
			}
			if a.status == http.StatusOK {
				answered++
			}
			owners := strings.HasPrefix(path, "/api/v1/sandboxes") || strings.HasPrefix(path, "/api/v1/app-conversations")
			for _, v := range s.leaks(fmt.Append(a.body, a.header)) {
				mcp := strings.HasPrefix(v, "canary-settings-") || strings.HasPrefix(v, "canary-providers-")
				mcp = mcp && (path == "/api/settings" || path == "/api/v1/settings")
				if !mcp && (!owners || !strings.HasPrefix(v, keyOfASandbox)) {
					leaks = append(leaks, v+" in GET "+path)
				}
			}
		}
		s.found(t, fmt.Sprintf("answers to %d GET routes as %s, 200", len(paths), who), answered, leaks)
	}
}

// goroutines ends a node with SIGQUIT, searches what it prints, and starts it again.
func (s *canarySearch) goroutines(t *testing.T) {
	n := s.nodes[(s.leader(t)+1)%len(s.nodes)]
	at := len(n.process.stderr.String())
	if err := n.process.cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	n.process.wait(t)
	dump := n.process.stderr.String()[at:]
	s.found(t, n.name+": stacks after SIGQUIT, goroutines", strings.Count(dump, "\ngoroutine "), s.leaks([]byte(dump)))
	n.start()
	n.ready(t)
}

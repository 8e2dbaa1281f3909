package e2e

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// pageSecret is what the page of the first sandbox has and the second must not get.
const pageSecret = "SECRET-A"

// pagesHTML is the page of both sandboxes' workers. It can plant a secret, and attack.
//
//go:embed testdata/pages.html
var pagesHTML string

// worker is the program at a sandbox's WORKER_1.
type worker struct {
	secret string
	mu     sync.Mutex
	hits   []string
}

// ServeHTTP implements http.Handler.
func (w *worker) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.hits = append(w.hits, r.URL.Path)
	w.mu.Unlock()
	switch r.URL.Path {
	case "/data":
		fmt.Fprint(rw, w.secret)
	case "/data.js":
		rw.Header().Set("Content-Type", "text/javascript")
		fmt.Fprintf(rw, "window.included = %q", w.secret)
	case "/sw.js":
		rw.Header().Set("Content-Type", "text/javascript")
		rw.Header().Set("Service-Worker-Allowed", "/")
		fmt.Fprint(rw, "self.addEventListener('fetch', () => {})")
	case "/ws":
		conn, err := websocket.Accept(rw, r, nil) // this compares Origin with Host
		if err != nil {
			return
		}
		_ = conn.Write(r.Context(), websocket.MessageText, []byte(w.secret))
		_ = conn.Close(websocket.StatusNormalClosure, "")
	default:
		rw.Header().Set("Content-Type", "text/html; charset=utf-8")
		rw.Header().Set("Set-Cookie", "served="+w.secret+"; Path=/")
		fmt.Fprint(rw, strings.ReplaceAll(pagesHTML, "{secret}", w.secret))
	}
}

// serve serves the worker on an address until the test ends.
func (w *worker) serve(t *testing.T, address string) {
	t.Helper()
	srv := &http.Server{Handler: w, ReadHeaderTimeout: time.Minute}
	testcluster.Eventually(t, "the worker's port is free", func() error {
		l, err := net.Listen("tcp", address)
		if err == nil {
			go func() { _ = srv.Serve(l) }() // it ends with Close
		}
		return err
	})
	t.Cleanup(func() { _ = srv.Close() })
}

// reads counts the requests for what the page of another sandbox has no business with.
func (w *worker) reads() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, path := range w.hits {
		if path == "/data" || path == "/data.js" || path == "/ws" {
			n++
		}
	}
	return n
}

// pageSandbox is a user's sandbox with a worker.
type pageSandbox struct {
	id string
	*worker
	// path and host are the worker's URLs on the API's address and on its own host.
	path, host string
	agent      string
	// fragment is the fragment of a shared URL, which opens the page.
	fragment string
}

// pageSandboxOf makes a user with a sandbox, and serves its WORKER_1.
func pageSandboxOf(t *testing.T, api testcluster.Client, user, secret string) pageSandbox {
	t.Helper()
	var issued struct{ Key string }
	api.Sure(t, "POST", "/api/v1/operator/keys", map[string]any{"user": user, "name": "browser"}, &issued)
	mine := testcluster.Client{Base: api.Base, Key: issued.Key}
	var made testcluster.Sandbox
	mine.Sure(t, "POST", "/api/v1/sandboxes", nil, &made)
	sb := pageSandbox{id: made.ID, worker: &worker{secret: secret}}
	var now []struct {
		Status string
		URLs   []struct {
			Name, URL string
			Port      int
		} `json:"exposed_urls"`
	}
	testcluster.Eventually(t, user+"'s sandbox runs", func() error {
		if err := mine.Get("/api/v1/sandboxes?id="+made.ID, &now); err != nil {
			return err
		}
		if len(now) != 1 || now[0].Status != "RUNNING" {
			return fmt.Errorf("%+v", now)
		}
		return nil
	})
	for _, u := range now[0].URLs {
		switch u.Name {
		case "AGENT_SERVER":
			sb.agent = u.URL
		case "WORKER_1":
			sb.host, _, _ = strings.Cut(u.URL, "/#")
			sb.path = api.Base + "/sandboxes/" + made.ID + "/WORKER_1"
			sb.serve(t, fmt.Sprintf("127.0.0.1:%d", u.Port))
		}
	}
	testcluster.Eventually(t, user+" shares the port", func() error { // until the protocol's version is raised
		var share struct{ URL string }
		err := mine.Do("POST", "/api/v1/sandboxes/"+made.ID+"/ports/WORKER_1/share", map[string]any{}, &share)
		_, fragment, _ := strings.Cut(share.URL, "#")
		sb.fragment = "#" + fragment
		return err
	})
	return sb
}

// applyPageSpec makes the spec of sandboxes with a worker the only one.
func applyPageSpec(t *testing.T, api testcluster.Client) {
	t.Helper()
	api.Sure(t, "POST", "/api/v1/operator/specs", map[string]any{"replace": true,
		"specs": []any{map[string]any{"id": "page", "template": map[string]any{
			"driver": "process", "isolation": "none", "command": "sandbox-agent", "working_dir": "project", "cpu": 100,
			"memory": 64,
			"ports":  map[string]int{"AGENT_SERVER": 0, "WORKER_1": 0}}}}}, nil)
}

// TestPages_AnotherUsersSandbox: a person has a sandbox open in a browser, and then opens the page
// of another user's sandbox, by a link that was shared. That page reaches nothing of the first,
// neither where both are on the API's address nor where each has a host of its own.
func TestPages_AnotherUsersSandbox(t *testing.T) {
	browser := startChromium(t)
	dev, _, info := startedDev(t)
	api := testcluster.Client{Base: info.Nodes[0].HTTP, Key: info.APIKey}
	applyPageSpec(t, api)
	a, b := pageSandboxOf(t, api, "ann", pageSecret), pageSandboxOf(t, api, "bob", "SECRET-B")

	modes := []string{"path", "host"}
	table := map[string]map[string]string{}
	for _, mode := range modes {
		at := func(sb pageSandbox) string {
			if mode == "host" {
				return sb.host + "/"
			}
			return sb.path + "/"
		}
		victim := browser.open(t, at(a)+a.fragment, "plant")
		var planted []string
		if err := victim.eval("plant()", &planted); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: the first page has %s", mode, strings.Join(planted, ", "))
		want := map[string]string{
			"path": "fetch, WebSocket",
			"host": "localStorage, cookie, cache, service worker, fetch, WebSocket",
		}
		if got := strings.Join(planted, ", "); got != want[mode] {
			t.Errorf("%s: the first page can use %s, want %s", mode, got, want[mode])
		}
		target, err := json.Marshal(map[string]string{"id": a.id, "url": at(a), "agent": a.agent, "api": api.Base})
		if err != nil {
			t.Fatal(err)
		}
		// The same attack by the first page itself shows that the attack finds what there is.
		if mode == "host" {
			for vector, got := range attack(t, victim, string(target)) {
				if !strings.Contains(got, pageSecret) && vector != "agent server" {
					t.Errorf("the first page itself does not reach its own %s: %s", vector, got)
				}
			}
		}
		before := a.reads()
		for vector, got := range attack(t, browser.open(t, at(b)+b.fragment, "plant"), string(target)) {
			if table[vector] == nil {
				table[vector] = map[string]string{}
			}
			table[vector][mode] = got
			if strings.Contains(got, pageSecret) || strings.Contains(got, a.id) {
				t.Errorf("%s: another user's page reaches the %s: %s", mode, vector, got)
			}
		}
		if n := a.reads() - before; n != 0 {
			t.Errorf("%s: %d requests of another user's page reached the worker", mode, n)
		}
	}
	vectors := []string{}
	for vector := range table {
		vectors = append(vectors, vector)
	}
	slices.Sort(vectors)
	for _, vector := range vectors {
		t.Logf("%-15s | path: %-70s | host: %s", vector, table[vector]["path"], table[vector]["host"])
	}
	if len(vectors) < 8 {
		t.Errorf("only %d ways were tried", len(vectors))
	}
	dev.interrupt(t)
}

// attack runs the page's attack on a target: what it got, by the way it took.
func attack(t *testing.T, page *tab, target string) (got map[string]string) {
	t.Helper()
	if err := page.eval("attack("+target+")", &got); err != nil {
		t.Fatal(err)
	}
	return got
}

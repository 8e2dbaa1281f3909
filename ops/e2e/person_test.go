package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// person is a user of the drill with a sandbox, whose WORKER_1 the test serves.
type person struct {
	testcluster.Client
	drill *testing.T // of which the pages are
	f     *testcluster.Cluster
	name  string
	id    string
	// key is the sandbox's own key, cookie a browser's for the page, host the page's.
	key, cookie, host string
	// conversation is in the sandbox, file a path in its workspace.
	conversation, file string
	// closePage ends the page's server, nil before the first.
	closePage func() error
}

// newPerson issues a key, stores a secret and starts a sandbox.
func newPerson(t *testing.T, f *testcluster.Cluster, name string) *person {
	t.Helper()
	p := &person{
		drill:  t,
		f:      f,
		name:   name,
		Client: testcluster.Client{Base: f.Nodes[0].Base, Key: f.Nodes[0].NewKey(t, name)},
	}
	p.Sure(t, http.MethodPost, "/api/settings", map[string]any{"llm_api_key": "sk-" + name}, nil)
	p.id = p.StartSandbox(t, "pages")
	p.open(t)
	sb := p.inside(t)
	dir, err := sb.WorkspaceDir()
	if err != nil {
		t.Fatal(err)
	}
	var made struct{ ID string }
	sb.Inside().Sure(t, http.MethodPost, "/api/conversations", map[string]any{
		"workspace":      map[string]any{"kind": "LocalWorkspace", "working_dir": dir},
		"agent_settings": map[string]any{"agent_kind": "openhands", "llm": map[string]any{"model": "none"}},
	}, &made)
	p.conversation, p.file = made.ID, dir+"/"+workspaceFile
	return p
}

// open waits until the sandbox runs, serves its page and opens it as a browser does.
func (p *person) open(t *testing.T) {
	t.Helper()
	sb := p.AwaitSandbox(t, p.id, "RUNNING")
	p.key = *sb.SessionAPIKey
	for _, u := range sb.ExposedURLs {
		if u.Name == "WORKER_1" {
			at, err := url.Parse(u.URL)
			if err != nil {
				t.Fatal(err)
			}
			p.host = at.Host
		}
	}
	if p.closePage != nil { // Nomad may place the port again
		_ = p.closePage()
	}
	p.closePage = servePage(t, p.drill, p.address(t, "WORKER_1"))
	testcluster.Eventually(t, "the page opens", func() error {
		a, err := p.page(p.f.Nodes[0], "/", "X-Session-API-Key", p.key)
		if err != nil {
			return err
		}
		defer a.Body.Close()
		if a.StatusCode != http.StatusOK || len(a.Cookies()) == 0 {
			return fmt.Errorf("%s with %d cookies", a.Status, len(a.Cookies()))
		}
		p.cookie = a.Cookies()[0].Name + "=" + a.Cookies()[0].Value
		return nil
	})
}

// address returns where Nomad placed a port of the sandbox.
func (p *person) address(t *testing.T, port string) string {
	t.Helper()
	allocs, err := p.f.Allocs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range allocs {
		if a.JobID != "sandbox-"+p.id || !a.Live() || a.DesiredStatus != "run" {
			continue
		}
		var full struct {
			AllocatedResources struct {
				Shared struct {
					Ports []struct {
						Label string
						Value int
					}
				}
			}
		}
		if err := p.f.Nomad.Do(t.Context(), http.MethodGet, "allocation/"+a.ID, nil, &full); err != nil {
			t.Fatal(err)
		}
		for _, one := range full.AllocatedResources.Shared.Ports {
			if one.Label == port {
				return net.JoinHostPort("127.0.0.1", fmt.Sprint(one.Value))
			}
		}
	}
	t.Fatalf("the sandbox %s has no port %s in %+v", p.id, port, allocs)
	return ""
}

// servePage serves a page and an event stream without an end, until it is closed or the drill ends.
func servePage(t, drill *testing.T, address string) (end func() error) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/events" {
				fmt.Fprint(w, "a page")
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			for tick := time.NewTicker(100 * time.Millisecond); ; {
				if _, err := fmt.Fprint(w, "data: on\n\n"); err != nil || http.NewResponseController(w).Flush() != nil {
					return
				}
				select {
				case <-tick.C:
				case <-r.Context().Done():
					return
				}
			}
		})}
	go func() { _ = srv.Serve(l) }() // it ends with Close
	drill.Cleanup(func() { _ = srv.Close() })
	return srv.Close
}

// page requests a path of the page's host through a node, with a header.
func (p *person) page(n *testcluster.Node, path, name, value string) (*http.Response, error) {
	r, err := http.NewRequest(http.MethodGet, n.Base+path, nil)
	if err != nil {
		return nil, err
	}
	r.Host = p.host
	r.Header.Set(name, value)
	return http.DefaultTransport.RoundTrip(r)
}

// at returns a path of the agent server at a node.
func (p *person) at(path string) string { return "/sandboxes/" + p.id + "/AGENT_SERVER" + path }

// inside returns the running sandbox with its agent server's URL on a node's address, because the
// domain does not resolve.
func (p *person) inside(t *testing.T) testcluster.Sandbox {
	t.Helper()
	sb := p.AwaitSandbox(t, p.id, "RUNNING")
	for i := range sb.ExposedURLs {
		if one := &sb.ExposedURLs[i]; one.Name == "AGENT_SERVER" {
			one.URL = p.Base + p.at("")
		}
	}
	return sb
}

// ways are the ways in, by what opens them. Each returns the status of a request through a node.
func (p *person) ways() map[string]func(*testcluster.Node) (int, error) {
	with := func(key, path string) func(*testcluster.Node) (int, error) {
		return func(n *testcluster.Node) (int, error) {
			a, err := testcluster.Client{Base: n.Base, Key: key}.Try(http.MethodGet, path, nil)
			return a.Status, err
		}
	}
	return map[string]func(*testcluster.Node) (int, error){
		"the user's key":                       with(p.Key, "/api/v1/sandboxes/search"),
		"the user's key at the sandbox":        with(p.Key, p.at("/api/conversations/count")),
		"the sandbox's key":                    with(p.key, p.at("/api/conversations/count")),
		"the sandbox's key for user's secrets": with(p.key, "/api/v1/sandboxes/"+p.id+"/settings/secrets"),
		"the browser's cookie": func(n *testcluster.Node) (int, error) {
			a, err := p.page(n, "/", "Cookie", p.cookie)
			if err != nil {
				return 0, err
			}
			return a.StatusCode, a.Body.Close()
		},
	}
}

// everyWay waits until the status of every way in through every node is what fine accepts, and
// returns how long that took.
func (p *person) everyWay(
	t *testing.T,
	what string,
	ways map[string]func(*testcluster.Node) (int, error),
	fine func(int) bool,
) time.Duration {
	t.Helper()
	begin := time.Now()
	for name, ask := range ways {
		for _, n := range p.f.Nodes {
			err := testcluster.Poll(lockoutPatience-time.Since(begin), 20*time.Millisecond, func() error {
				status, err := ask(n)
				if err == nil && !fine(status) {
					err = fmt.Errorf("status %d", status)
				}
				return err
			})
			if err != nil {
				t.Errorf("%s: %s through %s: %v", what, name, n.Name, err)
			}
		}
	}
	return time.Since(begin)
}

// streams are open streams through one node, and when each ended.
type streams struct {
	node  string
	ended map[string]chan time.Time
}

// stream opens a WebSocket by the user's key and one by the sandbox's, and an event stream by the
// cookie.
func (p *person) stream(t *testing.T, n *testcluster.Node) streams {
	t.Helper()
	s := streams{node: n.Name, ended: map[string]chan time.Time{}}
	until := func(what string, read func() error) {
		if err := read(); err != nil {
			t.Fatalf("%s through %s: %v", what, n.Name, err)
		}
		done := make(chan time.Time, 1)
		s.ended[what] = done
		go func() {
			for read() == nil {
			}
			done <- time.Now()
		}()
	}
	for what, key := range map[string]string{
		"a WebSocket by the user's key":    p.Key,
		"a WebSocket by the sandbox's key": p.key,
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		t.Cleanup(cancel)
		conn, _, err := websocket.Dial(ctx, strings.Replace(n.Base, "http", "ws",
			1)+p.at("/sockets/events/"+p.conversation), &websocket.DialOptions{
			HTTPHeader: http.Header{"X-Session-API-Key": {key}},
		})
		if err != nil {
			t.Fatalf("%s through %s: %v", what, n.Name, err)
		}
		t.Cleanup(func() { _ = conn.CloseNow() })
		first := true
		until(what, func() error {
			if first { // the stream may have nothing to say
				first = false
				return nil
			}
			_, _, err := conn.Read(ctx)
			return err
		})
	}
	a, err := p.page(n, "/events", "Cookie", p.cookie)
	if err != nil || a.StatusCode != http.StatusOK {
		t.Fatalf("the event stream through %s: %v %v", n.Name, a, err)
	}
	t.Cleanup(func() { _ = a.Body.Close() })
	buf := make([]byte, 64)
	until("an event stream by the cookie", func() error {
		_, err := io.ReadAtLeast(a.Body, buf, 1)
		return err
	})
	return s
}

// awaitEnd waits until all streams have ended, and returns how long after begin the last one did.
func awaitEnd(t *testing.T, begin time.Time, patience time.Duration, all []streams) (last time.Duration) {
	t.Helper()
	late := time.After(patience)
	for _, s := range all {
		for what, done := range s.ended {
			select {
			case at := <-done:
				last = max(last, at.Sub(begin))
			case <-late:
				t.Fatalf("%s through %s goes on %s after it should end", what, s.node, time.Since(begin))
			}
		}
	}
	return last
}

func (p *person) streamEverywhere(t *testing.T) (all []streams) {
	t.Helper()
	for _, n := range p.f.Nodes {
		all = append(all, p.stream(t, n))
	}
	return all
}

// within notes a time against the promise.
func within(d time.Duration) string {
	if d > lockoutBound {
		return fmt.Sprintf("%.1f s, over the %s that an idle machine keeps", d.Seconds(), lockoutBound)
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

func opens(status int) bool { return status/100 == 2 }

func closes(status int) bool { return status == http.StatusUnauthorized }

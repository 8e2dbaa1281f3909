package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// disabledConfig gives pages hosts of their own, and ends streams soon on a node without a leader.
const disabledConfig = `
sandboxes {
  url       = "proxy"
  domain    = "sandboxes.test"
  max_stale = "10s"
}
`

// disabledSpecs: sandboxes with a port for pages, and one whose start takes for ever.
const disabledSpecs = `
spec "pages" {
  driver      = "raw_exec"
  isolation   = "none"
  command     = "AGENT"
  args        = ["--host", "HOST", "--port", "${port.agent_server}"]
  working_dir = "project"
  cpu         = 50
  memory      = 64
  port "AGENT_SERVER" {}
  port "WORKER_1" {}
}
spec "slow" {
  driver        = "raw_exec"
  isolation     = "none"
  command       = "/bin/sleep"
  args          = ["86400"]
  working_dir   = "project"
  cpu           = 50
  memory        = 64
  start_timeout = "10m"
  port "AGENT_SERVER" {}
}
`

// lockoutBound is what is promised for a lockout; lockoutPatience is how long the drill waits on a
// busy machine.
const (
	lockoutBound    = 5 * time.Second
	lockoutPatience = 30 * time.Second
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
}

// newPerson issues a key, stores a secret and starts a sandbox.
func newPerson(t *testing.T, f *testcluster.Cluster, name string) *person {
	t.Helper()
	p := &person{drill: t, f: f, name: name, Client: testcluster.Client{Base: f.Nodes[0].Base, Key: f.Nodes[0].NewKey(t, name)}}
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
	servePage(t, p.drill, p.address(t, "WORKER_1"))
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

// servePage serves a page and an event stream without an end, until the drill ends.
func servePage(t, drill *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
func (p *person) everyWay(t *testing.T, what string, ways map[string]func(*testcluster.Node) (int, error), fine func(int) bool) time.Duration {
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
	for what, key := range map[string]string{"a WebSocket by the user's key": p.Key, "a WebSocket by the sandbox's key": p.key} {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		t.Cleanup(cancel)
		conn, _, err := websocket.Dial(ctx, strings.Replace(n.Base, "http", "ws", 1)+p.at("/sockets/events/"+p.conversation), &websocket.DialOptions{
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

func opens(status int) bool  { return status/100 == 2 }
func closes(status int) bool { return status == http.StatusUnauthorized }

// TestDisabledUser locks users out of three nodes on the real stack: by another key for a sandbox,
// by `users disable` and by `users delete --purge`. Through every node nothing of theirs gets in,
// open streams end, and another user notices nothing. Without a leader streams end after max_stale.
func TestDisabledUser(t *testing.T) {
	f := testcluster.Start(t, testcluster.Options{Config: disabledConfig, Specs: disabledSpecs})
	alice, bob := newPerson(t, f, "alice"), newPerson(t, f, "bob")
	bobs := bob.streamEverywhere(t)
	t.Run("Operated", func(t *testing.T) { operated(t, bob) })
	t.Run("KeyReplaced", func(t *testing.T) { replacedKey(t, alice) })
	t.Run("Disabled", func(t *testing.T) { disabledUser(t, alice) })
	for _, s := range bobs {
		for what, done := range s.ended {
			select {
			case <-done:
				t.Errorf("bob's: %s through %s ended", what, s.node)
			default:
			}
		}
	}
	bob.everyWay(t, "bob all the time", bob.ways(), opens)
	t.Run("NoLeader", func(t *testing.T) { noLeader(t, bob) })
	t.Run("Purged", func(t *testing.T) { purgedUser(t, alice, bob) })
}

// operated reads what a user has by the operators' commands.
func operated(t *testing.T, p *person) {
	run := func(args ...string) string {
		t.Helper()
		return p.f.Run(t, append(args, "--address", p.f.Nodes[1].Base, "--api-key-file", p.f.KeyFile)...)
	}
	for want, args := range map[string][]string{
		"status        RUNNING\n":                    {"sandboxes", "show", p.id},
		"conversation created":                       {"sandboxes", "logs", p.id}, // the agent server writes to stderr
		"ID  USER  SANDBOX  CREATED  UPDATED  TITLE": {"conversations", "list", "--user", p.name},
	} {
		testcluster.Eventually(t, strings.Join(args, " "), func() error {
			if out := run(args...); !strings.Contains(out, want) {
				return fmt.Errorf("it printed %q, without %q", out, want)
			}
			return nil
		})
	}
}

// replacedKey gives a running and a paused sandbox another key.
func replacedKey(t *testing.T, p *person) {
	f, old := p.f, *p
	if err := p.inside(t).WriteFile(p.file, "kept"); err != nil {
		t.Fatal(err)
	}
	p.everyWay(t, "before", p.ways(), opens)
	ways := old.ways()
	delete(ways, "the user's key")
	delete(ways, "the user's key at the sandbox")
	all, begin := p.streamEverywhere(t), time.Now()
	testcluster.Eventually(t, "the key is replaced", func() error { // until the protocol's version is raised
		return p.Do(http.MethodPost, "/api/v1/sandboxes/"+p.id+"/rotate-key", nil, nil)
	})
	ended := awaitEnd(t, begin, lockoutPatience, all)
	refused := old.everyWay(t, "the key is replaced", ways, closes)
	p.open(t)
	ran := time.Since(begin)
	if p.key == old.key {
		t.Error("it has the same key")
	}
	if text, err := p.inside(t).ReadFile(p.file); err != nil || text != "kept" {
		t.Errorf("its file holds %q: %v", text, err)
	}
	p.everyWay(t, "by the new key", p.ways(), opens)
	out := f.Run(t, "sandboxes", "logs", "--previous", p.id, "--address", f.Nodes[1].Base, "--api-key-file", f.KeyFile)
	if !strings.Contains(out, "conversation created") {
		t.Errorf("the run before wrote %q", out)
	}
	old.everyWay(t, "by the old key", ways, closes)

	p.Change(t, p.id, "pause")
	p.AwaitSandbox(t, p.id, "PAUSED")
	second := *p
	f.Run(t, "sandboxes", "rotate-key", p.id, "--address", f.Nodes[1].Base, "--api-key-file", f.KeyFile)
	p.AwaitSandbox(t, p.id, "PAUSED")
	p.Change(t, p.id, "resume")
	p.open(t)
	p.everyWay(t, "by the third key", p.ways(), opens)
	for what, ask := range second.ways() {
		if strings.HasPrefix(what, "the user's") {
			continue
		}
		if status, err := ask(f.Nodes[2]); err != nil || !closes(status) {
			t.Errorf("%s of before the pause: %d %v", what, status, err)
		}
	}
	t.Logf("--- verdict: streams by the old key ended after %s, requests were refused after %s, it ran with the new key after %.1f s",
		within(ended), within(refused), ran.Seconds())
}

// disabledUser disables a user on one node, and enables the user on another.
func disabledUser(t *testing.T, p *person) {
	f := p.f
	f.SetDefault(t, "slow")
	task := p.StartConversation(t)
	all := p.streamEverywhere(t)
	begin := time.Now()
	f.Run(t, "users", "disable", p.name, "--address", f.Nodes[0].Base, "--api-key-file", f.KeyFile)
	ended := awaitEnd(t, begin, lockoutPatience, all)
	refused := p.everyWay(t, "disabled", p.ways(), closes)
	for _, n := range f.Nodes {
		a, err := testcluster.Client{Base: n.Base, Key: p.Key}.Try(http.MethodPost, "/api/v1/app-conversations", map[string]any{})
		if err != nil || a.Status != http.StatusUnauthorized {
			t.Errorf("a start through %s: %v %v", n.Name, a, err)
		}
	}
	testcluster.Eventually(t, "the sandbox is paused", func() error {
		var sb struct{ Status string }
		err := f.Nodes[2].Get("/api/v1/operator/sandboxes/"+p.id, &sb)
		if err == nil && sb.Status != "PAUSED" {
			err = errors.New(sb.Status)
		}
		return err
	})
	f.Run(t, "users", "enable", p.name, "--address", f.Nodes[1].Base, "--api-key-file", f.KeyFile)
	testcluster.Eventually(t, "the user is in again", func() error { return p.Get("/api/v1/sandboxes/search", nil) })
	if got, err := p.Task(task); err != nil || got.Status != "ERROR" || !strings.Contains(got.Text(), "the user is disabled") {
		t.Errorf("the start that was open: %+v %v", got, err)
	}
	f.SetDefault(t, "pages")
	p.Change(t, p.id, "resume")
	p.open(t)
	back := p.everyWay(t, "enabled", p.ways(), opens)
	t.Logf("--- verdict: streams ended after %s, requests were refused after %s through three nodes; enabled and resumed, all worked after %.1f s",
		within(ended), within(refused), back.Seconds())
}

// noLeader stops two nodes. The third can't learn who is locked out, and ends its streams.
func noLeader(t *testing.T, p *person) {
	f := p.f
	alone := f.Followers(t)[0]
	all := []streams{p.stream(t, alone)}
	begin := time.Now()
	for _, n := range f.Nodes {
		if n == alone {
			continue
		}
		pid := n.Pid()
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	}
	ended := awaitEnd(t, begin, 2*time.Minute, all)
	if ended < 5*time.Second {
		t.Errorf("the streams ended %s after the leader was gone: max_stale is 10 s", ended)
	}
	t.Logf("--- verdict: without a leader streams ended after %.1f s, max_stale is 10 s", ended.Seconds())
}

// purgedUser deletes one user with everything. The other's values stay in Vault.
func purgedUser(t *testing.T, gone, stays *person) {
	f := gone.f
	f.Leader(t)
	of := func(p *person) (count int, err error) {
		entries, err := f.VaultEntries()
		for _, e := range entries {
			if strings.Contains(e, "/users/"+p.name+"/") || strings.Contains(e, "sandbox-"+p.id+"/") {
				count++
			}
		}
		return count, err
	}
	before, err := of(gone)
	if err != nil || before < 2 {
		t.Fatalf("%s has %d entries in Vault: %v", gone.name, before, err)
	}
	others, err := of(stays)
	if err != nil || others < 2 {
		t.Fatalf("%s has %d entries in Vault: %v", stays.name, others, err)
	}
	out := f.Run(t, "users", "delete", "--purge", gone.name, "--yes", "--address", f.Nodes[1].Base, "--api-key-file", f.KeyFile)
	if !strings.Contains(out, "is deleted") {
		t.Errorf("it printed %q", out)
	}
	testcluster.Eventually(t, "everything of the user is gone", func() error {
		left, err := of(gone)
		if err == nil && left > 0 {
			err = fmt.Errorf("%d entries in Vault", left)
		}
		volumes, volumeErr := f.Volumes()
		for _, v := range volumes {
			if strings.Contains(v, gone.id) {
				err = errors.Join(err, fmt.Errorf("the workspace %s", v))
			}
		}
		return errors.Join(err, volumeErr)
	})
	gone.everyWay(t, "deleted", gone.ways(), closes)
	if now, err := of(stays); err != nil || now != others {
		t.Errorf("%s had %d entries in Vault and has %d: %v", stays.name, others, now, err)
	}
	stays.everyWay(t, "after another was deleted", stays.ways(), opens)
	t.Logf("--- verdict: %d entries in Vault went, the other user's %d stay", before, others)
}

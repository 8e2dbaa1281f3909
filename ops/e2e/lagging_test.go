//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/chaos"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// slowTimers let a node with delayed messages stay a follower.
const slowTimers = defaultTimers + `
  heartbeat_timeout    = "4s"
  election_timeout     = "4s"
  leader_lease_timeout = "2s"
`

const defaultTimers = `
  snapshot_threshold = 1000
  snapshot_interval  = "10s"
  trailing_logs      = 1000
`

// lagging is a test cluster with one node that is held back.
type lagging struct {
	*testcluster.Cluster
	net *chaos.Network
	// tally counts the responses by kind of request.
	mu    sync.Mutex
	tally map[string]map[string]int
}

// TestLaggingNode holds a node back while a key is revoked, and a sandbox deleted, through
// another node. Requests with that key then go to the node at once. It accepts no write, and it
// answers no read with data unless the read allows stale data. Stale reads count how often the
// node was behind.
func TestLaggingNode(t *testing.T) {
	if !long() {
		t.Skip("BIVOUAC_DRILL=long runs it; httpapi has tests of the same")
	}
	chaos.Need(t, testcluster.Need)
	net := chaos.NewNetwork(t, 3, 1)
	l := &lagging{
		Cluster: testcluster.Start(t, testcluster.Options{Net: net, Raft: slowTimers}),
		net:     net,
		tally:   map[string]map[string]int{},
	}
	for _, c := range []struct {
		name string
		hold func(t *testing.T, node *testcluster.Node) (resume func())
		// during: the requests are sent while the node is held back.
		during bool
	}{
		{"stopped for seconds", l.stopped, false},
		{"its packets come late", l.late, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 4 {
				l.round(t, c.hold, c.during)
			}
			stale := l.tally["a stale read"]["200"]
			t.Logf("--- verdict: a node that lags behind a revocation (%s): %s", c.name, l.said())
			if c.during && stale == 0 {
				t.Error("the node was never behind: nothing was shown")
			}
			clear(l.tally)
		})
	}
}

// stopped stops the node's process for a few seconds.
func (l *lagging) stopped(t *testing.T, node *testcluster.Node) func() {
	if err := syscall.Kill(node.Pid(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return func() {
		time.AfterFunc(2*time.Second, func() { _ = syscall.Kill(node.Pid(), syscall.SIGCONT) })
	}
}

// late delays the other nodes' messages to the node.
func (l *lagging) late(_ *testing.T, node *testcluster.Node) func() {
	to := slices.Index(l.Nodes, node)
	for from := range l.Nodes {
		if from != to {
			l.net.Set(from, to, chaos.Link{Delay: 500 * time.Millisecond})
		}
	}
	return func() {}
}

// ask is one request with a revoked key.
type ask struct {
	what         string
	method, path string
	body         any
	header       []string
	client       testcluster.Client
}

// round revokes one key and deletes one sandbox while a follower is held back.
func (l *lagging) round(t *testing.T, hold func(*testing.T, *testcluster.Node) func(), during bool) {
	t.Helper()
	behind := l.Followers(t)[0]
	var elsewhere *testcluster.Node
	for _, n := range l.Nodes {
		if n != behind {
			elsewhere = n
		}
	}
	var key struct {
		ID  int
		Key string
	}
	elsewhere.Sure(t, http.MethodPost, "/api/v1/operator/keys", map[string]any{"user": "alice", "name": "laptop"}, &key)
	user := testcluster.Client{Base: behind.Base, Key: key.Key}
	sb := elsewhere.AwaitSandbox(t, elsewhere.StartSandbox(t, "raw"), "RUNNING")
	inside := testcluster.Client{Base: behind.Base, Key: sb.Inside().Key}
	secrets := "/api/v1/sandboxes/" + sb.ID + "/settings/secrets"
	testcluster.Eventually(t, "both keys are good", func() error {
		return errors.Join(user.Do(http.MethodPost, "/api/settings", map[string]any{"language": "en"}, nil),
			inside.Get(secrets, nil))
	})
	resume := hold(t, behind)
	elsewhere.Sure(t, http.MethodDelete, fmt.Sprintf("/api/v1/operator/keys/%d", key.ID), nil, nil)
	elsewhere.Change(t, sb.ID, "delete")
	resume()
	l.all(t, []ask{
		{
			what:   "a write",
			method: http.MethodPost,
			path:   "/api/settings",
			body:   map[string]any{"language": "fr"},
			client: user,
		},
		{what: "a start", method: http.MethodPost, path: "/api/v1/sandboxes", client: user},
		{
			what:   "a conversation",
			method: http.MethodPost,
			path:   "/api/v1/app-conversations",
			body:   map[string]any{},
			client: user,
		},
		{what: "a read", method: http.MethodGet, path: "/api/settings", client: user},
		{what: "a search", method: http.MethodGet, path: "/api/v1/sandboxes/search", client: user},
		{
			what:   "a stale read",
			method: http.MethodGet,
			path:   "/api/settings",
			header: []string{"X-Bivouac-Consistency", "stale"},
			client: user,
		},
		{what: "a deleted sandbox's secrets", method: http.MethodGet, path: secrets, client: inside},
	})
	if during {
		l.net.Heal()
	}
	for _, n := range l.Nodes {
		n.Ready(t)
	}
}

// all sends the requests at once, each twice, and checks the responses.
func (l *lagging) all(t *testing.T, asks []ask) {
	t.Helper()
	var group sync.WaitGroup
	for _, a := range append(asks, asks...) {
		group.Go(func() {
			a.client.HTTP = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			answer, err := a.client.Try(a.method, a.path, a.body, a.header...)
			word := fmt.Sprint(answer.Status)
			if err != nil {
				word = "no answer"
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.tally[a.what] == nil {
				l.tally[a.what] = map[string]int{}
			}
			l.tally[a.what][word]++
			if answer.Status/100 == 2 && len(a.header) == 0 {
				t.Errorf("%s (%s %s) after its key was gone: %.200s", a.what, a.method, a.path, answer)
			}
		})
	}
	group.Wait()
}

// said describes the responses.
func (l *lagging) said() string {
	var list []string
	for _, what := range []string{
		"a write",
		"a start",
		"a conversation",
		"a read",
		"a search",
		"a deleted sandbox's secrets",
		"a stale read",
	} {
		list = append(list, fmt.Sprintf("%s %v", what, l.tally[what]))
	}
	return strings.Join(list, "; ")
}

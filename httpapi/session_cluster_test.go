package httpapi

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/session"
	"bivouac.dev/bivouac/httpapi/wire"
)

// signingNodes are three nodes with a sandbox of alice's, whose log never ends. They run in a
// bubble.
type signingNodes struct {
	t       *testing.T
	cluster *clustertest.Cluster
	servers []*Server
	alice   string
}

const signingSandbox = "sb1"

func newSigningNodes(t *testing.T) *signingNodes {
	t.Helper()
	n := &signingNodes{t: t, cluster: clustertest.New(t, 3)}
	n.cluster.Eventually("the protocol version is raised", func() bool {
		return n.cluster.Store(n.cluster.Leader()).View().ProtocolVersion() == fsm.ProtocolVersion
	})
	n.alice = apikey.Prefix + apikey.Random(apikey.LookupLen) + "_" + apikey.Random(apikey.SecretLen)
	n.propose("", &fsm.APIKeyCreateBody{
		Lookup: apikey.LookupOf(n.alice), Hash: apikey.Hash(n.alice), Name: "laptop", UserID: "alice",
	})
	n.propose("", &fsm.APIKeyCreateBody{Lookup: "second", Hash: apikey.Hash("second"), Name: "other", UserID: "alice"})
	n.propose("", &fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: "small", Template: fsm.Template{
		Driver: fsm.DriverDocker, Image: "agent:1", WorkingDir: "/workspace/project", CPU: 100, Memory: 64,
		Ports: map[string]int{fsm.PortAgentServer: 8000}, NetworkMode: "bridge", VolumePath: "/workspace",
	}}}})
	n.propose("alice", &fsm.SandboxCreateBody{
		ID: signingSandbox, KeyHash: apikey.Hash("k"),
		KeyRef: fsm.SecretRef{Path: fsm.SandboxKeyPath(signingSandbox), Version: 1},
	})
	for i := range 3 {
		cfg := DefaultConfig()
		cfg.Registerer, cfg.Gatherer = prometheus.NewRegistry(), prometheus.NewRegistry()
		cfg.Logger, cfg.Logs = slog.New(slog.DiscardHandler), endlessLogs{}
		server, err := New(cfg, n.cluster.Node(i), &fakeSecrets{entries: map[string][]map[string]string{}}, &fakeAgents{})
		if err != nil {
			t.Fatal(err)
		}
		n.servers = append(n.servers, server)
	}
	n.cluster.Settle()
	return n
}

func (n *signingNodes) propose(user string, body fsm.Body) {
	n.t.Helper()
	cmd := fsm.NewCommand(uuid.NewString(), time.Now(), user, body)
	if _, err := n.cluster.Propose(n.t.Context(), n.cluster.Leader(), cmd); err != nil {
		n.t.Fatalf("%s: %v", body.CommandType(), err)
	}
}

// request is one to a node on the browser's own machine.
func (n *signingNodes) request(method, path, body string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, "http://127.0.0.1:8440"+path, strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:5000"
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

func (n *signingNodes) ask(node int, method, path, body string, headers ...string) reply {
	n.t.Helper()
	w := httptest.NewRecorder()
	n.servers[node].Handler().ServeHTTP(w, n.request(method, path, body, headers...))
	return reply{status: w.Code, header: w.Header(), body: w.Body.Bytes()}
}

// signIn signs in at a node and returns the cookie.
func (n *signingNodes) signIn(node int) string {
	n.t.Helper()
	res := n.ask(node, "POST", pathLogin, `{"key":"`+n.alice+`"}`).want(n.t, http.StatusOK)
	cookie, _, _ := strings.Cut(res.header.Get("Set-Cookie"), ";")
	return cookie
}

// follow opens a stream at each node with the cookie; ended receives the nodes whose stream has
// ended.
func (n *signingNodes) follow(cookie string) (ended chan int) {
	ended = make(chan int, 3)
	for i := range 3 {
		go func() {
			r := n.request("GET", pathSandboxes+"/"+signingSandbox+"/logs?follow=true&stream=stdout", "", "Cookie", cookie)
			n.servers[i].Handler().ServeHTTP(httptest.NewRecorder(), r)
			ended <- i
		}()
	}
	return ended
}

// endlessLogs are logs that nothing is written to.
type endlessLogs struct{}

func (endlessLogs) Logs(_ context.Context, _, _ string, _ LogPart) (io.ReadCloser, error) {
	r, _ := io.Pipe()
	return r, nil
}

// TestSession_EndsEverywhere: a session that was opened on one node is good on all of them at once,
// and what ends it ends its requests at once and its open streams within five seconds, on every
// node.
func TestSession_EndsEverywhere(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*signingNodes, string){
		"the browser signs out": func(n *signingNodes, cookie string) {
			n.ask(2, "POST", pathLogout, "", "Cookie", cookie).want(n.t, http.StatusOK)
		},
		"the key is revoked":   func(n *signingNodes, _ string) { n.propose("", &fsm.APIKeyRevokeBody{ID: 1}) },
		"the key is disabled":  func(n *signingNodes, _ string) { n.propose("", &fsm.APIKeyDisableBody{ID: 1}) },
		"the user is disabled": func(n *signingNodes, _ string) { n.propose("", &fsm.UserDisableBody{UserID: "alice"}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newSigningNodes(t)
				defer n.cluster.Close()
				cookie := n.signIn(0)
				for i := range 3 {
					n.ask(i, "GET", ownList, "", "Cookie", cookie).want(t, http.StatusOK)
				}
				ended := n.follow(cookie)
				time.Sleep(10 * time.Second)
				if len(ended) > 0 {
					t.Fatalf("%d streams have ended before", len(ended))
				}
				end(n, cookie)
				for i := range 3 {
					n.ask(i, "GET", ownList, "", "Cookie", cookie).want(t, http.StatusUnauthorized)
				}
				time.Sleep(5 * time.Second)
				if len(ended) != 3 {
					t.Errorf("%d of 3 streams have ended after five seconds", len(ended))
				}
			})
		})
	}
}

// TestSession_CodeOnceInTheCluster: of two nodes that are given one code at the same time one opens
// a session, and a third one knows that it was used.
func TestSession_CodeOnceInTheCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newSigningNodes(t)
		defer n.cluster.Close()
		for range 5 {
			var made wire.SignInCode
			n.ask(0, "POST", pathLogin+"/codes", "", proxy.HeaderKey, n.alice).want(t, http.StatusOK).json(t, &made)
			body := `{"code":"` + made.Code + `"}`
			n.ask(2, "POST", pathLogin+"/code", body).want(t, http.StatusOK).is(t, `{"user":"alice","key":"laptop"}`)
			answers := make(chan int, 2)
			for i := range 2 {
				go func() { answers <- n.ask(i, "POST", pathLogin, body).status }()
			}
			if sum := <-answers + <-answers; sum != http.StatusOK+http.StatusUnauthorized {
				t.Errorf("the answers' statuses sum up to %d", sum)
			}
			n.ask(2, "POST", pathLogin+"/code", body).want(t, http.StatusUnauthorized)
		}
		if got := len(n.cluster.Store(n.cluster.Leader()).View().Sessions("alice")); got != 5 {
			t.Errorf("%d sessions of five codes", got)
		}
	})
}

// TestSession_NoOtherToken: a session has the token that the node drew, whatever the browser had
// before.
func TestSession_NoOtherToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newSigningNodes(t)
		defer n.cluster.Close()
		planted := session.CookiePlain + "=" + session.NewToken()
		res := n.ask(1, "POST", pathLogin, `{"key":"`+n.alice+`"}`, "Cookie", planted).want(t, http.StatusOK)
		if strings.HasPrefix(res.header.Get("Set-Cookie"), planted) {
			t.Error("the session has the token that was planted")
		}
		n.ask(1, "GET", ownList, "", "Cookie", planted).want(t, http.StatusUnauthorized)
	})
}

// TestSession_EndsItsCloudProxy: a stream of a sandbox that a page opened through the node's own origin
// ends with the page's session.
func TestSession_EndsItsCloudProxy(t *testing.T) {
	t.Parallel()
	h, behind := newProxyHarness(t)
	h.raised()
	behind.serve(func(_ string, w http.ResponseWriter, r *http.Request) bool {
		_, _ = io.WriteString(w, "first\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return true
	})
	page := func(path, body string, headers ...string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), "POST", h.front.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		headers = append(headers, "Sec-Fetch-Site", "same-origin", "Content-Type", "application/json")
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		res, err := client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = res.Body.Close() })
		if res.StatusCode != http.StatusOK {
			t.Fatalf("%s answers %d", path, res.StatusCode)
		}
		return res
	}
	cookie, _, _ := strings.Cut(page(pathLogin, `{"key":"`+h.alice+`"}`).Header.Get("Set-Cookie"), ";")
	stream := page(pathCloudProxy, h.envelope(map[string]any{"timeout_seconds": 300}), "Cookie", cookie).Body
	if _, err := io.ReadFull(stream, make([]byte, len("first\n"))); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, stream)
		ended <- err
	}()
	page(pathLogout, "", "Cookie", cookie)
	select {
	case <-ended:
	case <-time.After(10 * time.Second): // the call itself may take five minutes
		t.Error("the stream goes on")
	}
}

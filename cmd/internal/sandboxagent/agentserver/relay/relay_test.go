package relay

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/relay/relaytest"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/llmtoken"
	"bivouac.dev/bivouac/scheduler/agent"
)

const (
	testKey = "KEYCANARY0123456789"
	convID  = "6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01"
	otherID = "0123456789abcdef0123456789abcdef"
)

// relayOf is a relay to nodes, and what the agent of a conversation gets of it.
func relayOf(t *testing.T, urls ...string) *Relay {
	t.Helper()
	r := New(config.Config{APIURLs: urls, Keys: []string{testKey}, Logger: slog.New(slog.DiscardHandler)})
	r.begin = func(int) int { return 0 }
	t.Cleanup(r.Close)
	return r
}

func (r *Relay) agent(t *testing.T, id, key string) engine.LLM {
	t.Helper()
	llm, err := r.Access(id, engine.LLM{Model: "m", BaseURL: r.apis[0] + "/llm/v1", APIKey: key})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(llm.BaseURL, "http://127.0.0.1:") || strings.Contains(llm.APIKey, "TOKENCANARY") {
		t.Fatalf("the agent gets %+v", llm)
	}
	return llm
}

func TestRelay_AnAgentsRequestReachesTheGatewayWithItsConversationsToken(t *testing.T) {
	t.Parallel()
	n := relaytest.NewNode(t, testKey, []string{convID, otherID}, relaytest.Says200("the answer"))
	r := relayOf(t, n.URL)
	one, two := r.agent(t, convID, n.Token(convID)), r.agent(t, otherID, "")
	if one.APIKey == two.APIKey || one.BaseURL != two.BaseURL {
		t.Fatalf("two conversations get %+v and %+v", one, two)
	}
	base := strings.TrimSuffix(one.BaseURL, "/v1")
	for i, c := range []struct{ id, url, header, value string }{
		{convID, one.BaseURL + "/chat/completions?x=1", "Authorization", "Bearer " + one.APIKey},
		{otherID, two.BaseURL + "/responses", "authorization", "bearer " + two.APIKey},
		{convID, base + "/anthropic/v1/messages", "X-Api-Key", one.APIKey},
		{otherID, base + "/gemini/v1beta/models/a%2Fb:generateContent?alt=sse", "X-Goog-Api-Key", two.APIKey},
		{convID, base + "/gemini/v1beta/models/m:countTokens?key=" + one.APIKey, "X-Session-Api-Key", "stolen"},
	} {
		resp, text := relaytest.Ask(t, c.url, "the question", c.header, c.value)
		if resp.StatusCode != 200 || text != "the answer" {
			t.Fatalf("request %d: %d %s", i, resp.StatusCode, text)
		}
		n.Mu.Lock()
		got, body := n.Seen[len(n.Seen)-1], n.Bodies[len(n.Bodies)-1]
		n.Mu.Unlock()
		want := strings.TrimPrefix(strings.Split(c.url, "?key=")[0], base)
		if got.RequestURI != "/llm"+want || body != "the question" {
			t.Errorf("the gateway got %s with %q", got.RequestURI, body)
		}
		if got.Header.Get("Authorization") != "Bearer "+n.Token(c.id) || strings.Contains(fmt.Sprint(got.Header), "local-") ||
			got.Header.Get(agent.KeyHeader) != "" {
			t.Errorf("the gateway got %v", got.Header)
		}
	}
	if n.Fetched != 1 {
		t.Errorf("%d tokens were fetched, want that of the conversation that came without one", n.Fetched)
	}
}

func TestRelay_ALocalKeyIsGoodForModelsOfItsSandboxAlone(t *testing.T) {
	t.Parallel()
	n := relaytest.NewNode(t, testKey, []string{convID, otherID}, relaytest.Says200("ok"))
	r, stranger := relayOf(t, n.URL), relayOf(t, n.URL)
	mine, other := r.agent(t, convID, ""), stranger.agent(t, convID, "")
	base := strings.TrimSuffix(mine.BaseURL, "/llm/v1")
	for _, c := range []struct {
		path, key string
		want      int
	}{
		{
			"/llm/v1/chat/completions",
			"",
			401,
		}, {"/llm/v1/chat/completions", "guessed", 401}, {"/llm/v1/chat/completions", other.APIKey, 401},
		{"/llm/v1/chat/completions", testKey, 401}, {"/llm/v1/chat/completions", n.Token(convID), 401},
		{
			"/llm/token",
			mine.APIKey,
			404,
		}, {"/api/v1/sandboxes", mine.APIKey, 404}, {"/", mine.APIKey, 404}, {"/llm", mine.APIKey, 404},
	} {
		if resp, text := relaytest.Ask(t, base+c.path, "{}", "Authorization", "Bearer "+c.key); resp.StatusCode != c.want ||
			!strings.Contains(text, `"detail"`) {
			t.Errorf("%s with %q: %d %s, want %d", c.path, c.key, resp.StatusCode, text, c.want)
		}
	}
	if n.Requests() != 0 {
		t.Errorf("%d requests reached a node", n.Requests())
	}
	// A vendor's own key and address stay as they are.
	llm := engine.LLM{BaseURL: "https://llm.example.org/v1", APIKey: "sk-own"}
	if got, err := r.Access(convID, llm); err != nil || got != llm {
		t.Errorf("a vendor's became %+v, %v", got, err)
	}
}

func TestRelay_ATokenThatDiedIsReplacedAndTheRequestRepeated(t *testing.T) {
	t.Parallel()
	n := relaytest.NewNode(t, testKey, []string{convID, otherID}, relaytest.Says200("ok"))
	r := relayOf(t, n.URL)
	llm := r.agent(t, convID, n.Token(convID))
	n.Change(func() { n.Generation++ })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			resp, text := relaytest.Chat(t, llm, strings.Repeat("question ", 100_000))
			if resp.StatusCode != 200 || text != "ok" {
				t.Errorf("%d %s", resp.StatusCode, text)
			}
		})
	}
	wg.Wait()
	if n.Fetched != 1 {
		t.Errorf("%d tokens were fetched, want one for all", n.Fetched)
	}
	for i, b := range n.Bodies {
		if n.Seen[i].URL.Path != "/llm/token" && len(b) != 900_000 {
			t.Errorf("request %d has a body of %d bytes", i, len(b))
		}
	}
	// A copy of a conversation is not known to the cluster, and uses its original's.
	if resp, text := relaytest.Chat(t, r.agent(t, strings.Repeat("f", 32), "bvllm.box."+convID+".old"),
		"x"); resp.StatusCode != 200 {
		t.Errorf("a copy: %d %s", resp.StatusCode, text)
	}
	n.Change(func() { n.Generation++; n.Known = nil })
	if resp, text := relaytest.Chat(t, llm, "x"); resp.StatusCode != 401 ||
		!strings.Contains(text, "gives this conversation no token") {
		t.Errorf("a conversation that the cluster does not know: %d %s", resp.StatusCode, text)
	}
}

func TestRelay_NodesAreAskedInTurn(t *testing.T) {
	t.Parallel()
	gone := relaytest.NewNode(t, testKey, []string{convID, otherID}, nil)
	gone.Close()
	balancer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }))
	t.Cleanup(balancer.Close)
	behind := relaytest.NewNode(t, testKey, []string{convID, otherID}, func(w http.ResponseWriter, _ *http.Request) {
		wire.WriteJSON(w, 503, map[string]any{"error": map[string]string{"code": "bivouac_failed"}})
	})
	reset := relaytest.NewNode(t, testKey, []string{convID, otherID},
		func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	good := relaytest.NewNode(t, testKey, []string{convID, otherID}, relaytest.Says200("ok"))
	r := relayOf(t, gone.URL, balancer.URL, behind.URL+"/", reset.URL, good.URL)
	llm := r.agent(t, convID, "")
	for range 3 {
		if resp, text := relaytest.Chat(t, llm, "question"); resp.StatusCode != 200 || text != "ok" {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
	}
	if behind.Requests() != 2 || reset.Requests() != 1 { // the first with the token's
		t.Errorf("nodes that failed were asked %d and %d times", behind.Requests(), reset.Requests())
	}
	good.Close()
	if resp, text := relaytest.Chat(t, llm, "question"); resp.StatusCode != 503 {
		t.Errorf("without a good node: %d %s", resp.StatusCode, text)
	}
	only := relayOf(t, gone.URL)
	if resp, text := relaytest.Chat(t, only.agent(t, convID, ""), "x"); resp.StatusCode != 503 ||
		resp.Header.Get("Retry-After") != "1" || !strings.Contains(text, "no node answers") {
		t.Errorf("without any node: %d %v %s", resp.StatusCode, resp.Header, text)
	}
}

// A node that accepts and is silent, as a frozen one, does not hold a request.
func TestRelay_AFrozenNodeIsLeft(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	good := relaytest.NewNode(t, testKey, []string{convID, otherID}, relaytest.Says200("ok"))
	r := relayOf(t, "http://"+ln.Addr().String(), good.URL)
	r.probeEvery = time.Second
	resp, text := relaytest.Chat(t, r.agent(t, convID, good.Token(convID)), "question")
	if resp.StatusCode != 200 || text != "ok" {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
}

func TestRelay_WhatTheEndpointSaysIsPassedOn(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 400, 401, 403, 404, 429, 500, 502, 503, 504, 529} {
		n := relaytest.NewNode(t, testKey, []string{convID, otherID}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.Header().Set("X-Ratelimit-Remaining-Tokens", "12")
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "in the endpoint's words "+strings.Repeat("x", 10_000))
		})
		r := relayOf(t, n.URL, n.URL)
		resp, text := relaytest.Chat(t, r.agent(t, convID, n.Token(convID)), "question")
		if resp.StatusCode != status || resp.Header.Get("Retry-After") != "7" ||
			resp.Header.Get("X-Ratelimit-Remaining-Tokens") != "12" ||
			len(text) != len("in the endpoint's words ")+10_000 {
			t.Errorf("%d became %d %v with %d bytes", status, resp.StatusCode, resp.Header, len(text))
		}
		if n.Requests() != 1 {
			t.Errorf("%d: the endpoint was asked %d times", status, n.Requests())
		}
	}
}

// TestRelay_APlaceInAQueueIsPassedOn to the agent that asks for it.
func TestRelay_APlaceInAQueueIsPassedOn(t *testing.T) {
	t.Parallel()
	n := relaytest.NewNode(t, testKey, []string{convID}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Bivouac-Place", "7 asked with "+r.Header.Get("X-Bivouac-Place"))
		w.WriteHeader(http.StatusProcessing)
		w.Header().Del("X-Bivouac-Place")
		fmt.Fprint(w, "the answer")
	})
	llm := relayOf(t, n.URL).agent(t, convID, n.Token(convID))
	var told []string
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(status int, h textproto.MIMEHeader) error {
			told = append(told, fmt.Sprint(status, " ", h.Get("X-Bivouac-Place")))
			return nil
		},
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, llm.BaseURL+"/chat/completions", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+llm.APIKey)
	req.Header.Set("X-Bivouac-Place", "1")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if fmt.Sprint(told) != "[102 7 asked with 1]" || res.StatusCode != http.StatusOK {
		t.Errorf("told %v, then %d", told, res.StatusCode)
	}
}

// streaming asks for a stream by a relay and returns its lines.
func streaming(t *testing.T, answer http.HandlerFunc) (*Relay, *bufio.Reader, *relaytest.Node) {
	t.Helper()
	n := relaytest.NewNode(t, testKey, []string{convID, otherID}, answer)
	r := relayOf(t, n.URL, n.URL)
	llm := r.agent(t, convID, n.Token(convID))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, llm.BaseURL+"/chat/completions",
		strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+llm.APIKey)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return r, bufio.NewReader(resp.Body), n
}

func TestRelay_AStreamIsPassedOnAsItComes(t *testing.T) {
	t.Parallel()
	read := make(chan struct{})
	_, lines, _ := streaming(t, func(w http.ResponseWriter, r *http.Request) {
		for i := range 3 {
			relaytest.Sends(w, fmt.Sprintf("data: %d\n", i))
			select {
			case <-read: // the part has come before the next is sent
			case <-r.Context().Done():
			}
		}
	})
	for i := range 3 {
		if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("part %d is %q, %v", i, line, err)
		}
		read <- struct{}{}
	}
	if _, err := lines.ReadString('\n'); err != io.EOF { //nolint:errorlint // a whole stream ends with it itself
		t.Errorf("the end is %v", err)
	}
}

// Nobody may take a part of an answer for the whole of it, and nothing is asked twice.
func TestRelay_ACutStreamIsCut(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(r *Relay){
		"by the endpoint": nil,
		"by a deletion":   func(r *Relay) { r.Forget(convID) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proceed := make(chan struct{})
			r, lines, n := streaming(t, func(w http.ResponseWriter, req *http.Request) {
				relaytest.Sends(w, "data: 1\n")
				select {
				case <-proceed:
				case <-req.Context().Done():
				}
				panic(http.ErrAbortHandler)
			})
			if line, err := lines.ReadString('\n'); err != nil || line != "data: 1\n" {
				t.Fatalf("%q, %v", line, err)
			}
			if cut != nil {
				cut(r)
			} else {
				close(proceed)
			}
			if text, err := io.ReadAll(lines); err == nil || len(text) > 0 {
				t.Errorf("after the cut: %q, %v", text, err)
			}
			if n.Requests() != 1 {
				t.Errorf("the endpoint was asked %d times", n.Requests())
			}
		})
	}
}

// A frozen node's stream is cut too, so that the agent asks again.
func TestRelay_AStreamOfAFrozenNodeIsCut(t *testing.T) {
	t.Parallel()
	var frozen sync.Mutex
	n := relaytest.NewNode(t, testKey, []string{convID, otherID}, func(w http.ResponseWriter, req *http.Request) {
		relaytest.Sends(w, "data: 1\n")
		<-req.Context().Done()
	})
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/alive" {
			frozen.Lock() // until the test's end
			defer frozen.Unlock()
		}
		n.ServeHTTP(w, req)
	}))
	defer front.Close()
	frozen.Lock()
	defer frozen.Unlock()
	r := relayOf(t, front.URL)
	r.probeEvery = time.Second
	llm := r.agent(t, convID, n.Token(convID))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, llm.BaseURL+"/chat/completions",
		strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+llm.APIKey)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err == nil || string(text) != "data: 1\n" {
		t.Errorf("the stream is %q, %v", text, err)
	}
}

func TestRelay_IsAskedBesideTheSandboxesProxies(t *testing.T) {
	t.Parallel()
	last := func(environ []string, name string) (value string) {
		for _, kv := range environ {
			if v, ok := strings.CutPrefix(kv, name+"="); ok {
				value = v
			}
		}
		return value
	}
	got := BesideProxies([]string{"A=1", "https_proxy=http://proxy:3128", "NO_PROXY=.example.org"})
	if last(got, "NO_PROXY") != ".example.org,127.0.0.1,localhost" || last(got, "no_proxy") != "127.0.0.1,localhost" ||
		last(got, "A") != "1" {
		t.Errorf("the environment is %q", got)
	}
	if got := BesideProxies([]string{"A=1", "HTTP_PROXY="}); len(got) != 2 {
		t.Errorf("without a proxy it is %q", got)
	}
}

// The relay knows a token by its form, which httpapi/llmtoken makes.
func TestRelay_KnowsTheGatewaysTokens(t *testing.T) {
	t.Parallel()
	token := llmtoken.New("key", &fsm.Sandbox{ID: "box"}, convID)
	parts := strings.Split(token, ".")
	if len(parts) != 4 || parts[0] != gatewayToken || parts[2] != convID {
		t.Errorf("a token is %s", token)
	}
}

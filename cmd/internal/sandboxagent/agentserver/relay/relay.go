// Package relay passes the model requests of a sandbox's agents on to the model gateway of a node. See
// Relay.
package relay

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
)

const (
	// gatewayPath is the model gateway's path on a node and on the relay.
	gatewayPath = "/llm/"
	// gatewayToken begins every token of the gateway (httpapi/llmtoken).
	gatewayToken = "bvllm"
	// MaxBody bounds a request's body, as the gateway does. It is kept until the answer begins, so
	// that another node can be asked. allRelayed bounds the bodies that are kept at a time.
	MaxBody, allRelayed = 32 << 20, 96 << 20
	// relayBodyTime is how long a request's body may take.
	relayBodyTime = 2 * time.Minute
	// relayHeaderTime and relayIdleTime bound a request's header and a connection without a request.
	relayHeaderTime, relayIdleTime = 10 * time.Second, 2 * time.Minute
	// unwell is how long a node that failed is asked after the others.
	unwell = 10 * time.Second
)

// Relay passes requests of this sandbox's agents on to the model gateway of a node. Agents know its
// loopback address and a local key, which is good for the requests of one conversation here and for
// nothing else: neither the gateway's token nor the sandbox's key is in an agent.
type Relay struct {
	// apis are the nodes' URLs. A request begins at the one that begin chooses of so many, and asks those
	// last that failed since failed, in nanoseconds of the epoch, plus unwell.
	apis   []string
	begin  func(nodes int) int
	failed []atomic.Int64
	// key is the sandbox's, "" for a server without one.
	key    string
	logger *slog.Logger
	// direct are the connections to nodes; no proxy of the environment sees a token.
	direct *http.Transport
	// probes makes a connection for each request.
	probes *http.Transport
	proxy  *httputil.ReverseProxy
	bodies *semaphore.Weighted
	// probeEvery is how often a node that owes an answer is asked whether it lives.
	probeEvery time.Duration

	mu     sync.Mutex
	url    string // "" until it listens
	server *http.Server
	closed bool
	// leases are the conversations' by their ids, keys the same by the hash of the local key.
	leases map[string]*lease
	keys   map[[sha256.Size]byte]*lease
}

// lease is a conversation's use of the gateway.
type lease struct {
	key string
	// conversations are the ids to ask a token for: the conversation's, and that of the token that came
	// with it, which a copy of a conversation has from its original.
	conversations []string
	// ctx ends with the conversation.
	ctx    context.Context //nolint:containedctx // ends the requests in progress
	cancel context.CancelFunc

	// fetching is held while a token is fetched, so that many requests fetch one.
	fetching sync.Mutex
	mu       sync.Mutex
	// given is the token of the create request, token the present one.
	given, token string
}

// New returns the relay of a server whose sandbox reaches nodes, nil for another one.
func New(cfg config.Config) *Relay {
	if len(cfg.APIURLs) == 0 {
		return nil
	}
	r := &Relay{
		logger: cfg.Logger, bodies: semaphore.NewWeighted(allRelayed), probeEvery: 10 * time.Second,
		leases: map[string]*lease{}, keys: map[[sha256.Size]byte]*lease{},
		direct: &http.Transport{
			DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConnsPerHost: 16, IdleConnTimeout: 90 * time.Second, DisableCompression: true, ForceAttemptHTTP2: true,
		},
	}
	r.begin, r.failed = mathrand.IntN, make([]atomic.Int64, len(cfg.APIURLs))
	r.probes = r.direct.Clone()
	r.probes.DisableKeepAlives = true
	for _, u := range cfg.APIURLs {
		r.apis = append(r.apis, strings.TrimRight(u, "/"))
	}
	if len(cfg.Keys) > 0 {
		r.key = cfg.Keys[0]
	}
	r.proxy = &httputil.ReverseProxy{
		Rewrite: rewriteRelayed, Transport: relayTransport{r}, FlushInterval: -1, ErrorHandler: r.unanswered,
		ErrorLog: log.New(io.Discard, "", 0), // it would show addresses of clients
	}
	return r
}

// Relays reports whether a model is to be reached through the gateway: its key is a token, or its
// address is a node's.
func (r *Relay) Relays(llm engine.LLM) bool {
	if r == nil {
		return false
	}
	if strings.HasPrefix(llm.APIKey, gatewayToken+".") {
		return true
	}
	return slices.ContainsFunc(r.apis,
		func(api string) bool { return strings.HasPrefix(llm.BaseURL+"/", api+gatewayPath) })
}

// Access returns what the agent of a conversation gets of its model: of the gateway the relay's
// address and a local key. It begins to listen when it is needed.
func (r *Relay) Access(id string, llm engine.LLM) (engine.LLM, error) {
	if !r.Relays(llm) {
		return llm, nil
	}
	url, err := r.listen()
	if err != nil {
		return llm, err
	}
	llm.BaseURL, llm.APIKey = url+gatewayPath+"v1", r.lease(id, llm.APIKey).key
	return llm, nil
}

func (r *Relay) listen() (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return "", ErrClosed
	case r.url != "":
		return r.url, nil
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("the relay of model requests can't listen: %w", err)
	}
	r.server = &http.Server{
		Handler: r, ReadHeaderTimeout: relayHeaderTime, IdleTimeout: relayIdleTime, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(r.logger.Handler(), slog.LevelDebug),
	}
	go func(hs *http.Server) { _ = hs.Serve(ln) }(r.server) // it ends with close
	r.url = "http://" + ln.Addr().String()
	return r.url, nil
}

// lease returns the conversation's lease, and makes it if there is none. token is that of the create
// request, or another key.
func (r *Relay) lease(id, token string) *lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.leases[id]
	if l == nil {
		l = &lease{key: "local-" + rand.Text(), conversations: []string{id}}
		l.ctx, l.cancel = context.WithCancel(context.Background())
		r.leases[id], r.keys[sha256.Sum256([]byte(l.key))] = l, l
	}
	parts := strings.Split(token, ".")
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(parts) != 4 || parts[0] != gatewayToken || token == l.given {
		return l
	}
	l.given, l.token = token, token
	if !slices.Contains(l.conversations, parts[2]) {
		l.conversations = append(l.conversations, parts[2])
	}
	return l
}

// BesideProxies returns an environment with proxies, if it has any, that an agent's requests to the
// relay do not go through.
func BesideProxies(environ []string) []string {
	proxied, except := false, map[string]string{"NO_PROXY": "", "no_proxy": ""}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		proxied = proxied || value != "" && strings.HasSuffix(strings.ToLower(name), "_proxy") &&
			!strings.EqualFold(name, "no_proxy")
		if _, known := except[name]; known {
			except[name] = value
		}
	}
	if !proxied {
		return environ
	}
	for name, list := range except {
		environ = append(environ,
			name+"="+strings.TrimPrefix(list+",127.0.0.1,localhost", ",")) // of duplicates the last counts
	}
	return environ
}

// Forget ends a conversation's use of the gateway, with its requests in progress.
func (r *Relay) Forget(id string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.leases[id]; l != nil {
		l.cancel()
		delete(r.leases, id)
		delete(r.keys, sha256.Sum256([]byte(l.key)))
	}
}

// Close ends all requests and stops listening.
func (r *Relay) Close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.closed = true
	server := r.server
	for _, l := range r.leases {
		l.cancel()
	}
	r.mu.Unlock()
	if server != nil {
		_ = server.Close() // the listener is closed, whatever it says
	}
	r.direct.CloseIdleConnections()
}

// leaseOf returns the lease of the local key that a request sends where the model's API expects a key.
// It returns nil without such a lease. It looks a key up by its hash, so that the time reveals nothing.
func (r *Relay) leaseOf(req *http.Request) *lease {
	key := req.Header.Get("X-Api-Key")
	if scheme, bearer, found := strings.Cut(req.Header.Get("Authorization"), " "); found &&
		strings.EqualFold(scheme, "Bearer") {
		key = strings.TrimSpace(bearer)
	}
	if key == "" {
		key = req.Header.Get("X-Goog-Api-Key")
	}
	if key == "" {
		key = req.URL.Query().Get("key")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keys[sha256.Sum256([]byte(key))]
}

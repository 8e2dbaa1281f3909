package llm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// Gateway is the model gateway of one node. It needs no leader: any node serves every sandbox.
type Gateway struct {
	cfg     Config
	server  Server
	metrics *metrics
	spent   *spending
	proxy   *httputil.ReverseProxy
	// bodies bounds the requests' bodies, answers what is kept of answers.
	bodies, answers *shares

	// open are the requests in progress by user. egress has the connections under the policy in force.
	mu     sync.Mutex
	open   map[string]int
	queues map[string]*queue // by the server's name in the policy
	egress atomic.Pointer[transports]
}

// New creates the gateway and starts nothing. It panics if s.Registerer already has the metrics of
// another gateway.
func New(cfg Config, s Server) *Gateway {
	g := &Gateway{
		cfg: cfg, server: s, metrics: newMetrics(s.Registerer), spent: newSpending(s.Cluster, cfg.Clock),
		open: map[string]int{}, queues: map[string]*queue{},
		bodies: newShares(cfg.AllBodies, cfg.UserBodies), answers: newShares(cfg.AllAnswers, cfg.AllAnswers/answerShare),
	}
	g.proxy = &httputil.ReverseProxy{
		Rewrite: g.rewrite, Transport: roundTripper(g.roundTrip), FlushInterval: -1, BufferPool: &proxy.CopyBuffers{},
		ModifyResponse: g.modifyResponse, ErrorHandler: g.errorHandler,
		ErrorLog: log.New(io.Discard, "", 0), // the access log has the error
	}
	return g
}

// Handles reports whether a request is the gateway's.
func (g *Gateway) Handles(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, Path) }

// Run reports the costs to the cluster until ctx ends.
func (g *Gateway) Run(ctx context.Context) { g.spent.run(ctx, g.cfg.ReportEvery, g.server.Logger) }

// Report reports the costs now.
func (g *Gateway) Report(ctx context.Context) { g.spent.report(ctx, g.server.Logger) }

// request is one request to a model.
type request struct {
	operation
	*grant
	gateway *Gateway
	// ctx is the request's, without what httputil.ReverseProxy adds.
	ctx context.Context
	// name is the model that the request asks for, output the most tokens of its answer; stream is
	// whether it asks for a stream, addedUsage whether the gateway asked for the usage in its place.
	name       string
	output     int64
	stream     bool
	addedUsage bool
	// key is the owner's, secret the same.
	key    string
	secret []byte
	target target
	body   []byte
	began  time.Time
	// rates are the model's, nil for none.
	rates *preset.Rates
	// charge is what the request counts for until its usage is known, in billionths of a dollar. sent
	// is set once a connection to the endpoint has it.
	charge int64
	sent   atomic.Bool
	// counted is set once the request is in the metrics.
	counted bool
}

type requestKey struct{}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	note := g.server.Info(r.Context())
	note.Route = Path
	if r.URL.Path == pathToken {
		g.finish(w, r, wireOpenAI, g.serveToken(w, r))
		return
	}
	o, known := operationOf(r)
	if !known || r.Header.Get("Upgrade") != "" {
		g.finish(w, r, o.wire, refuse(http.StatusNotFound, reasonEndpoint, "the gateway has no %s %s", r.Method, r.URL.Path))
		return
	}
	g.finish(w, r, o.wire, g.serve(w, r, o))
}

// finish answers a request that was refused.
func (g *Gateway) finish(w http.ResponseWriter, r *http.Request, api wire, err error) {
	if err == nil {
		return
	}
	refused := refusalOf(err)
	g.metrics.refused.WithLabelValues(refused.reason).Inc()
	note := g.server.Info(r.Context())
	if note.Err = err; refused.reason == reasonToken {
		note.Refused = "the gateway token is not valid"
	}
	refused.write(w, api)
}

// serve checks a request and sends it to the endpoint.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, o operation) error {
	granted, err := g.authorise(r.Context(), tokenOf(r))
	if err != nil {
		return err
	}
	note := g.server.Info(r.Context())
	note.User, note.Sandbox = granted.row.UserID, granted.row.ID
	if err := g.server.Admitted(r.Context(), granted.row.ID); err != nil {
		return err
	}
	if granted.policy.Direct {
		return refuse(http.StatusForbidden, reasonOff, "the model gateway is off (llm { gateway = false })")
	}
	leave, err := g.enter(granted.row.UserID)
	if err != nil {
		return err
	}
	defer leave()
	q := &request{operation: o, grant: granted, gateway: g, name: o.model, began: time.Now()}
	ctx, cancel := context.WithTimeout(r.Context(), g.cfg.MaxDuration)
	defer cancel()
	release, err := q.read(w, r)
	defer release()
	if err != nil {
		return err
	}
	if err := q.admit(ctx); err != nil {
		return err
	}
	moving := newMovingWriter(w, g.cfg.WriteStall)
	defer moving.end()
	free, err := q.slot(ctx, moving, r)
	if err != nil {
		q.count(outcome{}) // the model was not asked
		return err
	}
	defer free()
	q.ctx = context.WithValue(ctx, requestKey{}, q)
	g.metrics.open.Inc()
	defer g.metrics.open.Dec()
	defer q.abandoned()
	g.proxy.ServeHTTP(moving, r.WithContext(q.ctx))
	return nil
}

// enter takes a place of the user's; leave gives it back.
func (g *Gateway) enter(user string) (leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[user] >= g.cfg.UserRequests {
		return nil, errUserBusy("of your model requests")
	}
	g.open[user]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.open[user]--; g.open[user] == 0 {
			delete(g.open, user)
		}
	}, nil
}

// admit checks the policy, finds the endpoint, reads the key and charges the request.
func (q *request) admit(ctx context.Context) (err error) {
	if q.name != "" && !q.policy.Allows(q.name) {
		return refuse(http.StatusForbidden, reasonModel, "the model %q is not one of those that the operator allows", q.name)
	}
	if q.target, err = targetOf(q.operation, q.endpoint); err != nil {
		return err
	}
	ref, stored := q.view.KeyOf(q.row.UserID, q.endpoint, preset.BaseURL)
	if !stored {
		return errNoKey(q.target.Host)
	}
	if !ref.IsZero() {
		if q.key, err = q.gateway.server.Secret(ctx, ref, "value"); err != nil {
			return err
		}
		q.secret = []byte(q.key)
	}
	if !q.generates {
		return nil
	}
	q.rates = q.target.ratesOf(q.policy, q.name)
	q.charge = q.costOf(tokens{Input: int64(len(q.body)) / bytesPerToken, Output: q.output})
	return q.gateway.spent.enter(q.grant, q.charge)
}

// rewrite makes the request for the endpoint.
func (g *Gateway) rewrite(pr *httputil.ProxyRequest) {
	q := requestOf(pr.In.Context())
	to, err := q.target.below(q.path, passedQuery(pr.In.URL.Query()))
	if err != nil {
		to = q.target.URL // unreachable: the whole path was parsed before
	}
	out := pr.Out
	out.URL, out.Host = to, ""
	for name := range out.Header {
		if !passes(name) {
			delete(out.Header, name)
		}
	}
	if s := serverAt(q.policy, q.target.URL); s != nil {
		for name, value := range s.Headers {
			out.Header.Set(name, value)
		}
	}
	q.setKey(out.Header)
	if q.body == nil {
		out.Body, out.ContentLength = nil, 0
		return
	}
	// With GetBody the transport repeats a request whose kept connection the endpoint had closed.
	out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(q.body)), nil }
	out.Body, out.ContentLength, out.TransferEncoding = io.NopCloser(bytes.NewReader(q.body)), int64(len(q.body)), nil
}

func requestOf(ctx context.Context) *request {
	q, _ := ctx.Value(requestKey{}).(*request)
	return q
}

// roundTripper is a function as an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// roundTrip sends a request over the connections of the list of hosts in force. Informational
// responses, which httputil.ReverseProxy passes on with all their headers, are dropped.
func (g *Gateway) roundTrip(r *http.Request) (*http.Response, error) {
	q := requestOf(r.Context())
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { q.sent.Store(true) }}
	return g.egressFor(q.policy).RoundTrip(r.WithContext(httptrace.WithClientTrace(q.ctx, trace)))
}

// egressFor returns the connections for a policy. Those of another one end once unused.
func (g *Gateway) egressFor(policy fsm.LLM) *transports {
	if is := g.egress.Load(); is != nil && is.serves(policy) {
		return is
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.egress.Load()
	if was != nil && was.serves(policy) {
		return was
	}
	next := newTransports(g.cfg, policy)
	g.egress.Store(&next)
	if was != nil {
		was.close()
	}
	return &next
}

// errorHandler answers when the endpoint did not.
func (g *Gateway) errorHandler(w http.ResponseWriter, r *http.Request, err error) {
	q := requestOf(r.Context())
	var timeout net.Error
	refused := refusalOf(err)
	switch {
	case refused.reason != reasonFailed:
	case errors.Is(err, errHost):
		refused = refuse(http.StatusForbidden, reasonHost, "the model's endpoint %s: %v", q.target.Host, errHost)
	case errors.As(err, &timeout) && timeout.Timeout():
		refused = refuse(http.StatusGatewayTimeout, reasonFailed, "the model's endpoint %s does not answer in time",
			q.target.Host)
	default:
		refused = refuse(http.StatusBadGateway, reasonFailed, "the model's endpoint %s does not answer", q.target.Host)
	}
	if r.Context().Err() == nil {
		g.server.Logger.Debug("model endpoint failed", "address", q.target.Host, "error", err)
	}
	if refused.reason == reasonFailed {
		q.abandoned()
	} else {
		q.count(outcome{}) // the model was not asked
	}
	g.finish(w, r, q.wire, refused)
}

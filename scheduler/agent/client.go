package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"bivouac.dev/bivouac/httpapi/requestid"
)

// MaxIDs is how many conversations one Conversations call may request. An agent server refuses more
// (PROTOCOL.md, "Conversations: read").
const MaxIDs = 99

// KeyHeader holds the sandbox's key in every call below /api except /api/init.
const KeyHeader = "X-Session-API-Key"

// EventPositionHeader has, in a webhook with events, where the first of them stands among the
// sender's; in the answer, how many events the control plane has of the conversation.
const EventPositionHeader = "X-Event-Position"

// Config limits the client's calls. Zero values mean the defaults.
type Config struct {
	// ProbeTimeout limits Health, ServerInfo, InitState and each call of Prove, Busy and PauseAll.
	// Default 5 s.
	ProbeTimeout time.Duration
	// CallTimeout limits the other calls, including each call of RunCommand, and Busy as a whole.
	// Default 30 s.
	CallTimeout time.Duration
	// CreateTimeout limits CreateConversation and Upload. Default 120 s.
	CreateTimeout time.Duration
	// PauseTimeout limits how long PauseAll waits for conversations to pause. Default 15 s.
	PauseTimeout time.Duration
	// MaxBody limits how much of a response is read, in bytes. Default 4 MiB.
	MaxBody int64
	// Transport replaces the built-in transport in tests.
	Transport http.RoundTripper
}

// Client calls agent servers. It is safe for concurrent use; a process needs only one.
type Client struct {
	cfg  Config
	http *http.Client
}

// New creates a Client and starts nothing.
func New(cfg Config) *Client {
	if cfg.ProbeTimeout <= 0 {
		cfg.ProbeTimeout = 5 * time.Second
	}
	if cfg.CallTimeout <= 0 {
		cfg.CallTimeout = 30 * time.Second
	}
	if cfg.CreateTimeout <= 0 {
		cfg.CreateTimeout = 120 * time.Second
	}
	if cfg.PauseTimeout <= 0 {
		cfg.PauseTimeout = 15 * time.Second
	}
	if cfg.MaxBody <= 0 {
		cfg.MaxBody = 4 << 20
	}
	if cfg.Transport == nil {
		cfg.Transport = &http.Transport{
			Proxy:       nil,
			DialContext: dial((&net.Dialer{}).DialContext, lostAfter, 3*time.Second),
			// One connection per sandbox stays open between probes, so that a claim finds it; the
			// second is for concurrent calls.
			MaxIdleConns:          4096,
			MaxIdleConnsPerHost:   2,
			IdleConnTimeout:       30 * time.Second,
			ResponseHeaderTimeout: cfg.CreateTimeout,
			// A sandbox may be hostile, and many are called concurrently.
			MaxResponseHeaderBytes: 64 << 10,
		}
	}
	return &Client{cfg: cfg, http: &http.Client{
		Transport: cfg.Transport,
		// A redirect would send the key wherever the sandbox points.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Health calls GET /health, without a key. It returns nil if the server is healthy.
func (c *Client) Health(ctx context.Context, baseURL string) error {
	return c.call(ctx, c.cfg.ProbeTimeout, request{op: "health", method: http.MethodGet, url: baseURL + "/health"}, nil)
}

// ServerInfo is the part of a server's information that the control plane reads.
type ServerInfo struct {
	// Uptime is the process's age, Idle the time since the last activity. Idle is 0 while a
	// conversation or a command runs.
	Uptime, Idle time.Duration
	Version      string
}

// ServerInfo calls GET /server_info, without a key. The scheduler's idle policy reads it; the call
// does not count as activity.
func (c *Client) ServerInfo(ctx context.Context, baseURL string) (ServerInfo, error) {
	var out struct {
		Uptime   *float64 `json:"uptime"`
		IdleTime *float64 `json:"idle_time"`
		Version  string   `json:"version"`
	}
	r := request{op: "get server info", method: http.MethodGet, url: baseURL + "/server_info"}
	if err := c.call(ctx, c.cfg.ProbeTimeout, r, &out); err != nil {
		return ServerInfo{}, err
	}
	if !plausible(out.Uptime) || !plausible(out.IdleTime) {
		return ServerInfo{}, &Error{Op: r.op, Kind: ErrBadAnswer, Detail: "the server does not say how long it was idle"}
	}
	return ServerInfo{Uptime: seconds(*out.Uptime), Idle: seconds(*out.IdleTime), Version: clip(out.Version)}, nil
}

// plausible accepts times of up to a hundred years: a sandbox may report anything.
func plausible(s *float64) bool { return s != nil && *s >= 0 && *s < 100*365*24*3600 }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Prove checks that the server at baseURL is the sandbox that the key belongs to. The built-in server
// proves first that it has the key. A server that knows no challenge is ErrUnproven if builtIn says
// that it must; otherwise it must refuse a call without the key with 401 and accept one with it. A
// server without authentication or with a wrong proof is ErrNotOurs, a refused key ErrUnauthorized.
// challenged says that the server proved that it has the key.
func (c *Client) Prove(ctx context.Context, baseURL, key string, builtIn bool) (challenged bool, err error) {
	known, err := c.challenge(ctx, baseURL, key)
	if err != nil {
		return false, err
	}
	if builtIn && !known {
		return false, unproven("prove")
	}
	r := request{op: "prove", method: http.MethodGet, url: baseURL + "/api/conversations/count"}
	// First without the key: an open server must not receive it.
	err = c.call(ctx, c.cfg.ProbeTimeout, r, nil)
	switch {
	case err == nil:
		return false, &Error{Op: r.op, Kind: ErrNotOurs, Detail: "the server answers without a key"}
	case !errors.Is(err, ErrUnauthorized):
		return false, err
	}
	r.key = key
	err = c.call(ctx, c.cfg.ProbeTimeout, r, nil)
	return known && err == nil, err
}

func unproven(op string) error {
	return &Error{Op: op, Kind: ErrUnproven, Detail: "it answers no challenge, and was not shown the key"}
}

// CreateConversation creates the conversation req.ConversationID. If it exists, the server returns
// it and created is false.
func (c *Client) CreateConversation(
	ctx context.Context,
	baseURL, key string,
	req CreateRequest,
) (info ConversationInfo, created bool, err error) {
	body, err := json.Marshal(req)
	if err != nil {
		return info, false, &Error{Op: "create conversation", Kind: ErrRefused, Detail: "the request can't be encoded"}
	}
	r := request{
		op: "create conversation", method: http.MethodPost, url: baseURL + "/api/conversations", key: key, body: body,
		status: &created,
	}
	err = c.call(ctx, c.cfg.CreateTimeout, r, &info)
	return info, created, err
}

// Conversations returns the state of up to MaxIDs conversations, in the order of ids; nil for an
// unknown one.
func (c *Client) Conversations(ctx context.Context, baseURL, key string, ids []string) ([]*ConversationInfo, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	if len(ids) > MaxIDs {
		return nil, &Error{
			Op:     "get conversations",
			Kind:   ErrRefused,
			Detail: fmt.Sprintf("%d ids asked for, at most %d go in one call", len(ids), MaxIDs),
		}
	}
	q := url.Values{"ids": ids}
	var out []*ConversationInfo
	r := request{
		op:     "get conversations",
		method: http.MethodGet,
		url:    baseURL + "/api/conversations?" + q.Encode(),
		key:    key,
	}
	if err := c.call(ctx, c.cfg.CallTimeout, r, &out); err != nil {
		return nil, err
	}
	if len(out) != len(ids) {
		return nil, &Error{Op: r.op, Kind: ErrBadAnswer, Detail: fmt.Sprintf("%d answers to %d ids", len(out), len(ids))}
	}
	return out, nil
}

// Request makes a call that this package has no method for, and returns the response's body of at most
// Config.MaxBody bytes. path has the query, body is JSON or nil.
func (c *Client) Request(ctx context.Context, baseURL, key, method, path string, body []byte) ([]byte, error) {
	var out []byte
	at, _, _ := strings.Cut(path, "?")
	r := request{op: method + " " + clip(at), method: method, key: key, url: baseURL + path, body: body, raw: &out}
	if err := c.call(ctx, c.cfg.CallTimeout, r, nil); err != nil {
		return nil, err
	}
	return out, nil
}

// CountEvents returns the number of events of a conversation, of one kind if kind is not empty.
func (c *Client) CountEvents(ctx context.Context, baseURL, key, conversationID, kind string) (int, error) {
	var n int
	r := request{op: "count events", method: http.MethodGet, key: key,
		url: baseURL + "/api/conversations/" + url.PathEscape(conversationID) + "/events/count"}
	if kind != "" {
		r.url += "?kind=" + url.QueryEscape(kind)
	}
	err := c.call(ctx, c.cfg.CallTimeout, r, &n)
	return n, err
}

// Pause pauses a conversation after its current step.
func (c *Client) Pause(ctx context.Context, baseURL, key, conversationID string) error {
	r := request{op: "pause conversation", method: http.MethodPost, key: key,
		url: baseURL + "/api/conversations/" + url.PathEscape(conversationID) + "/pause"}
	return c.call(ctx, c.cfg.CallTimeout, r, nil)
}

// PreparePause makes the server flush its data before its sandbox is stopped. A server without this
// call (404, 405) is no error.
func (c *Client) PreparePause(ctx context.Context, baseURL, key string) error {
	r := request{op: "prepare pause", method: http.MethodPost, key: key,
		url: baseURL + "/api/conversations/prepare-for-sandbox-pause"}
	err := c.call(ctx, c.cfg.CallTimeout, r, nil)
	var e *Error
	if errors.As(err, &e) && (e.Status == http.StatusNotFound || e.Status == http.StatusMethodNotAllowed) {
		return nil
	}
	return err
}

type request struct {
	op          string
	method      string
	url         string
	key         string
	keyHeader   string // KeyHeader if empty
	body        []byte
	contentType string
	// raw, if set, receives the body of a 2xx response.
	raw *[]byte
	// status, if set, is set to whether the response was 201.
	status *bool
	// most replaces Config.MaxBody if it is larger.
	most int64
}

// call sends one request and decodes the JSON of a 2xx response into out unless out is nil.
func (c *Client) call(ctx context.Context, timeout time.Duration, r request, out any) error {
	callCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(callCtx, r.method, r.url, bytes.NewReader(r.body))
	if err != nil {
		return &Error{Op: r.op, Kind: ErrUnreachable, Detail: "the sandbox's address is not a URL"}
	}
	req.Header.Set("Accept", "application/json")
	if r.body != nil {
		ct := cmp.Or(r.contentType, "application/json")
		req.Header.Set("Content-Type", ct)
	}
	if r.key != "" {
		req.Header.Set(cmp.Or(r.keyHeader, KeyHeader), r.key)
	}
	if id := requestid.Of(ctx); id != "" {
		req.Header.Set(requestid.Header, id)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &Error{Op: r.op, Kind: ErrUnreachable, Detail: transportDetail(err)}
	}
	defer resp.Body.Close()
	most := max(c.cfg.MaxBody, r.most)
	body, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &Error{Op: r.op, Kind: ErrUnreachable, Status: resp.StatusCode, Detail: "the answer broke off"}
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return statusError(r.op, resp.StatusCode, body)
	}
	if int64(len(body)) > most {
		return &Error{
			Op:     r.op,
			Kind:   ErrTooLarge,
			Status: resp.StatusCode,
			Detail: fmt.Sprintf("the answer is larger than %d bytes", most),
		}
	}
	if r.status != nil {
		*r.status = resp.StatusCode == http.StatusCreated
	}
	if r.raw != nil {
		*r.raw = body
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return &Error{Op: r.op, Kind: ErrBadAnswer, Status: resp.StatusCode, Detail: "the answer is not the JSON expected"}
	}
	return nil
}

// transportDetail describes a transport error without the URL, whose query may hold ids and whose
// port varies.
func transportDetail(err error) string {
	var ue *url.Error
	if errors.As(err, &ue) {
		if ue.Timeout() {
			return "no answer in time"
		}
		err = ue.Err
	}
	var oe *net.OpError
	if errors.As(err, &oe) && oe.Err != nil {
		return clip(oe.Op + ": " + oe.Err.Error())
	}
	// net/http quotes a malformed header, which may be long.
	return clip(strings.TrimSpace(err.Error()))
}

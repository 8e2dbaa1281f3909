package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// Bounds of a call through POST /api/cloud-proxy.
const (
	maxProxyPath    = 8 << 10
	maxProxyHeaders = 32
	// maxProxyAnswer is the largest answer, in bytes.
	maxProxyAnswer   = 64 << 20
	proxyTime        = 30 * time.Second
	longestProxyTime = 5 * time.Minute
)

// proxyCall is what a page asks to be sent to an agent server.
type proxyCall struct {
	host, path  *url.URL
	method      string
	contentType string
	accept      string
	body        []byte
	timeout     time.Duration
}

// handleCloudProxy handles POST /api/cloud-proxy: a call of an agent server for a page of the node's
// own origin. host only names one of the caller's sandboxes; the proxy finds where it is, and it alone
// connects.
func (s *Server) handleCloudProxy(c *call) (response.Response, error) {
	q := readProxyCall(c.Object())
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	row, err := s.findSandboxAt(c, q.host)
	if err != nil {
		return response.Response{}, err
	}
	request.InfoOf(c.Request.Context()).Sandbox = row.ID
	return response.Response{Status: http.StatusOK, Stream: func(w http.ResponseWriter) error {
		ctx, cancel := context.WithTimeout(c.Request.Context(), q.timeout)
		defer cancel()
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(q.timeout + proxyTime)) // a test's has none
		sealed := &sealedWriter{inner: w, header: http.Header{}, left: maxProxyAnswer}
		err := s.proxy.ServeAs(sealed, q.request(ctx, c.Request), row, c.Caller.Credential)
		if err != nil {
			response.FailureOf(err, response.FormatDetail, "").Write(w)
		}
		return err
	}}, nil
}

// readProxyCall reads the envelope.
func readProxyCall(o decode.Object) proxyCall {
	q := proxyCall{timeout: proxyTime, host: readProxyHost(o), path: readProxyPath(o)}
	methods := []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
	if f := decode.NotOneOf(methods); o.Require("method") && o.NotNull("method", f.Kind()) {
		q.method = decode.OrZero(o.Enum("method", methods))
	}
	q.readHeaders(o.Masked())
	switch body := o.Value("body").(type) {
	case nil:
	case string:
		q.body = []byte(body)
	default:
		q.body, _ = json.Marshal(body) // it came as JSON
	}
	if n, is := o.Value("timeout_seconds").(json.Number); is {
		seconds, err := n.Float64()
		if err != nil || seconds <= 0 {
			o.Rule("timeout_seconds", "timeout_seconds must be more than 0")
			return q
		}
		q.timeout = time.Duration(min(seconds, longestProxyTime.Seconds()) * float64(time.Second))
	} else if o.Value("timeout_seconds") != nil {
		o.Rule("timeout_seconds", "timeout_seconds must be a number")
	}
	return q
}

// readProxyHost reads an address: an origin, and the path before that of the agent server.
func readProxyHost(o decode.Object) *url.URL {
	text := o.MustText("host", fsm.MaxPath)
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil ||
		u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.ContainsAny(text, "#\\") {
		if text != "" {
			o.Rule("host", "host must be the address of an agent server, as in conversation_url")
		}
		return &url.URL{}
	}
	return u
}

// readProxyPath reads the path and query of the agent server. Only a path that everybody reads alike
// is taken: what one program takes for a step up or a slash, another may not.
func readProxyPath(o decode.Object) *url.URL {
	text := o.MustText("path", maxProxyPath)
	if text == "" {
		return &url.URL{}
	}
	u, err := url.ParseRequestURI(text)
	plain := !slices.ContainsFunc([]byte(text), func(b byte) bool {
		return b <= ' ' || b >= 0x7f || b == '#' || b == '\\'
	})
	if err != nil || !plain || u.Scheme != "" || u.Host != "" || u.User != nil || !isPlainPath(u) || !isAgentPath(u.Path) {
		o.Rule("path", "path must be one of the agent server's API, such as /api/conversations, without . and .. in it")
		return &url.URL{}
	}
	return u
}

// isPlainPath reports whether a path is its own shortest form and hides no separators.
func isPlainPath(u *url.URL) bool {
	escaped := strings.ToLower(u.EscapedPath())
	for _, hidden := range []string{"%2f", "%5c", "%2e", "%00", "%25"} {
		if strings.Contains(escaped, hidden) {
			return false
		}
	}
	return strings.HasPrefix(u.Path, "/") && path.Clean(u.Path) == strings.TrimSuffix(u.Path, "/")
}

// isAgentPath reports whether a path is of the agent server's API or its health.
func isAgentPath(p string) bool {
	return strings.HasPrefix(p, "/api/") || slices.Contains([]string{"/health", "/alive", "/ready", "/server_info"}, p)
}

// readHeaders reads what the agent server is told of the body. The proxy sets the key, and no other
// header of a page matters to it.
func (q *proxyCall) readHeaders(o decode.Object) {
	dict, ok := o.Dict("headers")
	if !ok {
		return
	}
	if len(dict.Members) > maxProxyHeaders {
		o.Rule("headers", "at most "+strconv.Itoa(maxProxyHeaders)+" headers can be sent")
		return
	}
	for _, name := range decode.SortedKeys(dict.Members) {
		value := decode.OrZero(dict.Text(name, fsm.MaxLine))
		if strings.ContainsFunc(name+value, unicode.IsControl) {
			o.Rule("headers", "a header's name or value has a control character in it")
			return
		}
		switch http.CanonicalHeaderKey(name) {
		case "Content-Type":
			q.contentType = value
		case "Accept":
			q.accept = value
		}
	}
}

// request is the call as the proxy takes it. seen is the request that brought it, from which it has
// what says who the client is.
func (q *proxyCall) request(ctx context.Context, seen *http.Request) *http.Request {
	r := &http.Request{
		Method: q.method, URL: q.path, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
		Body: http.NoBody, Host: seen.Host, RemoteAddr: seen.RemoteAddr, TLS: seen.TLS,
	}
	for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host"} {
		if values := seen.Header.Values(name); len(values) > 0 {
			r.Header[name] = values
		}
	}
	if q.accept != "" {
		r.Header.Set("Accept", q.accept)
	}
	if q.body != nil {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(q.body)), int64(len(q.body))
		r.Header.Set("Content-Type", "application/json")
	}
	if q.contentType != "" {
		r.Header.Set("Content-Type", q.contentType)
	}
	return r.WithContext(ctx)
}

// findSandboxAt returns the caller's sandbox whose agent server is at an address, or a 403. It looks in
// this node's own store, as the proxy does, which confirms with the cluster what is found. Another node
// may have made or moved a sandbox a moment ago, so what is not found is asked of the cluster.
func (s *Server) findSandboxAt(c *call, at *url.URL) (*fsm.Sandbox, error) {
	v, err := s.proxy.View(c.Request.Context())
	if err != nil {
		return nil, err
	}
	if !v.Good(c.Caller.User, c.Caller.Credential, time.Now()) {
		return nil, response.Unauthorized()
	}
	if row := s.sandboxAt(v, c, at); row != nil {
		return row, nil
	}
	if v, err = c.ViewWith(cluster.Linearizable); err != nil {
		return nil, err
	}
	if row := s.sandboxAt(v, c, at); row != nil {
		return row, nil
	}
	return nil, response.Error(http.StatusForbidden, "host is not the agent server of a sandbox of yours")
}

// sandboxAt returns the caller's sandbox whose agent server is at an address in a view, nil for none.
func (s *Server) sandboxAt(v *fsm.View, c *call, at *url.URL) *fsm.Sandbox {
	to := s.linksFor(c.Request)
	if s.cfg.SandboxURL == SandboxURLProxy {
		row, port := s.proxy.SandboxAt(v, at)
		if row == nil || row.UserID != c.Caller.User || port != fsm.PortAgentServer ||
			!sameAddress(at, to.port(row, port)) {
			return nil
		}
		return row
	}
	for page := (fsm.Page{}); ; {
		rows, next := v.Sandboxes(c.Caller.User, page)
		for _, row := range rows {
			if row.Status.Placement != nil && row.Desired != fsm.DesiredDeleted &&
				sameAddress(at, to.port(row, fsm.PortAgentServer)) {
				return row
			}
		}
		if next == "" {
			return nil
		}
		page.After = next
	}
}

// sameAddress reports whether an address is the same as one of ours: scheme, host, port and path.
func sameAddress(at *url.URL, ours string) bool {
	u, err := url.Parse(ours)
	return err == nil && at.Scheme == u.Scheme && strings.EqualFold(hostPort(at), hostPort(u)) &&
		strings.TrimSuffix(at.EscapedPath(), "/") == strings.TrimSuffix(u.EscapedPath(), "/")
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// sealedWriter writes a sandbox's answer on the page's own origin, where it must be no more than the
// data that was asked for: no page, no cookie, no redirect, and of a bounded size.
type sealedWriter struct {
	inner  http.ResponseWriter
	header http.Header
	status int
	left   int64
	// refused is set once the node has answered in the sandbox's place.
	refused bool
}

// errAnswerTooLarge ends an answer that is larger than it may be.
var errAnswerTooLarge = errors.New("the sandbox's answer is too large")

// Header implements http.ResponseWriter.
func (w *sealedWriter) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. A browser would follow a redirect with the person's
// cookie.
func (w *sealedWriter) WriteHeader(status int) {
	if w.status != 0 || status < http.StatusOK {
		return
	}
	w.status = status
	length, err := strconv.ParseInt(w.header.Get("Content-Length"), 10, 64)
	switch {
	case status >= 300 && status < 400:
		w.refuse("The sandbox answers with a redirect, which is not followed.")
		return
	case err == nil && length > w.left:
		w.refuse("The sandbox's answer is too large.")
		return
	}
	h := w.inner.Header()
	for _, name := range []string{"Content-Type", "Content-Length", "Retry-After"} {
		if values := w.header.Values(name); len(values) > 0 {
			h[name] = values
		}
	}
	h.Del("Set-Cookie")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Disposition", "attachment")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	w.inner.WriteHeader(status)
}

func (w *sealedWriter) refuse(text string) {
	w.refused = true
	response.FailureOf(response.Error(http.StatusBadGateway, text), response.FormatDetail, "").Write(w.inner)
	_ = w.FlushError() // what the sandbox sends more ends the connection
}

// Write implements http.ResponseWriter.
func (w *sealedWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.left -= int64(len(b)); w.refused || w.left < 0 {
		return 0, errAnswerTooLarge
	}
	return w.inner.Write(b)
}

// FlushError is for http.ResponseController. There is no Unwrap: nothing takes over the connection or
// its deadlines.
func (w *sealedWriter) FlushError() error { return http.NewResponseController(w.inner).Flush() }

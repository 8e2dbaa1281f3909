package llm

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"
)

// Bounds of what the gateway keeps of an answer, in bytes.
const (
	maxEvent  = 8 << 20
	maxAnswer = 8 << 20
	maxError  = 256 << 10
)

// checkEvery is how often the grant of a stream is judged again.
const checkEvery = time.Second

// errWithdrawn ends a stream whose token is not good any more.
var errWithdrawn = errors.New("the sandbox was paused or deleted, or its user is disabled")

// dropped are headers of an answer that mean this API's address, not the endpoint's.
func dropped() []string {
	return []string{
		"Set-Cookie", "Strict-Transport-Security", "Alt-Svc", "Nel", "Report-To", "Reporting-Endpoints", "Public-Key-Pins", "Clear-Site-Data",
		"Content-Security-Policy", "Www-Authenticate", "Location", "Refresh",
	}
}

// modifyResponse passes an answer on: status, rate limits and Retry-After as they are.
func (g *Gateway) modifyResponse(res *http.Response) error {
	q := requestOf(res.Request.Context())
	if res.StatusCode/100 == 3 {
		return refuse(http.StatusBadGateway, reasonHost, "the model's endpoint %s redirects (%d), which the gateway does not follow: set llm_base_url to where it leads", q.target.Host, res.StatusCode)
	}
	for _, name := range dropped() {
		res.Header.Del(name)
	}
	for name := range res.Header {
		if strings.HasPrefix(name, "X-Bivouac-") || strings.HasPrefix(name, "Access-Control-") {
			res.Header.Del(name)
		}
	}
	if res.StatusCode >= http.StatusBadRequest {
		return q.modifyError(res)
	}
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	m := &meter{body: res.Body, of: q, status: res.StatusCode, events: kind == "text/event-stream", checked: time.Now()}
	if m.events && q.addedUsage {
		// An event less may be sent than came.
		res.ContentLength = -1
		res.Header.Del("Content-Length")
	}
	res.Body = m
	return nil
}

// modifyError masks the owner's key in a provider's error, which may quote it.
func (q *request) modifyError(res *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(res.Body, maxError))
	res.Body.Close()
	if err != nil && len(text) == 0 {
		return err
	}
	if q.key != "" {
		text = bytes.ReplaceAll(text, []byte(q.key), []byte("**********"))
	}
	res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	res.Header.Del("Content-Length")
	q.count(res.StatusCode, tokens{}, 0)
	return nil
}

// meter passes an answer on and reads its usage. It passes whole events of a stream at a time.
type meter struct {
	body   io.ReadCloser
	of     *request
	status int
	events bool

	used  tokens
	found bool
	// kept is the begin of an event, or the whole of an answer that is not streamed; ready is what to
	// pass on. seen is how much of kept has no end of an event.
	kept, ready []byte
	seen        int
	torn        bool
	err         error
	chunk       [32 << 10]byte

	bytes, chunks int64
	first         time.Duration
	checked       time.Time
	closed        bool
}

// Read implements io.Reader.
func (m *meter) Read(p []byte) (int, error) {
	for len(m.ready) == 0 && m.err == nil {
		n, err := m.body.Read(m.chunk[:])
		if n > 0 && m.first == 0 {
			m.first = time.Since(m.of.began)
		}
		m.bytes += int64(n)
		m.take(m.chunk[:n])
		if m.err = err; err == nil {
			m.err = m.check()
		}
		if m.err != nil && m.events {
			m.ready, m.kept = append(m.ready, m.kept...), nil
		}
	}
	n := copy(p, m.ready)
	if m.ready = m.ready[n:]; len(m.ready) > 0 {
		return n, nil
	}
	return n, m.err
}

// check judges the grant again now and then.
func (m *meter) check() error {
	if now := time.Now(); now.Sub(m.checked) >= checkEvery {
		if m.checked = now; !m.of.gateway.stands(m.of.grant) {
			return errWithdrawn
		}
	}
	return nil
}

// take takes bytes of the answer.
func (m *meter) take(b []byte) {
	if !m.events {
		m.ready = append(m.ready[:0], b...)
		if m.bytes <= maxAnswer {
			m.kept = append(m.kept, b...)
		} else {
			m.kept = nil
		}
		return
	}
	m.kept = append(m.kept, b...)
	for {
		end := eventEnd(m.kept, max(0, m.seen-3))
		if end < 0 {
			break
		}
		if event := m.kept[:end]; m.torn || !m.hides(event) {
			m.ready = append(m.ready, event...)
		}
		m.kept, m.seen, m.torn = m.kept[end:], 0, false
	}
	if m.seen = len(m.kept); m.seen > maxEvent {
		m.ready, m.kept, m.seen, m.torn = append(m.ready, m.kept...), nil, 0, true
	}
}

// eventEnd returns the length of the first event in b, -1 if none is whole. It looks from start on.
func eventEnd(b []byte, start int) int {
	for i := start; i < len(b); i++ {
		if b[i] != '\n' {
			continue
		}
		if i+1 < len(b) && b[i+1] == '\n' {
			return i + 2
		}
		if i+2 < len(b) && b[i+1] == '\r' && b[i+2] == '\n' {
			return i + 3
		}
	}
	return -1
}

// hides reads the usage of an event. It reports whether the client is not to see it, because only
// the gateway asked for it.
func (m *meter) hides(event []byte) bool {
	m.chunks++
	var data []byte
	for line := range bytes.Lines(event) {
		if text, is := bytes.CutPrefix(line, []byte("data:")); is {
			data = append(data, bytes.TrimRight(text, "\r\n")...)
		}
	}
	used, only, found := readAnswer(data)
	m.used, m.found = m.used.most(used), m.found || found
	return only && m.of.chat && m.of.addedUsage
}

// Close implements io.Closer. It counts the request.
func (m *meter) Close() error {
	if m.closed {
		return nil
	}
	m.closed = true
	if !m.events && m.kept != nil {
		m.used, _, m.found = readAnswer(m.kept)
	}
	if !m.found && m.of.generates && m.bytes > 0 {
		m.used = m.estimate()
	}
	m.of.count(m.status, m.used, m.first)
	return m.body.Close()
}

// bytesPerToken is a rule of thumb for text.
const bytesPerToken = 4

// estimate returns what an answer without usage may have used: its client left, or the endpoint
// reports none. An event of a stream is about a token.
func (m *meter) estimate() tokens {
	t := tokens{Input: int64(len(m.of.body)) / bytesPerToken, Output: m.bytes / bytesPerToken}
	if m.events {
		t.Output = min(t.Output, m.chunks)
	}
	return t
}

package llm

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"time"

	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// Bounds of what the gateway keeps of an answer, in bytes.
const (
	// minKept is what every answer may have, maxKept what one has where there is room: the longest
	// event that is read whole, and the end of an answer, which has its usage.
	minKept, maxKept = 8 << 10, 64 << 10
	maxError         = 256 << 10
	// answerShare divides Config.AllAnswers: one user gets no more.
	answerShare = 4
)

// checkEvery is how often the grant of a stream is judged again.
const checkEvery = time.Second

// errWithdrawn ends a stream whose token is not good any more.
var errWithdrawn = errors.New("the sandbox was paused or deleted, or its user is disabled")

// modifyResponse passes an answer on: status, rate limits and Retry-After as they are.
func (g *Gateway) modifyResponse(res *http.Response) error {
	q := requestOf(res.Request.Context())
	if res.StatusCode/100 == 3 {
		return refuse(http.StatusBadGateway, reasonHost,
			"the model's endpoint %s redirects (%d), which the gateway does not follow: set llm_base_url to where it leads",
			q.target.Host, res.StatusCode)
	}
	q.dropHeaders(res.Header)
	if res.StatusCode == http.StatusTooManyRequests {
		res.Header.Set(preset.HeaderLimit, preset.LimitEndpoint)
	}
	if res.StatusCode >= http.StatusBadRequest {
		return q.modifyError(res)
	}
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	m := &meter{body: res.Body, of: q, res: res, events: kind == "text/event-stream", checked: time.Now()}
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
	q.mask(text)
	res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	res.Header.Del("Content-Length")
	res.Trailer = nil
	q.count(outcome{status: res.StatusCode})
	return nil
}

// meter passes an answer on and reads its usage. It passes whole events of a stream at a time.
type meter struct {
	body   io.ReadCloser
	of     *request
	res    *http.Response
	events bool

	used  tokens
	found bool
	// buf is what came of a stream of events: it was passed on up to sent and may be up to ready. The
	// rest begins an event, and has no end of it up to seen.
	buf               []byte
	sent, ready, seen int
	// torn is set within an event that is too long to be read whole. tail has the end of it, or of an
	// answer that is not streamed.
	torn bool
	tail []byte
	// held is what the buffers have of the room for answers.
	held int64
	err  error

	bytes, chunks int64
	first         time.Duration
	checked       time.Time
	closed        bool
}

// Read implements io.Reader.
func (m *meter) Read(p []byte) (int, error) {
	if !m.events {
		n, err := m.body.Read(p)
		m.arrived(n)
		m.keepTail(p[:n])
		if err == nil {
			err = m.check()
		}
		return n, err
	}
	for m.sent == m.ready && m.err == nil {
		m.fill()
	}
	n := copy(p, m.buf[m.sent:m.ready])
	if m.sent += n; m.sent < m.ready {
		return n, nil
	}
	return n, m.err
}

// arrived notes bytes of the answer.
func (m *meter) arrived(n int) {
	if n > 0 && m.first == 0 {
		m.first = time.Since(m.of.began)
	}
	m.bytes += int64(n)
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

// fill reads more of a stream. All before was passed on.
func (m *meter) fill() {
	m.buf = m.buf[:copy(m.buf, m.buf[m.ready:])]
	m.sent, m.ready = 0, 0
	if len(m.buf) == cap(m.buf) && !m.grow() {
		m.torn, m.seen = true, 0
		m.keepTail(m.buf)
		m.ready = len(m.buf)
		return
	}
	n, err := m.body.Read(m.buf[len(m.buf):cap(m.buf)])
	m.arrived(n)
	m.buf = m.buf[:len(m.buf)+n]
	m.split()
	if m.err = err; err == nil {
		m.err = m.check()
	}
	if m.err != nil {
		m.ready = len(m.buf)
	}
}

// grow makes room in a buffer that the beginning of an event fills.
func (m *meter) grow() bool {
	size := max(minKept, 2*cap(m.buf))
	if size > maxKept || !m.keep(size-cap(m.buf)) {
		return false
	}
	larger := make([]byte, len(m.buf), size)
	copy(larger, m.buf)
	m.buf = larger
	return true
}

// keep takes room for n more bytes of buffers. The first minKept need none.
func (m *meter) keep(n int) bool {
	if n <= minKept && m.held == 0 {
		return true
	}
	if !m.of.gateway.answers.take(m.of.row.UserID, int64(n)) {
		return false
	}
	m.held += int64(n)
	return true
}

// keepTail keeps the last bytes of what is passed on.
func (m *meter) keepTail(b []byte) {
	if m.tail == nil {
		m.tail = make([]byte, 0, minKept)
	}
	if more := maxKept - cap(m.tail); len(m.tail)+len(b) > cap(m.tail) && more > 0 && m.keep(more) {
		larger := make([]byte, len(m.tail), maxKept)
		copy(larger, m.tail)
		m.tail = larger
	}
	b = b[max(0, len(b)-cap(m.tail)):]
	if over := len(m.tail) + len(b) - cap(m.tail); over > 0 {
		m.tail = m.tail[:copy(m.tail, m.tail[over:])]
	}
	m.tail = append(m.tail, b...)
}

// split finds the events that are whole, and takes out the one that the client is not to see.
func (m *meter) split() {
	for {
		end := eventEnd(m.buf[m.ready:], max(0, m.seen-3))
		if end < 0 {
			break
		}
		event := m.buf[m.ready : m.ready+end]
		switch {
		case m.torn:
			m.keepTail(event)
			m.readTail()
			m.torn, m.tail = false, m.tail[:0]
			m.ready += end
		case m.hides(event):
			m.buf = append(m.buf[:m.ready], m.buf[m.ready+end:]...)
		default:
			m.ready += end
		}
		m.seen = 0
	}
	if m.seen = len(m.buf) - m.ready; m.torn {
		m.keepTail(m.buf[m.ready:])
		m.ready, m.seen = len(m.buf), 0
	}
}

// readTail reads the usage in the tail.
func (m *meter) readTail() {
	used, found := readEnd(m.tail)
	m.used, m.found = m.used.most(used), m.found || found
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
	m.of.mask(event)
	if !bytes.Contains(event, []byte(`"usage`)) {
		return false
	}
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
	m.res.Trailer = nil // they may have what headers may not
	if int64(len(m.tail)) == m.bytes {
		m.used, _, m.found = readAnswer(m.tail)
	} else if len(m.tail) > 0 {
		m.readTail()
	}
	m.of.gateway.answers.give(m.of.row.UserID, m.held)
	m.held = 0
	m.of.count(m.outcome())
	return m.body.Close()
}

// outcome is what the answer cost. Without usage the charge stays: its client left, or the endpoint
// reports none.
func (m *meter) outcome() outcome {
	o := outcome{status: m.res.StatusCode, used: m.used, first: m.first}
	if m.found || !m.of.generates {
		o.cost = m.of.costOf(m.used)
		return o
	}
	o.used = m.estimate()
	o.cost = max(m.of.charge, m.of.costOf(o.used))
	return o
}

// bytesPerToken is a rule of thumb for text.
const bytesPerToken = 4

// estimate returns what an answer without usage may have used. An event of a stream is about a token.
func (m *meter) estimate() tokens {
	t := tokens{Input: int64(len(m.of.body)) / bytesPerToken, Output: m.bytes / bytesPerToken}
	if m.events {
		t.Output = min(t.Output, m.chunks)
	}
	return t
}

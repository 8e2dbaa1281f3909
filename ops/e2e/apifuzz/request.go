package apifuzz

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
)

// request is a request ready to be sent.
type request struct {
	op     *operation
	caller caller
	node   string
	method string
	// target is the path and query as sent.
	target string
	header map[string]string
	body   []byte
	// missing is how many bytes of the announced body are not sent.
	missing int
	// sound is set if nothing in it was made invalid.
	sound bool
	// elsewhere is set if method or path may match another operation.
	elsewhere bool
}

// String formats it so that it can be sent again.
func (r *request) String() string {
	body := string(r.body)
	if len(body) > 1500 {
		body = body[:1500] + fmt.Sprintf("… (%d bytes)", len(r.body))
	}
	return fmt.Sprintf("%s as %s: %s %s%s %v %q", r.op.id, r.caller.name, r.method, r.node, clip(r.target, 600),
		r.header, body)
}

// clip shortens a text for display.
func clip(s string, most int) string {
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// maker generates requests.
type maker struct {
	rng   *rand.Rand
	world *World
	list  []*operation
}

// next generates the next request.
func (m *maker) next() *request {
	op := pick(m.rng, m.list)
	if m.rng.IntN(100) < 12 { // most requests remove something, or take it away from A
		op = m.founding(op)
	}
	r := &request{
		op:     op,
		caller: m.world.callerOf(m.rng, op.access),
		node:   pick(m.rng, m.world.nodes),
		method: op.method,
		header: map[string]string{},
		sound:  true,
	}
	g := &generator{rng: m.rng, secret: m.world.secretOf(r.caller), mcpSecret: m.world.mcpSecretOf(r.caller)}
	g.ids = func(name string) string {
		id := m.world.idOf(m.rng, r.caller, op.access, name)
		if removes(op.id) && r.caller.who == "operator" && id == m.world.b.name {
			return m.world.a.name // A may name its conversation like B's
		}
		if removes(op.id) && m.world.isMain(id) && m.rng.IntN(20) > 0 {
			return "nosuch"
		}
		return id
	}
	m.target(r, g)
	m.bodyOf(r, g)
	if m.rng.IntN(100) < 8 {
		m.breakHeader(r)
	}
	if m.rng.IntN(100) < 3 {
		r.method, r.elsewhere, r.sound = pick(m.rng,
			[]string{"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "BREW", "TRACE", "get"}), true, false
	}
	if r.caller.bearer {
		r.header["Authorization"] = "Bearer " + r.caller.key
	} else if r.caller.key != "" {
		r.header["X-Session-API-Key"] = r.caller.key
	}
	return r
}

// removes reports whether an operation takes away what most others need to get to their end.
func removes(id string) bool {
	return slices.Contains([]string{"sandbox.delete", "sandbox.pause", "sandbox.rotate_key", "sandbox.operator_delete",
		"sandbox.operator_pause",
		"sandbox.operator_rotate_key", "conversation.delete", "conversation.operator_delete"}, id)
}

// founding returns an operation that makes what the others need.
func (m *maker) founding(other *operation) *operation {
	id := pick(m.rng, []string{"sandbox.create", "conversation.start", "sandbox.resume", "sandbox.share"})
	if i := slices.IndexFunc(m.list, func(op *operation) bool { return op.id == id }); i >= 0 {
		return m.list[i]
	}
	return other
}

// target fills in path, query and the described headers.
func (m *maker) target(r *request, g *generator) {
	path := r.op.path
	query := url.Values{}
	var raw []string
	for _, p := range r.op.params {
		switch p.In {
		case "path":
			path = strings.Replace(path, "{"+p.Name+"}", m.segment(r, g, p), 1)
		case "header":
			if g.chance(30) && p.Schema != nil {
				r.header[p.Name] = oneLine(fmt.Sprint(m.headerValue(g, p)))
			}
		case "query":
			if !p.Required && !g.chance(40) || p.Required && g.chance(5) {
				continue
			}
			m.queryValue(r, g, p, query, &raw)
		}
	}
	if encoded := query.Encode(); encoded != "" {
		raw = append(raw, encoded)
	}
	r.target = path
	if len(raw) > 0 {
		r.target += "?" + strings.Join(raw, "&")
	}
}

// segment returns a path parameter, escaped or deliberately not.
func (m *maker) segment(r *request, g *generator, p *openapi3.Parameter) string {
	if g.chance(85) {
		return url.PathEscape(fmt.Sprint(g.value(p.Schema, m.world.nameOf(r.op, p), 0)))
	}
	r.sound, r.elsewhere = false, true
	return pick(m.rng,
		[]string{
			"",
			".",
			"..",
			"%2e%2e",
			"%2f",
			"a%2Fb",
			"%00",
			"%ff",
			"%25",
			";",
			";x=y",
			"*",
			"search",
			"count",
			strings.Repeat("a", 5000),
			"%E2%80%AE",
			"'",
			"~",
			"@",
			":",
			"a%0d%0ab",
			"-1",
			"0",
			"%2e%2e%2f%2e%2e%2foperator%2fkeys",
		})
}

func (m *maker) headerValue(g *generator, p *openapi3.Parameter) any {
	if p.Name == "Idempotency-Key" { // few values, so that they repeat
		return fmt.Sprintf("walk-%d", m.rng.IntN(40))
	}
	return g.value(p.Schema, p.Name, 0)
}

func (m *maker) queryValue(r *request, g *generator, p *openapi3.Parameter, query url.Values, raw *[]string) {
	name := m.world.nameOf(r.op, p)
	switch {
	case g.chance(20):
		r.sound = false
		*raw = append(*raw, p.Name+"="+pick(m.rng, []string{"", "%", "%zz", "%00", "%ff", "null", "-1", "0", "101", "1e9",
			"99999999999999999999", "NaN", "true", "[]", "a&" + p.Name + "=b", "%F0%9F%98%80",
			strings.Repeat("a", 2000), strings.Repeat("9", 400), "..%2f..", "';--", "2026-13-45T00:00:00Z",
			"0001-01-01T00:00:00Z", "+", "eyJhIjoxfQ", "_____w"}))
	case p.Name == "page_id":
		query.Set(p.Name, m.world.token(m.rng))
	case p.Schema.Value.Type.Is("array"):
		for range m.rng.IntN(4) + 1 {
			query.Add(p.Name, fmt.Sprint(g.value(p.Schema.Value.Items, name, 0)))
		}
		if g.chance(3) {
			r.sound = false
			for range 120 {
				query.Add(p.Name, fmt.Sprint(g.value(p.Schema.Value.Items, name, 0)))
			}
		}
	default:
		query.Set(p.Name, fmt.Sprint(g.value(p.Schema, name, 0)))
	}
}

// bodyOf fills in the body: valid, invalid in one place, or broken as a whole.
func (m *maker) bodyOf(r *request, g *generator) {
	if r.op.body == nil {
		if g.chance(5) {
			r.body, r.sound = []byte(`{"x":1}`), false
		}
		return
	}
	r.header["Content-Type"] = "application/json"
	v := g.value(r.op.body, "", 0)
	m.world.tame(r, v)
	twice := false
	switch n := m.rng.IntN(100); {
	case n < 45:
	case n < 75:
		v, r.sound = breakSome(m.rng, v), false
	case n < 82:
		v, twice, r.sound = breakSome(m.rng, breakSome(m.rng, v)), true, false
	case n < 86:
		twice, r.sound = true, false
	default:
		r.body, r.sound = breakBytes(m.rng, encode(m.rng, v, false)), false
		if m.rng.IntN(30) == 0 {
			r.body = []byte(`{"language":"` + strings.Repeat("a", 5<<20) + `"}`)
		}
		return
	}
	m.world.tame(r, v)
	r.body = encode(m.rng, v, twice)
	if m.rng.IntN(60) == 0 && len(r.body) > 1 {
		r.missing, r.sound = 1+m.rng.IntN(100), false
	}
}

// breakHeader adds or changes one header.
func (m *maker) breakHeader(r *request) {
	r.sound = false
	one := pick(m.rng, [][2]string{
		{"Content-Type", "text/plain"}, {
			"Content-Type",
			"application/xml",
		}, {"Content-Type", "multipart/form-data; boundary=x"}, {"Content-Type", "application/x-www-form-urlencoded"},
		{
			"Content-Type",
			"application/json; charset=utf-16",
		}, {
			"Content-Type",
			"application/vnd.api+json",
		}, {"Content-Type", "/;;;="}, {"Content-Type", strings.Repeat("a", 9000)},
		{"Content-Encoding", "gzip"}, {
			"Content-Encoding",
			"br, deflate",
		}, {"Accept", "text/html"}, {"Accept", "*/*;q=0"}, {"X-HTTP-Method-Override", "DELETE"},
		{"Idempotency-Key", ""}, {
			"Idempotency-Key",
			strings.Repeat("k", 256),
		}, {"Idempotency-Key", "a b"}, {"Idempotency-Key", "\xff"}, {"Idempotency-Key", "idem:walk-b:walk-1"},
		{
			"X-Bivouac-Consistency",
			"strong",
		}, {
			"X-Request-Id",
			strings.Repeat("r", 500),
		}, {"X-Request-Id", "a b\"c"}, {"X-Org-Id", "../../x"}, {"X-Access-Token", "x"},
		{
			"X-Forwarded-For",
			"127.0.0.1, ::1, x",
		}, {"X-Forwarded-Host", "evil.example"}, {"X-Forwarded-Proto", "javascript"}, {"Forwarded", "for=unknown"},
		{
			"Origin",
			"http://evil.example",
		}, {"Origin", "null"}, {
			"Cookie",
			"bivouac_proxy=9999999999.AAAA; a=b",
		}, {"Range", "bytes=0-1"}, {"If-None-Match", "*"}, {"Expect", "nothing"},
		{"Referer", "javascript:x"}, {
			"User-Agent",
			strings.Repeat("u", 8000),
		}, {"X-Long", strings.Repeat("x", 80_000)}, {"Accept-Encoding", "gzip;q=nan"}, {"Host-Override", "x"},
	})
	r.header[one[0]] = one[1]
}

// oneLine removes what a header can't contain.
func oneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, s)
}

// answer is a response.
type answer struct {
	status int
	header http.Header
	body   []byte
	took   time.Duration
}

// streamTime is how long a stream is read.
const streamTime = 300 * time.Millisecond

// send sends a request and reads the response. refused means that it was not sent: Go's client
// rejects what is not HTTP.
func (r *request) send(client *http.Client, deadline time.Duration) (a answer, refused bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	base, err := url.Parse(r.node)
	if err != nil {
		return a, false, err
	}
	in, err := http.NewRequestWithContext(ctx, http.MethodGet, r.node, nil)
	if err != nil {
		return a, false, err
	}
	path, query, _ := strings.Cut(r.target, "?")
	in.Method, in.URL = r.method, &url.URL{Scheme: base.Scheme, Host: base.Host, Opaque: path, RawQuery: query}
	if len(r.body) > 0 {
		in.Body, in.ContentLength = io.NopCloser(strings.NewReader(string(r.body))), int64(len(r.body)+r.missing)
	}
	for name, value := range r.header {
		in.Header[http.CanonicalHeaderKey(name)] = []string{value}
	}
	begin := time.Now()
	res, err := client.Do(in)
	if err != nil {
		return a, isOurs(err), err
	}
	defer res.Body.Close()
	if r.op.streams && res.StatusCode == http.StatusOK {
		quiet := time.AfterFunc(streamTime, cancel)
		defer quiet.Stop()
	}
	a = answer{status: res.StatusCode, header: res.Header}
	a.body, err = io.ReadAll(res.Body)
	a.took = time.Since(begin)
	if r.op.streams && a.took >= streamTime && a.took < deadline {
		err = nil // we ended it
	}
	return a, false, err
}

// isOurs reports whether Go's client rejected a request.
func isOurs(err error) bool {
	for _, text := range []string{
		"invalid header",
		"invalid method",
		"malformed",
		"ContentLength=",
		"can't write",
		"invalid URI",
		"invalid control character",
	} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

package httpapi

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/httpapi/request"
)

// Published clients write some paths with a trailing slash and follow FastAPI's 307. After a 301
// they would not send the body again.
func TestRouter_TrailingSlashIsRedirected(t *testing.T) {
	h := newHarness(t)
	for _, tt := range []struct{ method, path, location string }{
		{"GET", "/api/settings/", "/api/settings"},
		{"POST", "/api/settings/", "/api/settings"},
		{"POST", "/api/v1/sandboxes/", "/api/v1/sandboxes"},
		{"GET", "/api/v1/app-conversations/search/?limit=5&x=%2F", "/api/v1/app-conversations/search?limit=5&x=%2F"},
		{"POST", "/api/v1/sandboxes/x/pause/", "/api/v1/sandboxes/x/pause"},
		{"PUT", "/api/settings/", "/api/settings"},
		{"GET", "/alive/", "/alive"},
	} {
		res := h.do(h.alice, tt.method, tt.path, "").want(t, http.StatusTemporaryRedirect)
		if got := res.header.Get("Location"); got != tt.location {
			t.Errorf("%s %s: Location %q, want %q", tt.method, tt.path, got, tt.location)
		}
	}
	for _, path := range []string{
		"/",
		"//",
		"/api/settings//",
		"//api/settings/",
		"//evil.example/",
		"/nowhere/",
		"/api/settings%2F",
		"/api/v1/sandboxes/%2F",
	} {
		if res := h.do(h.alice, "GET", path, "").want(t, http.StatusNotFound); res.header.Get("Location") != "" {
			t.Errorf("%s redirects", path)
		}
	}
}

func packed(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestBody_Gzip(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.MaxBodyBytes = 10_000 })
	const body = `{"language":"de"}`
	h.do(h.alice, "POST", "/api/settings", packed(t, body), "Content-Encoding", "gzip").want(t, 200)
	if got := h.do(h.alice, "GET", "/api/settings",
		"").want(t, 200); !strings.Contains(string(got.body), `"language":"de"`) {
		t.Errorf("%s", got.body)
	}
	h.do(h.alice, "POST", "/api/settings", body, "Content-Encoding", "identity").want(t, 200)
	h.do(h.alice, "POST", "/api/settings", packed(t, body), "Content-Encoding", "X-GZIP").want(t, 200)
	// A few bytes that decompress to more than the limit.
	bomb := packed(t, `{"language":"`+strings.Repeat("x", 1_000_000)+`"}`)
	h.do(h.alice, "POST", "/api/settings", bomb, "Content-Encoding", "gzip").want(t, 413)
	whole := packed(t, body)
	for name, broken := range map[string]string{
		"no gzip":   body,
		"cut off":   whole[:len(whole)-5],
		"wrong sum": whole[:len(whole)-8] + "xxxx" + whole[len(whole)-4:],
	} {
		t.Run(name, func(t *testing.T) {
			h.do(h.alice, "POST", "/api/settings", broken, "Content-Encoding", "gzip").want(t, 400)
		})
	}
	for _, encoding := range []string{"br", "zstd", "gzip, gzip", "gzip, br"} {
		res := h.do(h.alice, "POST", "/api/settings", body, "Content-Encoding", encoding).want(t, 415)
		if got := res.header.Get("Accept-Encoding"); got != "gzip" {
			t.Errorf("%s: Accept-Encoding %q", encoding, got)
		}
	}
}

// A request is the same whether it is compressed or not.
func TestBody_GzipAndIdempotency(t *testing.T) {
	h := newHarness(t).withSpec()
	first := h.do(h.alice, "POST", "/api/v1/sandboxes", "", request.HeaderIdempotencyKey, "k").want(t, 200)
	again := h.do(h.alice, "POST", "/api/v1/sandboxes", packed(t, ""), request.HeaderIdempotencyKey, "k",
		"Content-Encoding",
		"gzip").want(t, 200)
	if string(first.body) != string(again.body) {
		t.Errorf("%s and %s", first.body, again.body)
	}
}

// Python's json.loads accepts a byte order mark.
func TestBody_ByteOrderMark(t *testing.T) {
	h := newHarness(t)
	h.do(h.alice, "POST", "/api/settings", "\ufeff{\"language\":\"de\"}").want(t, 200)
	h.do(h.alice, "POST", "/api/settings", "\ufeff\ufeff{}").want(t, 422)
	h.do(h.alice, "POST", "/api/settings", "\ufeff").want(t, 422)
}

func TestBody_NullCharacter(t *testing.T) {
	h := newHarness(t).withSpec()
	id := h.conversation("alice", h.createSandbox(h.alice))
	for _, tt := range []struct{ method, path, body, loc string }{
		{"PATCH", "/api/v1/app-conversations/" + id, `{"title":"a\u0000b"}`, `["body","title"]`},
		{"POST", "/api/settings", `{"language":"\u0000"}`, `["body","language"]`},
		{"POST", "/api/settings", `{"secrets_store":{"custom_secrets":{"A":{"secret":"x\u0000y"}}}}`, `"secret"]`},
		{"POST", "/api/settings", `{"a\u0000":1}`, `["body","**********"]`},
	} {
		res := h.do(h.alice, tt.method, tt.path, tt.body).want(t, 422)
		if text := string(res.body); !strings.Contains(text, tt.loc) || !strings.Contains(text, "null character") ||
			strings.Contains(text, `x\u0000y`) {
			t.Errorf("%s: %s", tt.body, text)
		}
	}
	// An escaped backslash before the digits is not a null character.
	h.do(h.alice, "PATCH", "/api/v1/app-conversations/"+id, `{"title":"a\\u0000b"}`).want(t, 200)
}

// Two readers of one text must find the same value: one takes the first of two members of a name,
// another the last, and each puts something else for half of a surrogate pair.
func TestBody_TwoReadingsAreRefused(t *testing.T) {
	h := newHarness(t)
	for _, tt := range []struct{ body, loc, text string }{
		{`{"language":"de","language":"fr"}`, `["body","17"]`, "Duplicate member"},
		{`{"language":"de","l\u0061nguage":"fr"}`, `["body","17"]`, "Duplicate member"},
		{`{"a":{"b":[{"c":1,"c":2}]}}`, `["body","18"]`, "Duplicate member"},
		{`{"language":"\ud800"}`, `["body","13"]`, "Lone surrogate"},
		{`{"language":"\udc00\ud800"}`, `["body","13"]`, "Lone surrogate"},
		{`{"\ud83d":"de"}`, `["body","2"]`, "Lone surrogate"},
	} {
		res := h.do(h.alice, "POST", "/api/settings", tt.body).want(t, 422)
		if text := string(res.body); !strings.Contains(text, tt.loc) || !strings.Contains(text, tt.text) ||
			!strings.Contains(text, "json_invalid") {
			t.Errorf("%s: %s", tt.body, text)
		}
	}
	h.do(h.alice, "POST", "/api/settings", `{"language":"\ud83d\ude00","a":{"a":1},"b":[{"a":1},{"a":2}]}`).want(t, 200)
}

func TestBody_Charset(t *testing.T) {
	h := newHarness(t)
	for _, name := range []string{"utf-8", "UTF-8", `"utf-8"`, "us-ascii", "utf8"} {
		h.do(h.alice, "POST", "/api/settings", `{}`, "Content-Type", "application/json; charset="+name).want(t, 200)
	}
	for _, name := range []string{"utf-16", "UTF-16LE", "utf-32", "iso-8859-1", "shift_jis", "x"} {
		res := h.do(h.alice, "POST", "/api/settings", `{"language":"de"}`, "Content-Type",
			"application/json; charset="+name).want(t, 415)
		if !strings.Contains(string(res.body), "UTF-8") {
			t.Errorf("%s: %s", name, res.body)
		}
	}
}

// An ordinary client reads the response when it has sent the whole body: closing the connection
// before that resets it.
func TestServer_TooLargeABodyIsAnswered(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.MaxBodyBytes = 1 << 20 })
	address, _ := served(t, h)
	piece := bytes.Repeat([]byte("x"), 1<<20)
	const pieces = 64 // more than the kernel keeps for a connection
	for name, framing := range map[string]string{
		"length": fmt.Sprintf("Content-Length: %d", pieces<<20),
		"chunks": "Transfer-Encoding: chunked",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := dial(t, address)
			head := "POST /api/settings HTTP/1.1\r\nHost: x\r\nContent-Type: " +
				"application/json\r\nAuthorization: Bearer " + h.alice + "\r\n" + framing + "\r\n\r\n"
			if _, err := io.WriteString(c, head); err != nil {
				t.Fatal(err)
			}
			for n := range pieces {
				text := piece
				if name == "chunks" {
					text = slices.Concat([]byte("100000\r\n"), piece, []byte("\r\n"))
				}
				if _, err := c.Write(text); err != nil {
					t.Fatalf("after %d MiB: %v", n, err)
				}
			}
			if name == "chunks" {
				_, _ = io.WriteString(c, "0\r\n\r\n") // the response may end the wait before
			}
			reply, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || reply.StatusCode != http.StatusRequestEntityTooLarge || !reply.Close {
				t.Errorf("%+v, %v", reply, err)
			}
		})
	}
}

package page_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/httpapi/page"
)

const scriptBody = "export default 1; // and what makes it worth compressing: 0000000000000000000000000000000000000000"

// folder writes a page of five files.
func folder(t *testing.T, change func(*page.Manifest)) string {
	t.Helper()
	dir := t.TempDir()
	m := page.Manifest{
		Scripts: []string{"sha256-AAAA"}, Routes: []string{"/", "/conversations", "/conversations/:id", "/ext/:n/*"},
		Files: map[string]page.File{},
	}
	for name, body := range map[string]string{
		page.Index: "<!DOCTYPE html><title>t</title>", page.Docs: "docs", "assets/a-12345678.js": scriptBody,
		"assets/b-12345678.woff2": "font", "locales/en.json": "{}",
	} {
		sum := sha256.Sum256([]byte(body))
		f := page.File{Type: "text/plain", Size: int64(len(body)), Sum: hex.EncodeToString(sum[:])}
		f.Immutable = strings.HasPrefix(name, "assets/")
		at := filepath.Join(dir, page.FilesDir, name)
		if name == "assets/a-12345678.js" {
			f.Type = "text/javascript; charset=utf-8"
			var b bytes.Buffer
			w := gzip.NewWriter(&b)
			_, _ = w.Write([]byte(body))
			_ = w.Close()
			body, at, f.Packed = b.String(), at+page.PackedSuffix, int64(b.Len())
		}
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		m.Files[name] = f
	}
	if change != nil {
		change(&m)
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, page.ManifestName), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func opened(t *testing.T) *page.Page {
	t.Helper()
	p, err := page.Open(folder(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// get serves one request, and returns nil for a path that the page does not have.
func get(t *testing.T, p *page.Page, method, path string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	name, found := p.Find(path)
	if !found {
		return nil
	}
	r := httptest.NewRequest(method, "http://example.org/", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	if err := p.Serve(w, r, name, url.URL{}); err != nil {
		t.Fatal(err)
	}
	return w
}

func TestPage_OnlyWhatTheManifestLists(t *testing.T) {
	p := opened(t)
	for path, want := range map[string]string{
		"/": page.Index, "/conversations": page.Index, "/conversations/": page.Index, "/conversations/7": page.Index,
		"/index.html": page.Index, "/assets/a-12345678.js": "assets/a-12345678.js",
		"/ext/a": page.Index, "/ext/a/b/c": page.Index, "/ext": "", "/ext//b": "",
		"/conversations/7/8": "", "/conversations//": "", "/api": "", "/assets": "", "/assets/": "", "": "", "x": "",
		"//": "", "//assets/a-12345678.js": "", "/../manifest.json": "", "/manifest.json": "", "/files/index.html": "",
		"/assets/../index.html": "", "/assets/a-12345678.js.gz": "", `/..\manifest.json`: "", "/./index.html": "",
		"/assets/a-12345678.js/": "", "/assets/a-12345678.js\x00": "",
	} {
		if name, found := p.Find(path); name != want || found != (want != "") {
			t.Errorf("Find(%q) = %q, %t, want %q", path, name, found, want)
		}
	}
}

func TestPage_FilesAreServedAsTheyAre(t *testing.T) {
	p := opened(t)
	packed := get(t, p, "GET", "/assets/a-12345678.js", "Accept-Encoding", "br;q=1, gzip;q=0.5")
	plain := get(t, p, "GET", "/assets/a-12345678.js", "Accept-Encoding", "br, gzip;q=0")
	unpacked, err := gzip.NewReader(packed.Body)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(unpacked); err != nil || b.String() != scriptBody || plain.Body.String() != scriptBody {
		t.Errorf("%v: %q and %q", err, b.String(), plain.Body)
	}
	if e := plain.Header().Get("Content-Encoding"); e != "" || packed.Header().Get("Content-Encoding") != "gzip" {
		t.Errorf("encodings %q and %q", e, packed.Header().Get("Content-Encoding"))
	}
	tag := plain.Header().Get("ETag")
	for name, w := range map[string]*httptest.ResponseRecorder{"packed": packed, "plain": plain} {
		h := w.Header()
		for header, want := range map[string]string{
			"Content-Type": "text/javascript; charset=utf-8", "Cache-Control": "public, max-age=31536000, immutable",
			"Vary": "Accept-Encoding", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "ETag": tag,
		} {
			if got := h.Get(header); got != want {
				t.Errorf("%s: %s is %q, want %q", name, header, got, want)
			}
		}
	}
	head := get(t, p, "HEAD", "/assets/a-12345678.js", "Accept-Encoding", "gzip")
	if length := head.Header().Get("Content-Length"); head.Body.Len() > 0 || length == "" ||
		length != packed.Header().Get("Content-Length") {
		t.Errorf("HEAD: %d bytes, Content-Length %q", head.Body.Len(), length)
	}
	for _, list := range []string{tag, strings.TrimPrefix(tag, "W/"), `"x", ` + tag} {
		if w := get(t, p, "GET", "/assets/a-12345678.js", "If-None-Match", list); w.Code != http.StatusNotModified ||
			w.Body.Len() > 0 {
			t.Errorf("If-None-Match %s: %d with %d bytes", list, w.Code, w.Body.Len())
		}
	}
	for _, path := range []string{"/", "/conversations/7", "/locales/en.json"} {
		if c := get(t, p, "GET", path).Header().Get("Cache-Control"); c != "no-cache" {
			t.Errorf("%s: Cache-Control %q", path, c)
		}
	}
}

func TestPage_Policy(t *testing.T) {
	p := opened(t)
	for hosts, want := range map[string][]string{
		"": {"connect-src 'self'", "frame-src 'self'"},
		"https://*.sandboxes.example.net": {
			"connect-src 'self' https://*.sandboxes.example.net wss://*.sandboxes.example.net",
			"frame-src 'self' https://*.sandboxes.example.net",
		},
		"http://*.localhost:8440": {
			"connect-src 'self' http://*.localhost:8440 ws://*.localhost:8440", "frame-src 'self' http://*.localhost:8440",
		},
	} {
		at := url.URL{}
		at.Scheme, at.Host, _ = strings.Cut(hosts, "://")
		w := httptest.NewRecorder()
		if err := p.Serve(w, httptest.NewRequest("GET", "/", nil), page.Index, at); err != nil {
			t.Fatal(err)
		}
		directives := strings.Split(w.Header().Get("Content-Security-Policy"), "; ")
		want = append(want, "default-src 'self'", "script-src 'self' 'sha256-AAAA'", "worker-src 'self' blob:",
			"object-src 'none'", "base-uri 'none'", "frame-ancestors 'none'", "form-action 'self'")
		for _, one := range want {
			if !slices.Contains(directives, one) {
				t.Errorf("%s: no %q in %q", hosts, one, directives)
			}
		}
		for _, one := range directives {
			for _, source := range strings.Fields(one)[1:] {
				switch source {
				case "http:", "https:", "ws:", "wss:", "*":
					t.Errorf("%q has a source for any host", one)
				}
			}
		}
	}
}

func TestOpen_RefusesWhatIsNotWhole(t *testing.T) {
	for name, change := range map[string]func(*page.Manifest){
		"no index":   func(m *page.Manifest) { delete(m.Files, page.Index) },
		"no file":    func(m *page.Manifest) { m.Files["more.js"] = page.File{Type: "text/javascript", Size: 1} },
		"other size": func(m *page.Manifest) { m.Files[page.Index] = page.File{Type: "text/html", Size: 1} },
		"outside": func(m *page.Manifest) {
			m.Files["../"+page.ManifestName] = page.File{Type: "text/plain", Size: 1}
		},
		"a folder": func(m *page.Manifest) { m.Files["assets"] = page.File{Type: "text/plain", Size: 4096} },
	} {
		if _, err := page.Open(folder(t, change)); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
	if _, err := page.Open(t.TempDir()); err == nil {
		t.Error("an empty folder was opened")
	}
}

func TestMissing_SaysHowToGetIt(t *testing.T) {
	p := page.Missing()
	w := get(t, p, "GET", "/")
	if w == nil || w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "make build") {
		t.Fatalf("%+v", w)
	}
	if _, found := p.Find("/conversations"); found || !p.IsMissing() {
		t.Error("a missing page has more than its first path")
	}
}

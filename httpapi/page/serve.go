package page

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
)

// Values of Cache-Control.
const (
	cacheForever = "public, max-age=31536000, immutable"
	cacheAsking  = "no-cache"
)

//go:embed missing.html
var missing []byte

// Serve answers a GET or HEAD with a file that Find returned. hosts is the pattern of the
// sandboxes' own hosts ("*.sandboxes.example.net"), with their scheme; zero where they have none.
func (p *Page) Serve(w http.ResponseWriter, r *http.Request, name string, hosts url.URL) error {
	h := w.Header()
	h.Set("Cache-Control", cacheAsking)
	h.Del("Pragma")
	h.Del("Expires")
	h.Set("Content-Security-Policy", p.policy(hosts))
	h.Set("Referrer-Policy", "same-origin")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	if p.missing {
		h.Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(http.StatusNotFound)
		return sendBody(w, r, bytes.NewReader(missing))
	}
	f := p.manifest.Files[name]
	// Weak, since the file and what it is compressed to have one.
	tag := `W/"` + f.Sum + `"`
	if f.Immutable {
		h.Set("Cache-Control", cacheForever)
	}
	h.Set("ETag", tag)
	h.Add("Vary", "Accept-Encoding")
	if has(r.Header.Get("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return p.send(w, r, name, f)
}

// send sends a file, compressed where it lies so and the client takes it.
func (p *Page) send(w http.ResponseWriter, r *http.Request, name string, f File) error {
	path, size := p.place(name, f)
	file, err := os.Open(path)
	if err != nil {
		// Its folder was removed under a running node.
		http.Error(w, "The web page's files are not there any more.", http.StatusInternalServerError)
		return fmt.Errorf("serving the web page: %w", err)
	}
	defer file.Close()
	body := io.Reader(file)
	h := w.Header()
	if f.Packed > 0 {
		if takesGzip(r.Header.Get("Accept-Encoding")) {
			h.Set("Content-Encoding", "gzip")
		} else if body, err = gzip.NewReader(file); err != nil {
			http.Error(w, "The web page's files are damaged.", http.StatusInternalServerError)
			return fmt.Errorf("serving the web page: %s: %w", path, err)
		} else {
			size = f.Size
		}
	}
	h.Set("Content-Type", f.Type)
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	return sendBody(w, r, body)
}

// sendBody sends a body, but for HEAD. A client that does not read to the end is no error of ours.
func sendBody(w http.ResponseWriter, r *http.Request, body io.Reader) error {
	if r.Method != http.MethodHead {
		_, _ = io.Copy(w, body)
	}
	return nil
}

// has reports whether a list of tags (If-None-Match) has one.
func has(list, tag string) bool {
	bare := strings.TrimPrefix(tag, "W/")
	for one := range strings.SplitSeq(list, ",") {
		if one = strings.TrimSpace(one); one == "*" || strings.TrimPrefix(one, "W/") == bare {
			return true
		}
	}
	return false
}

// takesGzip reports whether an Accept-Encoding takes gzip.
func takesGzip(accepts string) bool {
	for one := range strings.SplitSeq(accepts, ",") {
		coding, q, _ := strings.Cut(one, ";")
		if strings.EqualFold(strings.TrimSpace(coding), "gzip") {
			weight, given := strings.CutPrefix(strings.ReplaceAll(q, " ", ""), "q=")
			n, err := strconv.ParseFloat(weight, 64)
			return !given || err == nil && n > 0
		}
	}
	return false
}

// policy is the Content-Security-Policy of every file: a worker has that of its own script. Styles
// are inline because the page's libraries write them at run time. Data and blob URLs, which leave no
// browser, are icons in style sheets, images of a message and Monaco's workers.
func (p *Page) policy(hosts url.URL) string {
	frames, sockets := "", ""
	if hosts.Host != "" {
		frames = " " + hosts.Scheme + "://" + hosts.Host
		sockets = frames + " " + strings.Replace(hosts.Scheme, "http", "ws", 1) + "://" + hosts.Host
	}
	return "default-src 'self'; script-src 'self'" + p.scripts + "; style-src 'self' 'unsafe-inline'; " +
		"img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'" + sockets +
		"; frame-src 'self'" + frames + "; worker-src 'self' blob:; form-action 'self'; " +
		"object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
}

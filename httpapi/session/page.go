package session

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strings"
)

// pageHTML is the page with its one style and its one script.
//
//go:embed login.html
var pageHTML []byte

// Page is the sign-in page.
type Page struct {
	body   []byte
	policy string
}

// NewPage returns the page. Its policy names the style and the script by their hashes: 'self' would
// take scripts from the paths of sandboxes, too.
func NewPage() *Page {
	return &Page{
		body: pageHTML,
		policy: strings.Join([]string{
			"default-src 'none'", "script-src " + hashOf(pageHTML, "script"), "style-src " + hashOf(pageHTML, "style"),
			"connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
		}, "; "),
	}
}

// hashOf returns the source of a policy for what the element's tags enclose.
func hashOf(page []byte, element string) string {
	_, rest, _ := bytes.Cut(page, []byte("<"+element+">"))
	text, _, _ := bytes.Cut(rest, []byte("</"+element+">"))
	sum := sha256.Sum256(text)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", p.policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
	_, _ = w.Write(p.body) // the client may have left
}

package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// TestSession_InABrowser signs Chromium in with the link that `bivouac dev` prints. Then a page on another
// port of the same host, which is the same site to the browser, tries to act with the session.
func TestSession_InABrowser(t *testing.T) {
	browser := startChromium(t)
	base, _ := freePorts(t, "")
	home := t.TempDir()
	dev := startDev(t, home, build(t, filepath.Join(home, "bin", "bivouac"), "./cmd/bivouac"), base)
	var link string
	testcluster.Eventually(t, "bivouac dev prints a link", func() error {
		link = regexp.MustCompile(`http://\S+/login#code=\w+`).FindString(dev.output())
		if link == "" {
			return fmt.Errorf("it says %s", dev.output())
		}
		return nil
	})
	node, _, _ := strings.Cut(link, "/login")

	page := browser.open(t, link, "post")
	shows(t, page, "document.getElementById('said').innerText", "signs this browser in as dev")
	shows(t, page, "location.hash + '.'", ".")
	must(t, page, "at('enter').click(), 1", new(int))
	shows(t, page, "location.pathname", "/")
	page = browser.open(t, node+"/login", "post")
	shows(t, page, "document.getElementById('said').innerText", "is signed in as dev")
	status := func(expression string) (got string) {
		t.Helper()
		must(t, page, expression+".then((r) => String(r.status), () => 'blocked')", &got)
		return got
	}
	const own = "fetch('/api/v1/sandboxes/search')"
	if got := status(own); got != "200" {
		t.Fatalf("the node's own page gets %s", got)
	}

	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<!doctype html><script>function ready() {}</script>")
	}))
	t.Cleanup(evil.Close)
	own2 := page
	page = browser.open(t, evil.URL, "ready")
	for name, attack := range map[string]string{
		"a read":          `fetch(NODE + '/api/v1/sandboxes/search', {credentials: 'include'})`,
		"a write as text": `fetch(NODE + '/api/settings', {method: 'POST', credentials: 'include', body: '{}'})`,
		"a write as JSON": `fetch(NODE + '/api/settings', {method: 'POST', credentials: 'include', body: '{}',
			headers: {'Content-Type': 'application/json'}})`,
		"a sign-out": `fetch(NODE + '/api/logout', {method: 'POST', credentials: 'include'})`,
		"a new code": `fetch(NODE + '/api/login/codes', {method: 'POST', credentials: 'include'})`,
		"a socket": `new Promise((opened, failed) => {
			const socket = new WebSocket(NODE.replace('http', 'ws') + '/api/v1/sandboxes/search')
			socket.onopen = () => opened({status: 101})
			socket.onerror = failed
		})`,
		"a form in a frame": `new Promise((_, done) => {
			const frame = document.createElement('iframe'), form = document.createElement('form')
			frame.name = form.target = 'f'
			form.method = 'POST'
			form.action = NODE + '/api/logout'
			document.body.append(frame, form)
			frame.onload = done
			form.submit()
		})`,
	} {
		if got := status(strings.ReplaceAll(attack, "NODE", "'"+node+"'")); got != "blocked" {
			t.Errorf("%s by another port's page: %s", name, got)
		}
	}
	page = own2
	if got := status(own); got != "200" {
		t.Errorf("after the attacks the node's own page gets %s", got)
	}
	if got := status("fetch('/api/settings')"); got != "404" {
		t.Errorf("settings were stored: %s", got)
	}
	must(t, page, "at('leave').click(), 1", new(int))
	shows(t, page, "document.getElementById('said').innerText", "is signed out")
	if got := status(own); got != "401" {
		t.Errorf("after signing out the page gets %s", got)
	}
}

// must evaluates an expression in a tab.
func must(t *testing.T, p *tab, expression string, out any) {
	t.Helper()
	if err := p.eval(expression, out); err != nil {
		t.Fatal(err)
	}
}

// shows waits until an expression in a tab is a text with another one in it.
func shows(t *testing.T, p *tab, expression, want string) {
	t.Helper()
	testcluster.Eventually(t, "the page shows "+want, func() error {
		var got string
		if err := p.eval(expression, &got); err != nil {
			return err
		}
		if !strings.Contains(got, want) {
			return fmt.Errorf("it shows %q", got)
		}
		return nil
	})
}

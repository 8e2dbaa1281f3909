package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// TestSession_InABrowser signs Chromium in with the link that `bivouac dev` prints. Then other pages try
// to act with the session: one on another port of the same host, which is the same site to the browser,
// and one of another user's sandbox, on the node's own address and on a host of its own.
func TestSession_InABrowser(t *testing.T) {
	browser := startChromium(t)
	dev, _, info := startedDev(t)
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
	api := testcluster.Client{Base: info.Nodes[0].HTTP, Key: info.APIKey}
	applyPageSpec(t, api)
	sb := pageSandboxOf(t, api, "eve", pageSecret)
	mine := page
	for _, from := range []struct{ name, url, ready string }{
		{"another port's page", evil.URL, "ready"},
		{"a sandbox's page on the node's address", sb.path + "/" + sb.fragment, "plant"},
		{"a sandbox's page on its host", sb.host + "/" + sb.fragment, "plant"},
	} {
		theirs := browser.open(t, from.url, from.ready)
		for name, attack := range sessionAttacks() {
			page = theirs
			got := status(strings.ReplaceAll(attack, "NODE", "'"+node+"'"))
			if want := map[bool]string{true: "sent", false: "blocked"}[strings.Contains(name, "form")]; got != want {
				t.Errorf("%s by %s: %s, want %s", name, from.name, got, want)
			}
			// What the attacker can't read may have been done all the same.
			page = mine
			if got := status(own); got != "200" {
				t.Fatalf("after %s by %s the node's own page gets %s", name, from.name, got)
			}
			if got := status("fetch('/api/settings')"); got != "404" {
				t.Fatalf("%s by %s has stored settings: %s", name, from.name, got)
			}
		}
	}
	must(t, page, "at('leave').click(), 1", new(int))
	shows(t, page, "document.getElementById('said').innerText", "is signed out")
	if got := status(own); got != "401" {
		t.Errorf("after signing out the page gets %s", got)
	}
}

// sessionAttacks are what a page of another origin may try with the session of a browser: an expression
// each, whose promise fails where the page gets no answer. A form is sent always, and shows no answer.
func sessionAttacks() map[string]string {
	return map[string]string{
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
		"a form in a frame": `new Promise((done) => {
			const frame = document.createElement('iframe'), form = document.createElement('form')
			frame.name = form.target = 'f'
			form.method = 'POST'
			form.action = NODE + '/api/logout'
			document.body.append(frame, form)
			frame.onload = () => done({status: 'sent'})
			form.submit()
		})`,
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

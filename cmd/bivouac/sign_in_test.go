package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/session"
)

var signInPattern = regexp.MustCompile(`^(http://127\.0\.0\.1:\d+)/login#code=(\w{22})$`)

// ofPage sends a request to a node as the page in a browser on this machine does.
func ofPage(t *testing.T, method, at, cookie, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, at, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if cookie != "" {
		r.Header.Set("Cookie", cookie)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// TestUI_SignsABrowserIn: the link of `bivouac ui`, and that of the greeting, signs in at any node,
// once; the session is good on each node until it is signed out on one. No log has a code or a
// token.
func TestUI_SignsABrowserIn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := startDev(t, dir)
	var greeting bytes.Buffer
	r.greet(&greeting, r.signInLink(t.Context()))
	first := strings.Split(greeting.String(), "\n")[:5]
	env := map[string]string{"BIVOUAC_API_KEY": r.all[0].key, "BIVOUAC_ADDR": "http://127.0.0.1:1," + r.all[1].base}
	for _, link := range []string{mustRun(t, env, "ui"), strings.TrimSpace(first[4])} {
		parts := signInPattern.FindStringSubmatch(link)
		if parts == nil || parts[1] == "http://127.0.0.1:1" {
			t.Fatalf("%q is no link of a node; the greeting begins with %q", link, first)
		}
		body := `{"code":"` + parts[2] + `"}`
		in := ofPage(t, "POST", r.all[2].base+"/api/login", "", body)
		if in.StatusCode != http.StatusOK || len(in.Cookies()) != 1 || in.Cookies()[0].Name != session.CookiePlain {
			t.Fatalf("%d with %v", in.StatusCode, in.Header)
		}
		if again := ofPage(t, "POST", parts[1]+"/api/login", "", body); again.StatusCode != http.StatusUnauthorized {
			t.Errorf("used a second time: %d", again.StatusCode)
		}
		cookie := in.Cookies()[0].Name + "=" + in.Cookies()[0].Value
		for _, n := range r.all {
			if got := ofPage(t, "POST", n.base+"/api/authenticate", cookie, "{}"); got.StatusCode != http.StatusOK {
				t.Errorf("%s: %d", n.base, got.StatusCode)
			}
		}
		if out := ofPage(t, "POST", r.all[1].base+"/api/logout", cookie, ""); out.StatusCode != http.StatusOK {
			t.Errorf("signing out: %d", out.StatusCode)
		}
		for _, n := range r.all {
			got := ofPage(t, "GET", n.base+"/api/v1/sandboxes/search", cookie, "")
			if got.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s after signing out: %d", n.base, got.StatusCode)
			}
		}
		logs, err := filepath.Glob(filepath.Join(dir, "logs", "*"))
		if err != nil || len(logs) == 0 {
			t.Fatalf("%d logs, %v", len(logs), err)
		}
		for _, name := range logs {
			if b, err := os.ReadFile(name); err != nil || bytes.Contains(b, []byte(parts[2])) ||
				bytes.Contains(b, []byte(in.Cookies()[0].Value)) {
				t.Errorf("%s has the code or the token (%v)", name, err)
			}
		}
	}
}

// TestUI_StopIsTakenBack: after the Stop of a page the sandbox is PAUSED at once on every node, and a
// person who goes on has the same process again. With a key the pause stops it.
func TestUI_StopIsTakenBack(t *testing.T) {
	t.Parallel()
	r := startDev(t, t.TempDir())
	in := ofPage(t, "POST", r.all[0].base+"/api/login", "", `{"key":"`+r.all[0].key+`"}`)
	if in.StatusCode != http.StatusOK || len(in.Cookies()) != 1 {
		t.Fatalf("%d with %v", in.StatusCode, in.Header)
	}
	cookie := in.Cookies()[0].Name + "=" + in.Cookies()[0].Value
	var made sandboxInfo
	if err := decode(r.all[0].do(t, http.StatusOK, "POST", "/api/v1/sandboxes", nil), &made); err != nil {
		t.Fatal(err)
	}
	placed := func() string {
		r.all[0].awaitSandbox(t, made.ID, "RUNNING")
		return r.nodes[0].app.store.View().SandboxAny(made.ID).Status.Placement.AllocID
	}
	first := placed()
	at := "/api/v1/sandboxes/" + made.ID
	if got := ofPage(t, "POST", r.all[1].base+at+"/pause", cookie, "{}"); got.StatusCode != http.StatusOK {
		t.Fatalf("Stop: %d", got.StatusCode)
	}
	for _, n := range r.all {
		if info, err := n.sandbox(made.ID); err != nil || info.Status != "PAUSED" {
			t.Errorf("%s after Stop: %v, %v", n.base, info.Status, err)
		}
	}
	r.all[2].do(t, http.StatusOK, "POST", at+"/resume", nil)
	if again := placed(); again != first {
		t.Errorf("Stop was taken back with another process: %s, not %s", again, first)
	}
	r.all[0].do(t, http.StatusOK, "POST", at+"/pause", nil)
	eventually(t, "the key's pause has stopped the process", func() error {
		if got := r.nodes[0].app.store.View().SandboxAny(made.ID).Status; got.State != fsm.SandboxPaused {
			return fmt.Errorf("it is %s", got.State)
		}
		return nil
	})
}

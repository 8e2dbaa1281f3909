package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// webPage is a tab whose every request is recorded: its workers' and frames' too.
type webPage struct {
	tab
	origin *url.URL
	// open are the requests without an answer yet, by their ids.
	open map[string]string
	// frame is the id of the page's own frame, "" until it shows a document.
	frame string
	// answers are the answers by "STATUS METHOD PATH", methods those of requests by their ids.
	answers map[string]int
	methods map[string]string
	// left are requests beyond the page's origin and the sandboxes' domain that the policy did not
	// refuse, by their ids.
	left map[string]string
	// sockets is how many WebSockets it opened.
	sockets int
	// mistakes are what the page's code threw.
	mistakes []string
}

// recordViolations keeps what the policy refuses, before any script of a page runs.
const recordViolations = `globalThis.refusedByPolicy = [];
addEventListener("securitypolicyviolation", (e) => refusedByPolicy.push(e.effectiveDirective + " " + e.blockedURI))`

// watch opens an empty tab for pages of one origin.
func (c *chromium) watch(t *testing.T, origin string) *webPage {
	t.Helper()
	at, err := url.Parse(origin)
	if err != nil {
		t.Fatal(err)
	}
	w := &webPage{
		tab: tab{browser: c}, origin: at, open: map[string]string{}, answers: map[string]int{},
		methods: map[string]string{}, left: map[string]string{},
	}
	c.event = w.note
	var made struct{ TargetID string }
	var attached struct{ SessionID string }
	err = c.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &made)
	if err == nil {
		err = c.call("", "Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &attached)
	}
	w.session = attached.SessionID
	if err == nil {
		err = w.begin(context.Background(), w.session)
	}
	if err == nil {
		err = c.call(w.session, "Page.enable", map[string]any{}, nil)
	}
	if err == nil {
		err = c.call(w.session, "Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": recordViolations}, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// begin has a target tell of its requests, and of the targets that it starts.
func (w *webPage) begin(ctx context.Context, session string) error {
	for _, command := range []struct {
		method string
		params map[string]any
	}{
		{"Network.enable", map[string]any{}},
		{"Runtime.enable", map[string]any{}},
		{"Target.setAutoAttach", map[string]any{"autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true}},
		{"Runtime.runIfWaitingForDebugger", map[string]any{}},
	} {
		if _, err := w.browser.send(ctx, session, command.method, command.params); err != nil {
			return err
		}
	}
	return nil
}

// note records what the browser tells.
func (w *webPage) note(session, method string, params json.RawMessage) {
	var e struct {
		RequestID, SessionID, BlockedReason, URL string
		LoaderID, FrameID, Type                  string
		Request                                  struct{ URL, Method string }
		Response                                 struct{ Status int }
		ExceptionDetails                         struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	if json.Unmarshal(params, &e) != nil {
		return
	}
	id := session + " " + e.RequestID
	switch method {
	case "Target.attachedToTarget":
		_ = w.begin(context.Background(), e.SessionID)
	case "Network.requestWillBeSent":
		if e.Type == "Document" && session == w.session && (w.frame == "" || w.frame == e.FrameID) {
			// What the document before asked for last ends unseen, some of it.
			w.frame, w.open = e.FrameID, map[string]string{}
		}
		w.open[id], w.methods[id] = e.Request.URL, e.Request.Method
		w.judge(id, e.Request.URL)
	case "Network.webSocketCreated":
		w.sockets++
		w.judge(id, e.URL)
	case "Network.responseReceived":
		if at, is := w.open[id]; is {
			w.answers[fmt.Sprintf("%d %s %s", e.Response.Status, w.methods[id], w.short(at))]++
		}
	case "Network.loadingFinished":
		delete(w.open, id)
	case "Network.loadingFailed":
		if delete(w.open, id); e.BlockedReason == "csp" {
			delete(w.left, id)
		}
	case "Runtime.exceptionThrown":
		w.mistakes = append(w.mistakes, e.ExceptionDetails.Text+" "+e.ExceptionDetails.Exception.Description)
	}
}

// judge notes a request that leaves the page's origin and the sandboxes' domain.
func (w *webPage) judge(id, to string) {
	u, err := url.Parse(to)
	if err != nil {
		w.left[id] = to
		return
	}
	own := u.Host == w.origin.Host || strings.HasSuffix(u.Hostname(), ".localhost") && u.Port() == w.origin.Port()
	if u.Scheme != "data" && u.Scheme != "blob" && !own {
		w.left[id] = to
	}
}

// short is a URL of the page's origin as its path, with ids left out.
func (w *webPage) short(at string) string {
	u, err := url.Parse(at)
	if err != nil || u.Host != w.origin.Host {
		return at
	}
	return anyID.ReplaceAllString(u.Path, "ID")
}

// show opens a path and waits until the page shows something and asks for nothing more. It returns
// the page's text.
func (w *webPage) show(t *testing.T, path string) string {
	t.Helper()
	// What the page before asked for last ends unseen, some of it.
	err := w.browser.call(w.session, "Page.navigate", map[string]any{"url": "about:blank"}, nil)
	if err == nil {
		err = w.eval("1", new(int))
	}
	w.open = map[string]string{}
	if err == nil {
		err = w.browser.call(w.session, "Page.navigate", map[string]any{"url": w.origin.String() + path}, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return w.settled(t, path)
}

// settled waits until the page shows something and asks for nothing more, and returns its text.
func (w *webPage) settled(t *testing.T, what string) (text string) {
	t.Helper()
	quiet := 0
	eventuallyShows(t, what, func() error {
		if err := w.eval("document.body ? document.body.innerText.trim() : ''", &text); err != nil {
			return err
		}
		if text == "" || len(w.open) > 0 {
			quiet = 0
			return fmt.Errorf("it shows %q, and waits for %q", text, values(w.open))
		}
		if quiet++; quiet < 5 {
			return fmt.Errorf("it was quiet %d times", quiet)
		}
		return nil
	})
	return text
}

// refused are what the policy refused on the page that is open.
func (w *webPage) refused(t *testing.T) (list []string) {
	t.Helper()
	if err := w.eval("[...new Set(refusedByPolicy)]", &list); err != nil {
		t.Fatal(err)
	}
	return list
}

func values(m map[string]string) (list []string) {
	for _, v := range m {
		list = append(list, v)
	}
	slices.Sort(list)
	return list
}

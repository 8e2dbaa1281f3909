package httpapi

import (
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strings"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// queryWake ("?wake=true") makes any request but a WebSocket's wake a paused
// sandbox.
const queryWake = "wake"

// closePaused is the close code of a WebSocket to a paused sandbox: 4000 and the
// status that other requests get.
const closePaused websocket.StatusCode = 4409

// pausedBody is the body of the 409 that a request to a paused sandbox gets.
type pausedBody struct {
	Detail string           `json:"detail"`
	Status fsm.SandboxState `json:"status"`
}

// errPaused refuses a request that does not wake the paused sandbox it is for.
func (d *door) errPaused(row *fsm.Sandbox) *refusal {
	text := "The sandbox is paused."
	if row.State() != fsm.SandboxPaused {
		text = "The sandbox is being paused."
	}
	if d.cfg.Wake {
		text += " Resume it, send its conversation a message, or add ?wake=true."
	} else {
		text += " Resume it first."
	}
	return &refusal{status: http.StatusConflict, text: text, body: pausedBody{Detail: text, Status: fsm.SandboxPaused}}
}

// isPaused reports whether err is errPaused's.
func isPaused(err error) bool {
	var refused *refusal
	if !errors.As(err, &refused) {
		return false
	}
	_, paused := refused.body.(pausedBody)
	return paused
}

// wakes reports whether a request wakes a paused sandbox: it gives the agent
// work, or says so. A connection never does, because clients make it again by
// themselves for as long as a page is open.
func (p *passage) wakes() bool {
	if !p.d.cfg.Wake || isUpgrade(p.r) {
		return false
	}
	if p.grant.port == fsm.PortAgentServer && p.r.Method == http.MethodPost && isWork(p.to.rest) {
		return true
	}
	q, _ := url.ParseQuery(p.r.URL.RawQuery) // what can't be read asks for nothing
	asked, fault := toBool(q.Get(queryWake))
	// A link on another site's page must not wake what the cookie alone opens.
	return fault == nil && asked && (!p.grant.cookie || !isCrossSite(p.r))
}

// isWork reports whether a path of the agent server takes work for the agent:
// a message or a run (api-contract.md C.4).
func isWork(path string) bool {
	id, verb := conversationIn(path)
	return id != "" && (verb == "events" || verb == "run")
}

// conversationIn reads the conversation that a path of the agent server's API is
// for, "" for none, and what follows it.
func conversationIn(path string) (id, verb string) {
	rest, ours := strings.CutPrefix(path, "/api/conversations/")
	if !ours {
		return "", ""
	}
	id, verb, _ = strings.Cut(rest, "/")
	return id, verb
}

// talked notes that the agent server took a message for a conversation, by the id
// in the path, which moves its updated_at.
func (p *passage) talked(id string) {
	hex, is := parseUUID(id)
	if p.d.cfg.Activity == nil || p.grant.port != fsm.PortAgentServer || !is {
		return
	}
	v, err := p.d.server.cluster.View(p.visit.ctx, cluster.Stale)
	if err != nil {
		return // the time of the next message will do
	}
	if row := v.Conversation(p.grant.row.UserID, hex); row != nil && row.SandboxID == p.grant.row.ID {
		p.d.cfg.Activity.Talked(p.grant.row.ID, hex)
	}
}

// isCrossSite reports whether a browser says that another origin's page caused
// the request.
func isCrossSite(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return false
	}
	return true
}

// isPageView reports whether a person waits for a page in a browser.
func isPageView(r *http.Request) bool {
	if r.Method != http.MethodGet || isUpgrade(r) {
		return false
	}
	mode := r.Header.Get("Sec-Fetch-Mode")
	return (mode == "" || mode == "navigate") && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// pausedPage is what a browser shows in place of a paused sandbox's page. Its
// form asks for the same page again, with wake=true.
var pausedPage = template.Must(template.New("paused").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Sandbox paused</title></head>
<body><h1>The sandbox is paused</h1>
<p>What was saved in its workspace is there. It starts again when you resume it.</p>
<form method="get">{{range $name, $values := .}}{{range $values}}<input type="hidden" name="{{$name}}" value="{{.}}">{{end}}{{end}}
<input type="hidden" name="wake" value="true"><button type="submit">Resume the sandbox</button></form>
</body></html>
`))

// showPaused answers a page view with pausedPage.
func (p *passage) showPaused() {
	q, _ := url.ParseQuery(withoutQuery(p.r.URL.RawQuery, queryWake)) // what can't be read is left out
	h := p.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'self'")
	h.Set("Referrer-Policy", "no-referrer")
	p.w.WriteHeader(http.StatusConflict)
	_ = pausedPage.Execute(p.w, q) // the client may be gone
}

// leavePaused sends the page view that woke the sandbox to the same page
// without wake=true, or each reload of the page would wake the sandbox again.
func (p *passage) leavePaused() {
	u := url.URL{Path: p.r.URL.Path, RawPath: p.r.URL.RawPath, RawQuery: withoutQuery(p.r.URL.RawQuery, queryWake)}
	p.seeOther(u)
}

package proxy

import (
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strings"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/response"
)

// queryWake ("?wake=true") lets any request except an upgrade wake a paused sandbox.
const queryWake = "wake"

// closePaused is the close code of a WebSocket to a paused sandbox: 4000 plus 409, the status of
// other requests.
const closePaused websocket.StatusCode = 4409

// pausedBody is the body of the 409 for a paused sandbox.
type pausedBody struct {
	Detail string           `json:"detail"`
	Status fsm.SandboxState `json:"status"`
}

// errPaused is the error for a request to a paused sandbox that does not wake it.
func (d *Proxy) errPaused(row *fsm.Sandbox) *response.HTTPError {
	text := "The sandbox is paused."
	if row.State() != fsm.SandboxPaused {
		text = "The sandbox is being paused."
	}
	if d.cfg.Wake {
		text += " Resume it, send its conversation a message, or add ?wake=true."
	} else {
		text += " Resume it first."
	}
	return &response.HTTPError{
		Status: http.StatusConflict,
		Text:   text,
		Body:   pausedBody{Detail: text, Status: fsm.SandboxPaused},
	}
}

// isPaused reports whether err comes from errPaused.
func isPaused(err error) bool {
	var refused *response.HTTPError
	if !errors.As(err, &refused) {
		return false
	}
	_, paused := refused.Body.(pausedBody)
	return paused
}

// wakes reports whether a request wakes a paused sandbox: it gives the agent work, or asks to. An
// upgrade never does, because open pages reconnect by themselves.
func (p *request) wakes() bool {
	if !p.proxy.cfg.Wake || isUpgrade(p.r) || p.grant.share != "" {
		return false
	}
	if p.grant.port == fsm.PortAgentServer && p.r.Method == http.MethodPost && isWork(p.to.rest) {
		return true
	}
	q, _ := url.ParseQuery(p.r.URL.RawQuery) // malformed parts ask for nothing
	asked, fault := decode.ToBool(q.Get(queryWake))
	// With only the cookie, a link on another site must not wake the sandbox.
	return fault == nil && asked && (!p.grant.cookie || !isCrossSite(p.r))
}

// isWork reports whether a path of the agent server takes a message or a run
// (PROTOCOL.md, "Messages").
func isWork(path string) bool {
	id, verb := conversationIn(path)
	return id != "" && (verb == "events" || verb == "run")
}

// conversationIn returns the conversation in a path of the agent server's API, "" if there is none,
// and the rest of the path.
func conversationIn(path string) (id, verb string) {
	rest, ours := strings.CutPrefix(path, "/api/conversations/")
	if !ours {
		return "", ""
	}
	id, verb, _ = strings.Cut(rest, "/")
	return id, verb
}

// talked reports that the agent server accepted a message for the conversation with the id in the
// path. This updates the conversation's updated_at.
func (p *request) talked(id string) {
	hex, is := decode.ParseUUID(id)
	if p.proxy.cfg.Activity == nil || p.grant.port != fsm.PortAgentServer || !is {
		return
	}
	v, err := p.proxy.server.Cluster.View(p.session.ctx, cluster.Stale)
	if err != nil {
		return // the next message updates the time
	}
	if row := v.Conversation(p.grant.row.UserID, hex); row != nil && row.SandboxID == p.grant.row.ID {
		p.proxy.cfg.Activity.Talked(p.grant.row.ID, hex)
	}
}

// isCrossSite reports whether another origin's page caused the request, according to the browser.
func isCrossSite(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return false
	}
	return true
}

// isPageView reports whether a browser loads a page.
func isPageView(r *http.Request) bool {
	if r.Method != http.MethodGet || isUpgrade(r) {
		return false
	}
	mode := r.Header.Get("Sec-Fetch-Mode")
	return (mode == "" || mode == "navigate") && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// pausedPage replaces a page of a paused sandbox. Its form requests the same page with wake=true.
//
//nolint:gochecknoglobals,lll // read-only; lines of HTML
var pausedPage = template.Must(template.New("paused").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Sandbox paused</title></head>
<body><h1>The sandbox is paused</h1>
<p>What was saved in its workspace is there. It starts again when you resume it.</p>
<form method="get">{{range $name, $values := .}}{{range $values}}<input type="hidden" name="{{$name}}" value="{{.}}">{{end}}{{end}}
<input type="hidden" name="wake" value="true"><button type="submit">Resume the sandbox</button></form>
</body></html>
`))

// showPaused responds with pausedPage.
func (p *request) showPaused() {
	q, _ := url.ParseQuery(withoutQuery(p.r.URL.RawQuery, queryWake)) // malformed parts are left out
	h := p.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'self'")
	h.Set("Referrer-Policy", "no-referrer")
	p.w.WriteHeader(http.StatusConflict)
	_ = pausedPage.Execute(p.w, q) // the client may have left
}

// leavePaused redirects the request that woke the sandbox to the same page without wake=true.
// Otherwise each reload would wake the sandbox again.
func (p *request) leavePaused() {
	u := url.URL{Path: p.r.URL.Path, RawPath: p.r.URL.RawPath, RawQuery: withoutQuery(p.r.URL.RawQuery, queryWake)}
	p.seeOther(u)
}

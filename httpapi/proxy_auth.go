package httpapi

import (
	"context"
	"crypto/subtle"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// The query parameters that may bring a sandbox's key. Neither is needed: both
// are what older clients and the contract's VSCODE URL do.
const (
	// querySocketKey is for the agent server's WebSockets.
	querySocketKey = "session_api_key"
	// queryToken is VSCODE's own, and opens the other ports a browser may visit.
	queryToken = "tkn"
)

const headerSessionKey = "X-Session-API-Key"

// grant is a request's right to one port of one sandbox.
type grant struct {
	row  *fsm.Sandbox
	port string
	// credential is what granted: the owner's API key or the sandbox's own key,
	// of which a cookie is derived.
	credential fsm.Credential
	// key is the sandbox's own key when the request brought it.
	key string
	// token is set when it came as queryToken; cookie when a cookie granted.
	token, cookie bool
}

// credentials are what a request brings. They are read once and not passed on.
type credentials struct {
	header, bearer, query string
	// socket is set when the query's is the key of an event socket.
	socket  bool
	cookies []string
}

// credentialsOf reads a request's credentials for a target. A key in the query
// counts only where it has always been one, and never for a request that could
// change something.
func (d *door) credentialsOf(r *http.Request, to target) credentials {
	c := credentials{header: r.Header.Get(headerSessionKey)}
	c.bearer, _ = bearerOf(r)
	q, _ := url.ParseQuery(r.URL.RawQuery) // what can't be read is no key
	switch {
	case to.isEventSocket(r):
		c.query, c.socket = q.Get(querySocketKey), true
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		c.query = q.Get(queryToken)
	}
	if isSameOrigin(r, d.server.seenAs(r).Host) {
		for _, one := range r.CookiesNamed(doorCookie) {
			c.cookies = append(c.cookies, one.Value)
		}
	}
	return c
}

// none reports whether there is nothing to check.
func (c credentials) none() bool {
	return c.header == "" && c.bearer == "" && c.query == "" && len(c.cookies) == 0
}

// isSameOrigin reports whether a browser's request may use its cookie: it comes
// from the very origin it goes to, or it is somebody following a link. Browsers
// count all hosts of Door.Domain as one site, so SameSite alone would let one
// sandbox's pages act in another.
func isSameOrigin(r *http.Request, host string) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return true
	}
	return r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate"
}

// authorise decides whether credentials open a target. An unknown sandbox,
// another user's and a wrong key are one and the same 401, after the same work.
func (d *door) authorise(ctx context.Context, to target, c credentials) (grant, error) {
	if c.none() {
		return grant{}, errUnauthorized()
	}
	v, err := d.view(ctx)
	if err != nil {
		return grant{}, err
	}
	g, err := d.grantIn(ctx, v, to, c)
	if err == nil {
		return d.confirm(ctx, g)
	}
	if !isUnauthorized(err) || !d.server.keys.unknown.Allow() {
		return g, err
	}
	// Another node may have made the sandbox a moment ago. When that can't be
	// known right now, it stays unknown.
	if v, err = d.server.cluster.View(ctx, cluster.Linearizable); err != nil {
		return grant{}, errUnauthorized()
	}
	return d.grantIn(ctx, v, to, c)
}

// confirm asks the cluster whether a grant still holds: this node may be behind.
// While the cluster has no leader the node's own word has to do, or a change of
// leader would be a pause for everybody's sandboxes; view bounds how old it is.
func (d *door) confirm(ctx context.Context, g grant) (grant, error) {
	ctx, cancel := context.WithTimeout(ctx, confirmPatience)
	defer cancel()
	v, err := d.server.cluster.View(ctx, cluster.Linearizable)
	if err != nil {
		return g, nil
	}
	row := v.SandboxAny(g.row.ID)
	if !isOwned(row) || row.UserID != g.row.UserID || row.KeyHash != g.row.KeyHash || !v.Good(row.UserID, g.credential) {
		return grant{}, errUnauthorized()
	}
	g.row = row
	return g, nil
}

// grantIn is authorise as far as one picture knows.
func (d *door) grantIn(ctx context.Context, v *fsm.View, to target, c credentials) (grant, error) {
	row, port := to.find(v)
	g := grant{row: row, port: port}
	if row != nil {
		g.credential = fsm.Credential{SandboxID: row.ID, KeyHash: row.KeyHash}
	}
	agent := port == fsm.PortAgentServer
	switch {
	case opens(row, c.header):
		g.key = c.header
		return g, nil
	case opens(row, c.query) && c.socket == agent:
		g.key, g.token = c.query, !agent
		return g, nil
	}
	if key := ownersKey(v, row, c); key != nil {
		g.credential = credentialOf(key)
		return g, nil
	}
	if row == nil || agent {
		return grant{}, errUnauthorized()
	}
	return d.byCookie(ctx, g, c.cookies)
}

// isUnauthorized reports whether an error is the 401.
func isUnauthorized(err error) bool {
	var refused *refusal
	return errors.As(err, &refused) && refused.status == http.StatusUnauthorized
}

// byCookie opens a port that browsers visit to one that was let in before. The
// agent server has no cookie: a page could not be kept from using it.
func (d *door) byCookie(ctx context.Context, g grant, cookies []string) (grant, error) {
	if len(cookies) == 0 {
		return grant{}, errUnauthorized()
	}
	key, err := d.server.readSecret(ctx, g.row.KeyRef, "key")
	if err != nil {
		return grant{}, err
	}
	for _, value := range cookies {
		if cookieOpens(value, key, g.row.ID, g.port, time.Now()) {
			g.cookie = true
			return g, nil
		}
	}
	return grant{}, errUnauthorized()
}

// opens reports whether a key is the sandbox's own. It takes the same time
// whether or not there is a sandbox.
func opens(row *fsm.Sandbox, key string) bool {
	stored := strings.Repeat("0", 64)
	if row != nil && row.KeyHash != "" {
		stored = row.KeyHash
	}
	same := subtle.ConstantTimeCompare([]byte(hashKey(key)), []byte(stored)) == 1
	return same && key != "" && row != nil
}

// ownersKey gives the API key of the sandbox's owner that one of the credentials
// is, nil for none.
func ownersKey(v *fsm.View, row *fsm.Sandbox, c credentials) *fsm.APIKey {
	for _, value := range []string{c.bearer, c.header} {
		lookup := lookupOf(value)
		if lookup == "" {
			continue
		}
		key := v.APIKeyByLookup(lookup)
		if matches(key, value) && row != nil && key.UserID == row.UserID {
			return key
		}
	}
	return nil
}

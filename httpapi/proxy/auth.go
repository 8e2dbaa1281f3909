package proxy

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
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/response"
)

// querySocketKey is the query parameter that may hold a sandbox's key, for the agent server's
// WebSockets. Older clients use it.
const querySocketKey = "session_api_key"

// HeaderKey holds a sandbox's own key, or an API key of its owner.
const HeaderKey = "X-Session-API-Key"

// ConfirmPatience is how long a request waits for the cluster to confirm its key before it goes on
// without. It is longer than an election.
const ConfirmPatience = time.Second

// grant is a request's permission to use one port of one sandbox.
type grant struct {
	row  *fsm.Sandbox
	port string
	// credential is what the grant is based on: the owner's API key or the sandbox's own key, from
	// which cookies are derived.
	credential fsm.Credential
	// key is the sandbox's own key if the request had it.
	key string
	// cookie is set if a cookie was used, pass if a pass in the path was used.
	cookie, pass bool
	// share is the id of the share that was used, "" for none. once is the code, if it was one.
	share, once string
}

// shared returns the share that the grant is based on, nil if there is none in force.
func (g grant) shared() *fsm.Share { return g.row.ShareOf(g.share, g.port, time.Now()) }

// credentials are a request's credentials. They are never forwarded.
type credentials struct {
	header, bearer string
	// query is the key of an event socket.
	query   string
	cookies []string
	pass    string
	// code is a one-time code or the token of a share.
	code string
}

// credentialsOf reads a request's credentials for a target. A key in the query counts for event
// sockets only: browsers and proxies keep the URLs of pages.
func (d *Proxy) credentialsOf(r *http.Request, to target) credentials {
	c := credentials{header: r.Header.Get(HeaderKey), pass: to.pass}
	c.bearer, _ = apikey.Bearer(r)
	if to.isEventSocket(r) {
		q, _ := url.ParseQuery(r.URL.RawQuery) // malformed parts hold no key
		c.query = q.Get(querySocketKey)
	}
	// On the API's origin a cookie would open one sandbox to the pages of all.
	if to.host && isSameOrigin(r, d.server.Seen(r).Host) {
		for _, one := range r.CookiesNamed(cookieName(d.isSecure(r))) {
			c.cookies = append(c.cookies, one.Value)
		}
	}
	return c
}

// none reports whether there are no credentials.
func (c credentials) none() bool {
	return c.header == "" && c.bearer == "" && c.query == "" && c.pass == "" && c.code == "" && len(c.cookies) == 0
}

// isSameOrigin reports whether a browser's request may use its cookie: it comes from the same
// origin, or it is a navigation. SameSite is not enough: all hosts below Config.Domain are one
// site, so one sandbox's pages could act on another.
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

// authorise checks whether credentials grant access to a target. An unknown sandbox, another user's
// and a wrong key get the same 401 after the same work.
func (d *Proxy) authorise(ctx context.Context, to target, c credentials) (grant, error) {
	if c.none() {
		return grant{}, response.Unauthorized()
	}
	v, err := d.View(ctx)
	if err != nil {
		return grant{}, err
	}
	g, err := d.goodGrant(ctx, v, to, c)
	if err == nil {
		return d.confirm(ctx, g)
	}
	if !isUnauthorized(err) || !d.server.AskCluster(ctx) {
		return g, err
	}
	// Another node may have created the sandbox a moment ago. If the cluster can't be read now, the
	// sandbox stays unknown.
	if v, err = d.server.Cluster.View(ctx, cluster.Linearizable); err != nil {
		return grant{}, response.Unauthorized()
	}
	return d.goodGrant(ctx, v, to, c)
}

// goodGrant is grantIn for those who may act: a user who is disabled or has no valid key is locked
// out with everything that opens the user's sandboxes.
func (d *Proxy) goodGrant(ctx context.Context, v *fsm.View, to target, c credentials) (grant, error) {
	g, err := d.grantIn(ctx, v, to, c)
	if err == nil && !v.Good(g.row.UserID, g.credential, time.Now()) {
		return grant{}, response.Unauthorized()
	}
	return g, err
}

// confirm checks with the cluster that a grant still holds, because this node may be behind.
// Without a leader the node's own view decides, so that an election interrupts no sandbox. View
// limits its age.
func (d *Proxy) confirm(ctx context.Context, g grant) (grant, error) {
	ctx, cancel := context.WithTimeout(ctx, ConfirmPatience)
	defer cancel()
	v, err := d.server.Cluster.View(ctx, cluster.Linearizable)
	if err != nil {
		return g, nil
	}
	row := v.SandboxAny(g.row.ID)
	if !IsOwned(row) || row.UserID != g.row.UserID || row.KeyHash != g.row.KeyHash ||
		!v.Good(row.UserID, g.credential, time.Now()) {
		return grant{}, response.Unauthorized()
	}
	if g.row = row; g.share != "" && g.shared() == nil {
		return grant{}, response.Unauthorized()
	}
	return g, nil
}

// grantIn checks the credentials against one view.
func (d *Proxy) grantIn(ctx context.Context, v *fsm.View, to target, c credentials) (grant, error) {
	row, port := to.find(v)
	g := grant{row: row, port: port}
	if row != nil {
		g.credential = fsm.Credential{SandboxID: row.ID, KeyHash: row.KeyHash}
	}
	agent := port == fsm.PortAgentServer
	switch {
	case Opens(row, c.header):
		g.key = c.header
		return g, nil
	case agent && Opens(row, c.query):
		g.key = c.query
		return g, nil
	}
	if key := ownersKey(v, row, c); key != nil {
		g.credential = apikey.CredentialOf(key)
		return g, nil
	}
	if row == nil || agent {
		return grant{}, response.Unauthorized()
	}
	return d.byPass(ctx, g, c)
}

// isUnauthorized reports whether an error is the 401.
func isUnauthorized(err error) bool {
	var refused *response.HTTPError
	return errors.As(err, &refused) && refused.Status == http.StatusUnauthorized
}

// byPass grants access by a cookie or by the pass in a path. The agent server accepts neither,
// because any page in the browser could then use it.
func (d *Proxy) byPass(ctx context.Context, g grant, c credentials) (grant, error) {
	if len(c.cookies) == 0 && c.pass == "" && c.code == "" {
		return grant{}, response.Unauthorized()
	}
	key, err := d.server.SandboxKey(ctx, g.row.KeyRef)
	if err != nil {
		return grant{}, err
	}
	now := time.Now()
	if share := shareOpens(c.code, key, g.row, g.port, now); share != nil {
		g.share = share.ID
		return g, nil
	}
	if _, opens := passOpens(passCode, c.code, key, g.row.ID, g.port, now); opens {
		g.once = c.code
		return g, nil
	}
	opens := func(use, value string) bool {
		share, ok := passOpens(use, value, key, g.row.ID, g.port, now)
		g.share = share
		return ok && (share == "" || g.shared() != nil)
	}
	if g.pass = opens(passPath, c.pass); g.pass {
		return g, nil
	}
	for _, value := range c.cookies {
		if g.cookie = opens(passCookie, value); g.cookie {
			return g, nil
		}
	}
	return grant{}, response.Unauthorized()
}

// Opens reports whether key is the sandbox's own. It takes the same time for a nil sandbox.
func Opens(row *fsm.Sandbox, key string) bool {
	stored := strings.Repeat("0", 64)
	if row != nil && row.KeyHash != "" {
		stored = row.KeyHash
	}
	same := subtle.ConstantTimeCompare([]byte(apikey.Hash(key)), []byte(stored)) == 1
	return same && key != "" && row != nil
}

// ownersKey returns the API key of the sandbox's owner among the credentials, nil if there is none.
func ownersKey(v *fsm.View, row *fsm.Sandbox, c credentials) *fsm.APIKey {
	for _, value := range []string{c.bearer, c.header} {
		lookup := apikey.LookupOf(value)
		if lookup == "" {
			continue
		}
		key := v.APIKeyByLookup(lookup)
		if apikey.Matches(key, value) && row != nil && key.UserID == row.UserID {
			return key
		}
	}
	return nil
}

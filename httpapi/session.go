package httpapi

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/time/rate"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/places"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/session"
	"bivouac.dev/bivouac/httpapi/wire"
)

// The paths of signing in. pathAuthenticate and pathLogout are upstream's.
const (
	pathLogin        = "/api/login"
	pathAuthenticate = "/api/authenticate"
	pathLogout       = "/api/logout"
)

// Limits on what one client address (with IPv6, a /64 network) signs in and looks at. Each costs the
// cluster a read, so all addresses together have allSignIns times as many.
const (
	signInPause = time.Second
	signInBurst = 20
	allSignIns  = 100
)

// endedSessionPause is how long a node does not ask the cluster again about a session that it found
// ended: a page that stays open goes on calling.
const endedSessionPause = 10 * time.Second

// sessionRoutes sign browsers in and out.
func sessionRoutes() []route {
	const get, post = http.MethodGet, http.MethodPost
	return []route{
		{name: "session.page", method: get, path: session.Path, access: open, serve: (*Server).serveLogin},
		{name: "session.create", method: post, path: pathLogin, access: signIn, handle: (*Server).handleSessionCreate},
		{name: "session.look", method: post, path: pathLogin + "/code", access: signIn, handle: (*Server).handleSessionLook},
		{name: "session.offer", method: post, path: pathLogin + "/codes", access: user,
			handle: (*Server).handleSessionOffer},
		{name: "session.end", method: post, path: pathLogout, access: signIn, handle: (*Server).handleSessionEnd},
		{name: "session.authenticate", method: post, path: pathAuthenticate, access: user,
			handle: (*Server).handleAuthenticate},
		{name: "session.analytics", method: post, path: "/api/analytics/events", access: signIn,
			handle: (*Server).handleAnalytics},
	}
}

// serveLogin handles GET /login.
func (s *Server) serveLogin(w http.ResponseWriter, r *http.Request) { s.login.ServeHTTP(w, r) }

// placeOf returns where the client of a request reaches this node.
func (s *Server) placeOf(r *http.Request) session.Place {
	seen := s.seenAs(r)
	place := session.Place{Origin: seen.Scheme + "://" + seen.Host, Secure: seen.Scheme == "https"}
	peer, _, err := net.SplitHostPort(r.RemoteAddr)
	if err == nil && r.TLS == nil && !place.Secure && !isForwarded(r) {
		addr, err := netip.ParseAddr(peer)
		place.Loopback = err == nil && addr.Unmap().IsLoopback() && isLoopbackName(hostName(r.Host))
	}
	return place
}

// byCookie reports whether a request presents a session and no key.
func byCookie(r *http.Request) bool {
	if !session.Carries(r) {
		return false
	}
	value, bearer := presented(r)
	return value == "" && !bearer
}

// signsIn refuses a request that is to sign a browser in and may not: of another origin, at a place
// without a cookie, or one too many of its address.
func (c *call) signsIn() (session.Place, error) {
	place := c.server.placeOf(c.Request)
	if err := place.JudgeChange(c.Request); err != nil {
		return place, err
	}
	if err := place.Refusal(); err != nil {
		return place, err
	}
	from := places.Origin(request.InfoOf(c.Request.Context()).Address)
	if !c.server.signIns.Allow(from) || !c.server.allSignIns.Allow() {
		return place, response.TooManyRequests()
	}
	return place, nil
}

// handleSessionCreate handles POST /api/login: {"key"} or {"code"} opens a session, whose token
// goes to the browser's cookie alone. Each request makes another token, so that none is taken from
// the browser.
func (s *Server) handleSessionCreate(c *call) (response.Response, error) {
	o := c.Object().Masked()
	o.Strict("key", "code", "return_to")
	key, code := o.Text("key", fsm.MaxName), o.Text("code", fsm.MaxName)
	to := o.Text("return_to", fsm.MaxLine)
	if (key == nil) == (code == nil) {
		o.Rule("key", "send an API key in key, or a code in code")
	}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	place, err := c.signsIn()
	if err != nil {
		return response.Response{}, err
	}
	token := session.NewToken()
	c.Key = "" // a repetition could not have the token
	var res fsm.Result
	if key != nil {
		res, err = c.signInByKey(*key, apikey.Hash(token))
	} else if _, err = c.keyOfCode(*code); err == nil {
		res, err = c.Propose(&fsm.SessionRedeemBody{Code: apikey.Hash(*code), Hash: apikey.Hash(token)})
	}
	switch {
	case fsm.CodeOf(err) == fsm.CodeNotFound:
		return response.Response{}, errCode()
	case err != nil:
		return response.Response{}, err
	case res.User == nil:
		return response.Response{}, request.ErrEmptyResult(fsm.SessionCreate)
	}
	c.signedIn(res.User.ID)
	http.SetCookie(c.Writer, place.New(token))
	path := session.Home
	if to != nil {
		path = session.ReturnTo(*to)
	}
	return response.OK(wire.SignedIn{User: res.User.ID, Location: path})
}

// signInByKey opens a session of the user of an API key.
func (c *call) signInByKey(value, hash string) (fsm.Result, error) {
	key, err := c.server.keys.find(c.Request.Context(), value)
	switch {
	case err != nil && response.FailureOf(err, response.FormatDetail, "").Status == http.StatusUnauthorized:
		return fsm.Result{}, response.Error(http.StatusUnauthorized, "This is no API key, or none that is good now.")
	case err != nil:
		return fsm.Result{}, err
	}
	c.Caller = request.Caller{User: key.UserID, Credential: apikey.CredentialOf(key)}
	return c.Propose(&fsm.SessionCreateBody{Hash: hash, KeyID: key.ID})
}

// signedIn notes who sends the request.
func (c *call) signedIn(user string) { request.InfoOf(c.Request.Context()).User = user }

// errCode refuses a code. One that was used looks like one that never was.
func errCode() error {
	return response.Error(http.StatusUnauthorized, "This link was used, has expired or is wrong: ask for another.")
}

// handleSessionLook handles POST /api/login/code: whose session a code opens. It leaves the code.
func (s *Server) handleSessionLook(c *call) (response.Response, error) {
	o := c.Object().Masked()
	o.Strict("code")
	code := o.MustText("code", fsm.MaxName)
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if _, err := c.signsIn(); err != nil {
		return response.Response{}, err
	}
	key, err := c.keyOfCode(code)
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(wire.CodeOwner{User: key.UserID, Key: key.Name})
}

// keyOfCode returns the key behind a code that is good. Who has none writes nothing to the log.
func (c *call) keyOfCode(code string) (*fsm.APIKey, error) {
	v, err := c.ViewWith(cluster.Linearizable)
	if err != nil {
		return nil, err
	}
	key := v.GoodSignInCode(v.SignInCode(apikey.Hash(code)), c.Now)
	if key == nil {
		return nil, errCode()
	}
	return key, nil
}

// handleSessionOffer handles POST /api/login/codes: a code that opens one session of the caller.
// The code is stored nowhere.
func (s *Server) handleSessionOffer(c *call) (response.Response, error) {
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	v, err := c.ViewWith(cluster.Linearizable)
	if err != nil {
		return response.Response{}, err
	}
	code := session.NewCode()
	c.Key = "" // a repetition could not have the code
	if _, err := c.Propose(&fsm.SessionOfferBody{Hash: apikey.Hash(code), KeyID: int(c.KeyID(v))}); err != nil {
		return response.Response{}, err
	}
	return response.OK(wire.SignInCode{Code: code, ExpiresAt: wire.At(c.Now.Add(fsm.SignInCodeAge))})
}

// handleSessionEnd handles POST /api/logout: the session of the cookie ends, on every node.
func (s *Server) handleSessionEnd(c *call) (response.Response, error) {
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	place := s.placeOf(c.Request)
	if err := place.Judge(c.Request); err != nil {
		return response.Response{}, err
	}
	if place.Token(c.Request) != "" {
		who, err := s.keys.bySession(c.Request.Context(), c.Request)
		if err == nil {
			c.Caller, c.Key = who, ""
			c.signedIn(who.User)
			_, err = c.Propose(&fsm.SessionEndBody{Hash: who.Credential.KeyHash})
		}
		if err != nil && response.FailureOf(err, response.FormatDetail, "").Status != http.StatusUnauthorized {
			return response.Response{}, err // it has not ended by itself
		}
	}
	if place.Refusal() == nil {
		http.SetCookie(c.Writer, place.New(""))
	}
	return response.OK(wire.Success{Success: true})
}

// handleAuthenticate handles POST /api/authenticate: 200 for a session or a key that is good.
func (s *Server) handleAuthenticate(c *call) (response.Response, error) {
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if err := c.Confirm(); err != nil {
		return response.Response{}, err
	}
	return response.OK(wire.Authenticated{User: c.Caller.User})
}

// handleAnalytics handles POST /api/analytics/events: what the web application says of its use goes
// nowhere.
func (s *Server) handleAnalytics(*call) (response.Response, error) {
	return response.Response{Status: http.StatusNoContent, Stream: func(w http.ResponseWriter) error {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}}, nil
}

// headerAct of a request says how many milliseconds ago its person last pressed something; of an
// answer, that such an act is required.
const headerAct = "X-Bivouac-Act"

// meantResume refuses the resume of a page on which nobody did anything since the sandbox was paused:
// a page asks by itself, so an open tab would undo each pause. What has a key always may.
func (c *call) meantResume(id string) error {
	if !byCookie(c.Request) {
		return nil
	}
	v, err := c.ViewWith(cluster.Linearizable)
	if err != nil {
		return err
	}
	sb := v.Sandbox(c.Caller.User, id)
	if sb == nil || sb.Desired != fsm.DesiredPaused {
		return nil
	}
	ago, err := strconv.ParseUint(c.Request.Header.Get(headerAct), 10, 40)
	if err == nil && c.Now.Add(-time.Duration(ago)*time.Millisecond).After(sb.DesiredAt) {
		return nil
	}
	c.Writer.Header().Set(headerAct, "required")
	return response.Error(http.StatusConflict, "The sandbox is paused, and nobody has used this page since: "+
		"it is resumed when somebody does.")
}

// bySession authenticates a request by its cookie. A node that is behind asks the cluster about a
// session that it does not know, within the limits on unknown keys and once in endedSessionPause. A
// session never acts as an operator.
func (k *authenticator) bySession(ctx context.Context, r *http.Request) (request.Caller, error) {
	place := k.place(r)
	token := place.Token(r)
	if token == "" {
		return request.Caller{}, response.Unauthorized()
	}
	if err := place.Judge(r); err != nil {
		request.InfoOf(ctx).Refused = refusedOrigin
		return request.Caller{}, err
	}
	hash, now := apikey.Hash(token), time.Now()
	views := []func(context.Context) (*fsm.View, error){k.viewLocal, k.viewStale, k.viewElsewhere}
	if k.ended.Has(hash, now) {
		views = views[:2]
	}
	for _, view := range views {
		v, err := view(ctx)
		if err != nil {
			return request.Caller{}, err
		}
		row := v.Session(hash)
		key := v.GoodSession(row, now)
		if key == nil {
			continue
		}
		k.uses.note(key, now)
		k.uses.noteSession(row, now)
		by := apikey.CredentialOf(key)
		by.KeyHash = row.Hash
		return request.Caller{User: row.UserID, Credential: by}, nil
	}
	if len(views) == 3 {
		k.ended.Add(hash, now)
	}
	request.InfoOf(ctx).Refused = refusedSession
	return request.Caller{}, response.Unauthorized()
}

// newSignIns bounds the sign-ins of each address.
func newSignIns() *limits.PerKey[netip.Prefix] {
	return limits.NewPerKey[netip.Prefix](rate.Every(signInPause), signInBurst)
}

package httpapi

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
	"unicode"

	"golang.org/x/time/rate"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/places"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/session"
	"bivouac.dev/bivouac/httpapi/wire"
)

// pathDevice begins the paths of the device flow (RFC 8628), which are upstream's.
const pathDevice = "/oauth/device"

// Bounds of the device flow. Anyone may ask, and each request is an entry of the log.
const (
	devicePause  = 10 * time.Second // of one address, after deviceBurst
	deviceBurst  = 5
	networkBurst = 25 // of one network, which may have 2^16 addresses (IPv6), and as many in networkPause
	networkPause = time.Minute
	allDevices   = 5 // a second, of all addresses
	// devicePoll is how often a device may ask for its key.
	devicePoll = time.Second
	// deviceInterval is how often it is told to.
	deviceInterval = 2
	// deviceTries is how many wrong codes a user may enter within fsm.DeviceAge.
	deviceTries = 5
	// strangeBurst is how many codes that a node does not know one address may have it ask the cluster
	// for, one more each second; allStrange is how many a second all addresses.
	strangeBurst = 10
	allStrange   = 20
)

// deviceLimits bound what the device flow costs, and how often a code may be guessed.
type deviceLimits struct {
	asks, sites, strange *limits.PerKey[netip.Prefix]
	all, allStrange      *rate.Limiter
	polls                *limits.PerKey[string]
	wrong                *limits.PerKey[string]
	barred               *limits.Recent[string]
}

func newDeviceLimits() deviceLimits {
	return deviceLimits{
		asks:       limits.NewPerKey[netip.Prefix](rate.Every(devicePause), deviceBurst),
		sites:      limits.NewPerKey[netip.Prefix](rate.Every(networkPause/networkBurst), networkBurst),
		all:        rate.NewLimiter(allDevices, allDevices*deviceBurst),
		strange:    limits.NewPerKey[netip.Prefix](rate.Every(time.Second), strangeBurst),
		allStrange: rate.NewLimiter(allStrange, allStrange*deviceBurst),
		polls:      limits.NewPerKey[string](rate.Every(devicePoll), 3),
		wrong:      limits.NewPerKey[string](rate.Every(fsm.DeviceAge/deviceTries), deviceTries-1),
		barred:     limits.NewRecent[string](fsm.DeviceAge),
	}
}

// deviceRoutes are those by which a terminal gets a key of its own from a user with a browser.
func deviceRoutes() []route {
	const post = http.MethodPost
	return []route{
		{name: "device.authorize", method: post, path: pathDevice + "/authorize", access: signIn,
			handle: (*Server).handleDeviceAuthorize},
		{name: "device.token", method: post, path: pathDevice + "/token", access: signIn,
			handle: (*Server).handleDeviceToken},
		{name: "device.look", method: post, path: pathDevice + "/look", access: user, handle: (*Server).handleDeviceLook},
		{name: "device.allow", method: post, path: pathDevice + "/verify-authenticated", access: user,
			handle: (*Server).handleDeviceAllow},
	}
}

// form reads a body that is a form, JSON, or empty.
func (c *call) form() decode.Object {
	kind, _, _ := mime.ParseMediaType(c.Request.Header.Get("Content-Type")) // what is no media type is no form
	switch {
	case c.Problems.Reads != nil:
	case len(bytes.TrimSpace(c.Body)) == 0:
		return decode.Object{Problems: c.Problems, Loc: []string{"body"}, Members: map[string]any{}}
	case kind == "application/x-www-form-urlencoded":
		sent, _ := url.ParseQuery(string(c.Body)) // malformed parts are ignored
		o := decode.Object{Problems: c.Problems, Loc: []string{"body"}, Members: map[string]any{}}
		for name := range sent {
			o.Members[name] = sent.Get(name)
		}
		return o.Masked()
	}
	return c.Object().Masked()
}

// handleDeviceAuthorize handles POST /oauth/device/authorize: the codes of a device that asks for a key.
// It is shown to its user by its name and by the address that it asks from.
func (s *Server) handleDeviceAuthorize(c *call) (response.Response, error) {
	name := decode.OrZero(c.form().Text("name", fsm.MaxLine))
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if s.cfg.Page == nil || s.cfg.Page.IsMissing() {
		return response.Response{}, response.Error(http.StatusNotFound,
			"This node has no web page on which a device could be allowed (ui {}): use an API key.")
	}
	info := request.InfoOf(c.Request.Context())
	network := places.Network(info.Address)
	if !s.devices.asks.Allow(places.Origin(info.Address)) || !s.devices.sites.Allow(network) || !s.devices.all.Allow() {
		return response.Response{}, response.TooManyRequests()
	}
	if name == "" {
		name = c.Request.UserAgent()
	}
	for range 3 { // codes for people are short, so that one may be taken
		device, people := session.NewToken(), session.NewUserCode()
		_, err := c.Propose(&fsm.DeviceAskBody{
			Hash: apikey.Hash(device), UserCode: apikey.Hash(people), Name: shownName(name), Address: info.Address,
			Network: network.String(),
		})
		switch {
		case fsm.CodeOf(err) == fsm.CodeConflict:
			continue
		case err != nil:
			return response.Response{}, err
		}
		at, shown := s.placeOf(c.Request).Origin+pathDevice+"/verify", session.ShowUserCode(people)
		return response.OK(wire.DeviceCodes{
			DeviceCode: device, UserCode: shown, VerificationURI: at,
			VerificationURIComplete: at + "?user_code=" + shown, ExpiresIn: int(fsm.DeviceAge.Seconds()),
			Interval: deviceInterval,
		})
	}
	return response.Response{}, response.TooManyRequests()
}

// shownName is a device's name as it may stand in a dialog: one short line.
func shownName(name string) string {
	line := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, name)
	return decode.Truncate(strings.TrimSpace(line), 80)
}

// The errors of RFC 8628 for a device that asks for its key.
const (
	devicePending = "authorization_pending"
	deviceSlower  = "slow_down"
	deviceExpired = "expired_token"
	deviceDenied  = "access_denied"
)

func deviceRefused(why string) (response.Response, error) {
	return response.Response{Status: http.StatusBadRequest, Body: wire.DeviceError{Error: why}}, nil
}

// handleDeviceToken handles POST /oauth/device/token: the key of a device, once its user has allowed it.
func (s *Server) handleDeviceToken(c *call) (response.Response, error) {
	code := c.form().MustText("device_code", fsm.MaxName)
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	hash := apikey.Hash(code)
	if !s.devices.polls.Allow(hash) {
		return deviceRefused(deviceSlower)
	}
	v, err := c.ViewWith(cluster.Stale)
	if err == nil && v.Device(hash) == nil { // this node may be behind
		from := places.Origin(request.InfoOf(c.Request.Context()).Address)
		if !s.devices.strange.Allow(from) || !s.devices.allStrange.Allow() {
			return deviceRefused(deviceSlower) // "expired" would end a login that goes on
		}
		v, err = c.ViewWith(cluster.Linearizable)
	}
	if err != nil {
		return response.Response{}, err
	}
	switch d := v.Device(hash); {
	case d == nil || !c.Now.Before(d.Until):
		return deviceRefused(deviceExpired)
	case d.UserID == "":
		return deviceRefused(devicePending)
	}
	key, err := apikey.New(rand.Reader)
	if err != nil {
		return response.Response{}, err
	}
	c.Key = "" // a repetition could not have the key; it gets another value
	res, err := c.Propose(&fsm.DeviceRedeemBody{Hash: hash, Lookup: key.Lookup, KeyHash: key.Hash})
	switch {
	case fsm.CodeOf(err) == fsm.CodeNotFound:
		return deviceRefused(deviceExpired)
	case fsm.CodeOf(err) == fsm.CodeUnauthorized, fsm.CodeOf(err) == fsm.CodeConflict:
		return deviceRefused(deviceDenied)
	case err != nil:
		return response.Response{}, err
	case res.APIKey == nil:
		return response.Response{}, request.ErrEmptyResult(fsm.DeviceRedeem)
	}
	c.signedIn(res.APIKey.UserID)
	body := wire.DeviceToken{AccessToken: key.Value, TokenType: "Bearer"}
	if end := res.APIKey.ExpiresAt; end != nil {
		body.ExpiresIn = new(int(end.Sub(c.Now).Seconds()))
	}
	return response.OK(body)
}

// waitingDevice returns the device that waits with the user's code in the body. Who enters wrong ones
// has to wait.
func (c *call) waitingDevice() (*fsm.View, *fsm.Device, error) {
	code := c.form().MustText("user_code", fsm.MaxName)
	if err := c.Check(); err != nil {
		return nil, nil, err
	}
	bars := c.server.devices
	if bars.barred.Has(c.Caller.User, c.Now) {
		return nil, nil, &response.HTTPError{
			Status: http.StatusTooManyRequests, RetryAfter: fsm.DeviceAge,
			Text: fmt.Sprintf("Too many wrong codes: wait %s, and let the device ask again.", fsm.DeviceAge),
		}
	}
	v, err := c.ViewWith(cluster.Linearizable)
	if err != nil {
		return nil, nil, err
	}
	d := v.DeviceByUserCode(apikey.Hash(session.ReadUserCode(code)), c.Now)
	if d == nil {
		if !bars.wrong.Allow(c.Caller.User) {
			bars.barred.Add(c.Caller.User, c.Now)
		}
		return nil, nil, errNoDevice()
	}
	return v, d, nil
}

func errNoDevice() error {
	return response.Error(http.StatusNotFound, "No device waits with this code: it was used, has expired or is wrong.")
}

// handleDeviceLook handles POST /oauth/device/look: which device a code is of. It changes nothing.
func (s *Server) handleDeviceLook(c *call) (response.Response, error) {
	_, d, err := c.waitingDevice()
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(wire.Device{Name: d.Name, Address: d.Address, User: c.Caller.User})
}

// handleDeviceAllow handles POST /oauth/device/verify-authenticated: the caller allows the device that
// waits with a code.
func (s *Server) handleDeviceAllow(c *call) (response.Response, error) {
	v, d, err := c.waitingDevice()
	if err != nil {
		return response.Response{}, err
	}
	c.Key = "" // a code is good once
	_, err = c.Propose(&fsm.DeviceAllowBody{UserCode: d.UserCode, KeyID: int(c.KeyID(v))})
	if fsm.CodeOf(err) == fsm.CodeNotFound {
		err = errNoDevice()
	}
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(wire.Success{Success: true})
}

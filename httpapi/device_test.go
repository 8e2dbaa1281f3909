package httpapi

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/session"
	"bivouac.dev/bivouac/httpapi/wire"
)

// The codes of the device that waits to be allowed.
const (
	waitingUserCode   = "BCDFGHJK"
	waitingDeviceCode = "x"
)

// allows has alice allow it.
func (h *harness) allows() {
	h.t.Helper()
	key := h.cluster.store.View().APIKeyByLookup(apikey.LookupOf(h.alice))
	h.apply("alice", &fsm.DeviceAllowBody{UserCode: apikey.Hash(waitingUserCode), KeyID: key.ID})
}

// waits has a device wait to be allowed.
func (h *harness) waits() {
	h.t.Helper()
	h.raised().apply("", &fsm.DeviceAskBody{
		Hash: apikey.Hash(waitingDeviceCode), UserCode: apikey.Hash(waitingUserCode), Name: "desk", Address: "192.0.2.1",
	})
}

// asForm posts a form, as the web page and terminals do.
func (h *harness) asForm(key, path string, values ...string) reply {
	sent := url.Values{}
	for i := 0; i < len(values); i += 2 {
		sent.Set(values[i], values[i+1])
	}
	return h.do(key, "POST", pathDevice+path, sent.Encode(), "Content-Type", "application/x-www-form-urlencoded")
}

// TestDevice_GetsAKeyOfItsOwn: a terminal asks, a user sees which one it is and allows it, and it has a key
// of its own, once. Looking at it writes nothing to the log.
func TestDevice_GetsAKeyOfItsOwn(t *testing.T) {
	h := newHarness(t, withPage(t)).raised()
	var codes wire.DeviceCodes
	h.do("", "POST", pathDevice+"/authorize", `{"name":"bivouac on desk\u001b[31m"}`).want(t, 200).json(t, &codes)
	if !regexp.MustCompile(`^[BCDFGHJKLMNPQRSTVWXZ]{4}-[BCDFGHJKLMNPQRSTVWXZ]{4}$`).MatchString(codes.UserCode) ||
		!strings.HasSuffix(codes.VerificationURIComplete, "/oauth/device/verify?user_code="+codes.UserCode) ||
		codes.ExpiresIn != 600 {
		t.Fatalf("%+v", codes)
	}
	poll := func(status int, want string) (token wire.DeviceToken) {
		t.Helper()
		h.server.devices.polls = newDeviceLimits().polls // a device that waits as long as it is told to
		got := h.asForm("", "/token", "grant_type", "urn:ietf:params:oauth:grant-type:device_code",
			"device_code", codes.DeviceCode).want(t, status)
		if status != 200 {
			got.is(t, `{"error":"`+want+`"}`)
			return token
		}
		got.json(t, &token)
		return token
	}
	poll(400, devicePending)
	before := h.cluster.store.View().Index()
	h.do(h.alice, "POST", pathDevice+"/look", `{"user_code":"`+strings.ToLower(codes.UserCode)+`"}`).want(t, 200).is(t,
		`{"name":"bivouac on desk[31m","address":"192.0.2.1","user":"alice"}`)
	h.asForm(h.alice, "/look", "user_code", "BBBB-BBBB").want(t, 404)
	if after := h.cluster.store.View().Index(); after != before {
		t.Errorf("looking wrote %d entries", after-before)
	}
	h.asForm("", "/verify-authenticated", "user_code", codes.UserCode).want(t, 401)
	h.asForm(h.alice, "/verify-authenticated", "user_code", codes.UserCode).want(t, 200)
	h.asForm(h.bob, "/verify-authenticated", "user_code", codes.UserCode).want(t, 404)
	token := poll(200, "")
	if token.TokenType != "Bearer" || token.ExpiresIn != nil {
		t.Errorf("%+v", token)
	}
	var current struct {
		UserID string `json:"user_id"`
		Name   string
	}
	lost := token
	token = poll(200, "") // the first answer was lost
	h.do(lost.AccessToken, "GET", pathKeys+"/current", "").want(t, 401)
	h.do(token.AccessToken, "GET", pathKeys+"/current", "").want(t, 200).json(t, &current)
	if current.UserID != "alice" || current.Name != "bivouac on desk[31m" {
		t.Errorf("the key is %+v", current)
	}
	h.apply("", &fsm.APIKeyUsedBody{Uses: []fsm.APIKeyUse{{
		ID: h.cluster.store.View().APIKeyByLookup(apikey.LookupOf(token.AccessToken)).ID, At: time.Now(),
	}}})
	poll(400, deviceExpired)
	h.asForm("", "/token", "device_code", session.NewToken()).want(t, 400).is(t, `{"error":"expired_token"}`)
	newHarness(t).raised().do("", "POST", pathDevice+"/authorize", "").want(t, 404)
}

// TestDevice_IsBounded: who enters wrong codes waits, who polls too often is told so, and one address asks
// a few times only. A device whose user's key was revoked is refused.
func TestDevice_IsBounded(t *testing.T) {
	h := newHarness(t, withPage(t)).raised()
	ask := func(want int) (codes wire.DeviceCodes) {
		t.Helper()
		if got := h.do("", "POST", pathDevice+"/authorize", "").want(t, want); want == 200 {
			got.json(t, &codes)
		}
		return codes
	}
	codes := ask(200)
	for range deviceTries {
		h.asForm(h.bob, "/verify-authenticated", "user_code", "BBBB-BBBB").want(t, 404)
	}
	h.asForm(h.bob, "/verify-authenticated", "user_code", codes.UserCode).want(t, http.StatusTooManyRequests)
	h.asForm(h.bob, "/look", "user_code", codes.UserCode).want(t, http.StatusTooManyRequests)
	for range 3 {
		h.asForm("", "/token", "device_code", codes.DeviceCode).want(t, 400).is(t, `{"error":"authorization_pending"}`)
	}
	h.asForm("", "/token", "device_code", codes.DeviceCode).want(t, 400).is(t, `{"error":"slow_down"}`)
	other := ask(200)
	h.asForm(h.alice, "/verify-authenticated", "user_code", other.UserCode).want(t, 200)
	v := h.cluster.store.View()
	h.apply("", &fsm.APIKeyRevokeBody{ID: v.APIKeyByLookup(apikey.LookupOf(h.alice)).ID})
	h.asForm("", "/token", "device_code", other.DeviceCode).want(t, 400).is(t, `{"error":"expired_token"}`)
	for range deviceBurst - 2 {
		ask(200)
	}
	ask(http.StatusTooManyRequests)
}

// TestDevice_OfASession: what a page allows with its session ends with the session's week.
func TestDevice_OfASession(t *testing.T) {
	b := newBrowser(t, withPage(t))
	b.signIn(`{"key":"` + b.alice + `"}`)
	device, people := session.NewToken(), session.NewUserCode()
	b.apply("", &fsm.DeviceAskBody{Hash: apikey.Hash(device), UserCode: apikey.Hash(people), Name: "desk"})
	const form = "application/x-www-form-urlencoded"
	b.ask("POST", pathDevice+"/verify-authenticated", "user_code="+people, "Content-Type", form,
		"Sec-Fetch-Site", "cross-site").want(t, http.StatusForbidden)
	b.ask("POST", pathDevice+"/verify-authenticated", "user_code="+people, "Content-Type", form).want(t, 200)
	var token wire.DeviceToken
	b.asForm("", "/token", "device_code", device).want(t, 200).json(t, &token)
	if week := int((7 * 24 * time.Hour).Seconds()); token.ExpiresIn == nil || *token.ExpiresIn > week ||
		*token.ExpiresIn < week-60 {
		t.Errorf("the key ends in %v", token.ExpiresIn)
	}
}

// TestDevice_CodesNobodyKnows: an address that tries codes is told to slow down, and takes from no sign-in.
func TestDevice_CodesNobodyKnows(t *testing.T) {
	t.Parallel()
	h := newHarness(t, withPage(t)).raised()
	before := h.server.allSignIns.Tokens()
	h.server.devices.strange = limits.NewPerKey[netip.Prefix](0, 2)
	for _, want := range []string{deviceExpired, deviceExpired, deviceSlower, deviceSlower} {
		h.asForm("", "/token", "device_code", session.NewToken()).want(t, 400).is(t, `{"error":"`+want+`"}`)
	}
	if after := h.server.allSignIns.Tokens(); after < before {
		t.Errorf("codes that nobody knows left %v sign-ins of %v", after, before)
	}
}

// TestDevice_OfOneSite: all addresses of a site together ask a few times.
func TestDevice_OfOneSite(t *testing.T) {
	t.Parallel()
	h := newHarness(t, withPage(t), func(c *Config) {
		c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}
	}).raised()
	h.server.devices.sites = limits.NewPerKey[netip.Prefix](0, 2)
	for i, want := range []int{200, 200, 429} {
		h.do("", "POST", pathDevice+"/authorize", "", "X-Forwarded-For", fmt.Sprintf("2001:db8:1:%d::1", i)).want(t, want)
	}
	h.do("", "POST", pathDevice+"/authorize", "", "X-Forwarded-For", "2001:db8:2::1").want(t, 200)
}

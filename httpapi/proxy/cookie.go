package proxy

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
)

// CookieName is the cookie that authenticates a browser on the host of one port of one sandbox.
// A sandbox can neither see nor set it. Under HTTPS its name begins with hostPrefix.
const CookieName = "bivouac_proxy"

// hostPrefix makes a browser refuse a cookie that another host has set for this one. It requires
// Secure, Path=/ and no Domain.
const hostPrefix = "__Host-"

// What a pass is for. Each use has a key of its own, so that a pass for one is none for the other.
const (
	passCookie = "bivouac proxy cookie 1"
	passPath   = "bivouac proxy path 1"
	passCode   = "bivouac proxy code 1"
	passShare  = "bivouac proxy share 1"
)

// newPass returns "<expiry>.<mac>", with a share "<expiry>.<mac>.<share>", "" on failure. The MAC's
// key derives from the sandbox's own key, so every node can verify it and a new sandbox key
// invalidates it.
func newPass(use, sandboxKey, id, port, share string, expires time.Time) string {
	until := strconv.FormatInt(expires.Unix(), 10)
	mac := passMAC(use, sandboxKey, id, port, share, until)
	if mac == nil {
		return ""
	}
	pass := until + "." + base64.RawURLEncoding.EncodeToString(mac)
	if share != "" {
		pass += "." + share
	}
	return pass
}

// passOpens reports whether a pass is authentic and not expired, and of which share it is.
func passOpens(use, value, sandboxKey, id, port string, now time.Time) (share string, opens bool) {
	until, rest, _ := strings.Cut(value, ".")
	text, share, _ := strings.Cut(rest, ".")
	expires, err := strconv.ParseInt(until, 10, 64)
	if err != nil || sandboxKey == "" || now.Unix() >= expires {
		return "", false
	}
	got, err := base64.RawURLEncoding.DecodeString(text)
	want := passMAC(use, sandboxKey, id, port, share, until)
	return share, err == nil && want != nil && hmac.Equal(got, want)
}

// CodeAge is how long a one-time code in a URL is valid at least, and twice that at most. Clients
// show URLs for a while before a person opens one.
const CodeAge = 5 * time.Minute

// NewCode returns a one-time code for one port of a sandbox, "" on failure. It is for a URL's
// fragment and opens the port's page once, on any node. Until it is used it stays the same for
// CodeAge: a front end that reads the sandbox again and again does not load its frame anew.
func NewCode(sandboxKey string, row *fsm.Sandbox, port string, now time.Time) string {
	expires := now.Truncate(CodeAge).Add(2 * CodeAge)
	for n := 0; ; n++ {
		code := newPass(passCode, sandboxKey, row.ID, port, strconv.Itoa(n), expires)
		if !row.HasRedeemed(apikey.Hash(code)) {
			return code
		}
	}
}

// expiryOf returns when a pass expires.
func expiryOf(pass string) time.Time {
	until, _, _ := strings.Cut(pass, ".")
	seconds, err := strconv.ParseInt(until, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(seconds, 0).UTC()
}

// ShareToken returns the token of a share, "" on failure. It derives from the sandbox's key, so it
// is stored nowhere.
func ShareToken(sandboxKey, id string, share fsm.Share) string {
	mac := passMAC(passShare, sandboxKey, id, share.Port, share.ID, "")
	if mac == nil {
		return ""
	}
	return share.ID + "." + base64.RawURLEncoding.EncodeToString(mac)
}

// shareOpens returns the share in force that a token is of, nil if there is none.
func shareOpens(token, sandboxKey string, row *fsm.Sandbox, port string, now time.Time) *fsm.Share {
	id, text, _ := strings.Cut(token, ".")
	got, err := base64.RawURLEncoding.DecodeString(text)
	want := passMAC(passShare, sandboxKey, row.ID, port, id, "")
	if err != nil || want == nil || !hmac.Equal(got, want) {
		return nil
	}
	return row.ShareOf(id, port, now)
}

func passMAC(use, sandboxKey, id, port, share, until string) []byte {
	if sandboxKey == "" {
		return nil
	}
	key, err := hkdf.Key(sha256.New, []byte(sandboxKey), nil, use, sha256.Size)
	if err != nil {
		return nil // HKDF fails only for other lengths
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte(id + "\x00" + port + "\x00" + share + "\x00" + until))
	return h.Sum(nil)
}

// cookieName returns the name of the proxy's cookie.
func cookieName(secure bool) string {
	if secure {
		return hostPrefix + CookieName
	}
	return CookieName
}

// newCookie returns the cookie for one port of one sandbox. It belongs to that port's host alone.
func newCookie(value string, age time.Duration, secure bool) *http.Cookie {
	return &http.Cookie{
		Name: cookieName(secure), Value: value, Path: "/", MaxAge: int(age.Seconds()),
		HttpOnly: true, Secure: secure, SameSite: http.SameSiteLaxMode,
	}
}

// newVSCodeCookie returns the cookie from which VSCODE's page reads its connection token, which is
// the sandbox's key. Only the page of that port, which the sandbox serves itself, can read it.
func newVSCodeCookie(key string, age time.Duration, secure bool) *http.Cookie {
	return &http.Cookie{
		Name: vscodeCookie, Value: key, Path: "/", MaxAge: int(age.Seconds()), Secure: secure,
		SameSite: http.SameSiteStrictMode,
	}
}

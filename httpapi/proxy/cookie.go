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
)

// newPass returns "<expiry>.<mac>", "" on failure. The MAC's key derives from the sandbox's own
// key, so every node can verify it and a new sandbox key invalidates it.
func newPass(use, sandboxKey, id, port string, expires time.Time) string {
	until := strconv.FormatInt(expires.Unix(), 10)
	mac := passMAC(use, sandboxKey, id, port, until)
	if mac == nil {
		return ""
	}
	return until + "." + base64.RawURLEncoding.EncodeToString(mac)
}

// passOpens reports whether a pass is authentic and not expired.
func passOpens(use, value, sandboxKey, id, port string, now time.Time) bool {
	until, text, _ := strings.Cut(value, ".")
	expires, err := strconv.ParseInt(until, 10, 64)
	if err != nil || sandboxKey == "" || now.Unix() >= expires {
		return false
	}
	got, err := base64.RawURLEncoding.DecodeString(text)
	want := passMAC(use, sandboxKey, id, port, until)
	return err == nil && want != nil && hmac.Equal(got, want)
}

func passMAC(use, sandboxKey, id, port, until string) []byte {
	if sandboxKey == "" {
		return nil
	}
	key, err := hkdf.Key(sha256.New, []byte(sandboxKey), nil, use, sha256.Size)
	if err != nil {
		return nil // HKDF fails only for other lengths
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte(id + "\x00" + port + "\x00" + until))
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
		Name: vscodeCookie, Value: key, Path: "/", MaxAge: int(age.Seconds()), Secure: secure, SameSite: http.SameSiteStrictMode,
	}
}

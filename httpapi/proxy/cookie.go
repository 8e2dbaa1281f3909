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

// CookieName is the cookie that authenticates a browser for one port of one sandbox. A sandbox can
// neither see nor set it.
const CookieName = "bivouac_proxy"

// cookieKeyInfo separates the cookies' key from other keys derived from a sandbox's key.
const cookieKeyInfo = "bivouac proxy cookie 1"

// newCookieValue returns "<expiry>.<mac>", "" on failure. The MAC's key derives from the sandbox's
// own key, so every node can verify it and a new sandbox key invalidates it.
func newCookieValue(sandboxKey, id, port string, expires time.Time) string {
	until := strconv.FormatInt(expires.Unix(), 10)
	mac := cookieMAC(sandboxKey, id, port, until)
	if mac == nil {
		return ""
	}
	return until + "." + base64.RawURLEncoding.EncodeToString(mac)
}

// cookieOpens reports whether a cookie's value is authentic and not expired.
func cookieOpens(value, sandboxKey, id, port string, now time.Time) bool {
	until, text, _ := strings.Cut(value, ".")
	expires, err := strconv.ParseInt(until, 10, 64)
	if err != nil || sandboxKey == "" || now.Unix() >= expires {
		return false
	}
	got, err := base64.RawURLEncoding.DecodeString(text)
	want := cookieMAC(sandboxKey, id, port, until)
	return err == nil && want != nil && hmac.Equal(got, want)
}

func cookieMAC(sandboxKey, id, port, until string) []byte {
	if sandboxKey == "" {
		return nil
	}
	key, err := hkdf.Key(sha256.New, []byte(sandboxKey), nil, cookieKeyInfo, sha256.Size)
	if err != nil {
		return nil // HKDF fails only for other lengths
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte(id + "\x00" + port + "\x00" + until))
	return h.Sum(nil)
}

// newCookie returns the cookie for one port of one sandbox. Its path limits it to that port.
func newCookie(value, prefix string, age time.Duration, secure bool) *http.Cookie {
	return &http.Cookie{
		Name: CookieName, Value: value, Path: prefix + "/", MaxAge: int(age.Seconds()),
		HttpOnly: true, Secure: secure, SameSite: http.SameSiteLaxMode,
	}
}

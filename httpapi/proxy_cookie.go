package httpapi

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

// doorCookie is the name of the cookie that keeps a browser authorised for one
// port of one sandbox. It is the door's alone: a sandbox neither sees nor sets
// it.
const doorCookie = "bivouac_door"

// cookieKeyInfo separates the key of the cookies from other uses of a sandbox's
// key.
const cookieKeyInfo = "bivouac door cookie 1"

// newCookieValue makes "<expiry>.<mac>". The mac is keyed by the sandbox's own
// key, which every node can read: any node takes it, and it ends with the key.
func newCookieValue(sandboxKey, id, port string, expires time.Time) string {
	until := strconv.FormatInt(expires.Unix(), 10)
	mac := cookieMAC(sandboxKey, id, port, until)
	if mac == nil {
		return ""
	}
	return until + "." + base64.RawURLEncoding.EncodeToString(mac)
}

// cookieOpens checks a cookie's value.
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
		return nil // only for lengths that are not these
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte(id + "\x00" + port + "\x00" + until))
	return h.Sum(nil)
}

// newDoorCookie is the cookie for one port of one sandbox, sent back to nothing
// else.
func newDoorCookie(value, prefix string, age time.Duration, secure bool) *http.Cookie {
	return &http.Cookie{
		Name: doorCookie, Value: value, Path: prefix + "/", MaxAge: int(age.Seconds()),
		HttpOnly: true, Secure: secure, SameSite: http.SameSiteLaxMode,
	}
}

package proxy

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestPass_Expires(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	value := newPass(passCookie, "key", "box", "VSCODE", "", now.Add(time.Hour))
	for name, c := range map[string]struct {
		use, key, id, port string
		at                 time.Time
		want               bool
	}{
		"now": {
			passCookie,
			"key",
			"box",
			"VSCODE",
			now,
			true,
		}, "just before": {passCookie, "key", "box", "VSCODE", now.Add(time.Hour - time.Second), true},
		"too late": {
			passCookie,
			"key",
			"box",
			"VSCODE",
			now.Add(time.Hour),
			false,
		}, "key": {passCookie, "kez", "box", "VSCODE", now, false},
		"sandbox": {
			passCookie,
			"key",
			"boy",
			"VSCODE",
			now,
			false,
		}, "port": {passCookie, "key", "box", "WORKER_1", now, false},
		"no key": {passCookie, "", "box", "VSCODE", now, false}, "in a path": {passPath, "key", "box", "VSCODE", now, false},
	} {
		if _, got := passOpens(c.use, value, c.key, c.id, c.port, c.at); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestSetOwnCookie(t *testing.T) {
	for line, want := range map[string][2]string{
		"a=1":                                 {"sandbox-a=1; Path=/", "__Host-sandbox-a=1; Path=/; Secure"},
		"a=1; Domain=example.org; Path=/deep": {"sandbox-a=1; Path=/", "__Host-sandbox-a=1; Path=/; Secure"},
		"a=b=c;HttpOnly;secure; Max-Age=5": {
			"sandbox-a=b=c; HttpOnly; Max-Age=5; Path=/",
			"__Host-sandbox-a=b=c; HttpOnly; Max-Age=5; Path=/; Secure",
		},
		"bivouac_proxy=evil": {
			"sandbox-bivouac_proxy=evil; Path=/",
			"__Host-sandbox-bivouac_proxy=evil; Path=/; Secure",
		},
		"__Host-bivouac_proxy=evil; Secure": {
			"sandbox-__Host-bivouac_proxy=evil; Path=/",
			"__Host-sandbox-__Host-bivouac_proxy=evil; Path=/; Secure",
		},
		"=nameless": {"", ""}, "nameless": {"", ""}, "": {"", ""},
	} {
		for i, secure := range []bool{false, true} {
			if got := setOwnCookie(line, secure); got != want[i] {
				t.Errorf("%q, secure %v: %q, want %q", line, secure, got, want[i])
			}
		}
	}
}

func TestOwnCookies_AreBounded(t *testing.T) {
	sent := []*http.Cookie{{
		Name:  "sandbox-first",
		Value: "1",
	}, {Name: "theirs", Value: "2"}, {Name: "sandbox-", Value: "3"},
		{
			Name:   "sandbox-q",
			Value:  "4",
			Quoted: true,
		}, {Name: "sandbox-long", Value: strings.Repeat("x", maxSandboxCookies)}, {Name: "sandbox-last", Value: "5"}}
	if got := ownCookies(sent, false); got != `first=1; q="4"` {
		t.Errorf("%.80q", got)
	}
	if got := ownCookies(sent, true); got != "" {
		t.Errorf("%.80q", got)
	}
}

package proxy

import (
	"testing"
	"time"
)

func TestCookie_Expires(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	value := newCookieValue("key", "box", "VSCODE", now.Add(time.Hour))
	for name, c := range map[string]struct {
		key, id, port string
		at            time.Time
		want          bool
	}{
		"now": {"key", "box", "VSCODE", now, true}, "just before": {"key", "box", "VSCODE", now.Add(time.Hour - time.Second), true},
		"too late": {"key", "box", "VSCODE", now.Add(time.Hour), false}, "key": {"kez", "box", "VSCODE", now, false},
		"sandbox": {"key", "boy", "VSCODE", now, false}, "port": {"key", "box", "WORKER_1", now, false}, "no key": {"", "box", "VSCODE", now, false},
	} {
		if got := cookieOpens(value, c.key, c.id, c.port, c.at); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

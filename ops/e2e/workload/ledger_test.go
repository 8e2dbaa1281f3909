package workload

import (
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// TestUnexplained: only what no client requested is reported.
func TestUnexplained(t *testing.T) {
	now := time.Now()
	l := lives{started: map[string]bool{"live": true, "dead": true}, ended: map[string]time.Time{"dead": now}}
	for _, c := range []struct {
		what, thing string
		at          time.Duration
		found       bool
	}{
		{"purge", "sandbox-dead", time.Second, false},
		{"volume", "sandbox-dead", time.Second, false},
		{"destroy", "default/sandbox-dead/session", time.Second, false},
		{"purge", "sandbox-dead", -time.Second, true},
		{"purge", "sandbox-live", 0, true},
		{"volume", "sandbox-live", 0, true},
		{"delete", "default/sandbox-live/session", 0, true},
		{"delete", "default/sandbox-neverTaken/session", 0, false},
		{"purge", "sandbox-neverTaken", 0, true},
		{"destroy", "bivouac/users/admin/start_tasks/x", 0, false},
		{"destroy", "bivouac/users/admin/settings", 0, true},
		{"purge", "somebody-elses", 0, true},
	} {
		found := unexplained([]testcluster.Destruction{{At: now.Add(c.at), What: c.what, Thing: c.thing, Status: 200}}, l)
		if (len(found) > 0) != c.found {
			t.Errorf("%s of %s: %v", c.what, c.thing, found)
		}
	}
}

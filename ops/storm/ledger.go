package storm

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
)

// lives is what the clients know of the lives of sandboxes: which were
// acknowledged, and when the deletion of one was first asked for.
type lives struct {
	started map[string]bool
	ended   map[string]time.Time
}

// sandboxThing finds a sandbox's id in the name of a job, a volume or a secret.
var sandboxThing = regexp.MustCompile(`^(?:default/)?sandbox-([^/]+)`)

// unexplained gives every destruction that no client asked for. A secret that
// was written for a start which was never taken may be deleted, so that it can
// be taken back, and a start task's own goes when the task ends.
func unexplained(list []fleet.Destruction, l lives) (errs []error) {
	for _, d := range list {
		m := sandboxThing.FindStringSubmatch(d.Thing)
		if m == nil {
			if d.What != "volume" && !strings.Contains(d.Thing, "/start_tasks/") {
				errs = append(errs, fmt.Errorf("destroyed, and it is no sandbox's: %s", d))
			}
			continue
		}
		asked, deleted := l.ended[m[1]]
		secret := d.What == "delete" || d.What == "destroy"
		switch {
		case deleted && !asked.After(d.At):
		case secret && !l.started[m[1]]:
		case deleted:
			errs = append(errs, fmt.Errorf("destroyed before its deletion was asked for, at %s: %s", asked.Format("15:04:05.000"), d))
		default:
			errs = append(errs, fmt.Errorf("destroyed without a deletion: %s", d))
		}
	}
	return errs
}

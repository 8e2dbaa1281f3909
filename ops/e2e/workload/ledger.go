package workload

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// lives is what the clients know about sandboxes: which ones were acknowledged, and when their
// deletion was first requested.
type lives struct {
	started map[string]bool
	ended   map[string]time.Time
}

// starts and ends record a sandbox's acknowledged start and the request to delete it.
func (w *Actors) starts(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.started[id] = true
}

func (w *Actors) ends(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended[id].IsZero() {
		w.ended[id] = time.Now()
	}
}

// sandboxThing matches the sandbox's id in the name of a job, a volume or a secret.
var sandboxThing = regexp.MustCompile(`^(?:default/)?sandbox-([^/.]+)`)

// unexplained returns an error for every destruction that no client requested. It accepts the
// deletion (not the destruction) of a secret whose start was never accepted, and of a start
// task's own secret when the task ends.
func unexplained(list []testcluster.Destruction, l lives) (errs []error) {
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
			errs = append(errs,
				fmt.Errorf("destroyed before its deletion was asked for, at %s: %s", asked.Format("15:04:05.000"), d))
		default:
			errs = append(errs, fmt.Errorf("destroyed without a deletion: %s", d))
		}
	}
	return errs
}

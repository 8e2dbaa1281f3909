package scheduler

import (
	"math/rand/v2"
	"sync"
	"time"

	"bivouac.dev/bivouac/fsm"
)

const (
	// claimMemory is how long a warm sandbox that a task asked for is left to
	// it: longer than a command takes.
	claimMemory = 30 * time.Second
	// maxPick is among how many warm sandboxes a task picks its own.
	maxPick = 16
)

// claims spreads start tasks over the members of the default spec's warm pool,
// so that two of them seldom ask for the same one. Other nodes claim for their
// own requests; who gets a member the log decides.
type claims struct {
	mu    sync.Mutex
	asked map[string]time.Time
}

// pick chooses a member for a user's task, "" when there is none.
func (c *claims) pick(v *fsm.View, userID string, now time.Time) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, at := range c.asked {
		if now.Sub(at) >= claimMemory {
			delete(c.asked, id)
		}
	}
	seen := map[string]bool{}
	var free []string
	for len(free) < maxPick {
		m := v.ClaimableMember("", userID, func(id string) bool {
			_, taken := c.asked[id]
			return taken || seen[id]
		})
		if m == nil {
			break
		}
		seen[m.ID] = true
		free = append(free, m.ID)
	}
	if len(free) == 0 {
		return ""
	}
	if c.asked == nil {
		c.asked = map[string]time.Time{}
	}
	id := free[rand.IntN(len(free))]
	c.asked[id] = now
	return id
}

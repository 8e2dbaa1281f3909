package httpapi

import (
	"math/rand/v2"
	"sync"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// claimMemory is how long a member of a warm pool that a request asked for is
// left to it: longer than a command takes.
const claimMemory = 30 * time.Second

// claims spreads the starts of this node over the members of the warm pools, so
// that two of them seldom ask for the same one. Who gets it the log decides.
type claims struct {
	mu    sync.Mutex
	asked map[string]time.Time
}

// pick chooses a member that the user's start may ask for, "" when there is
// none. Other nodes choose too, so it is any one of them.
func (c *claims) pick(v *fsm.View, spec, user string, now time.Time) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := func(id string) bool {
		at, asked := c.asked[id]
		return asked && now.Sub(at) < claimMemory
	}
	free := 0
	v.ClaimableMember(spec, user, func(id string) bool {
		if !taken(id) {
			free++
		}
		return true
	})
	if free == 0 {
		return ""
	}
	pass := rand.IntN(free)
	m := v.ClaimableMember(spec, user, func(id string) bool {
		if taken(id) {
			return true
		}
		pass--
		return pass >= 0
	})
	if m == nil { // those behind it have another template
		m = v.ClaimableMember(spec, user, taken)
	}
	if m == nil {
		return ""
	}
	if c.asked == nil {
		c.asked = map[string]time.Time{}
	}
	for id, at := range c.asked {
		if now.Sub(at) >= claimMemory {
			delete(c.asked, id)
		}
	}
	c.asked[m.ID] = now
	return m.ID
}

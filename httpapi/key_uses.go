package httpapi

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// keyUseInterval is how often a node sends the uses of keys and sessions that it saw. Each is in it
// at most once in fsm.APIKeyUseStep or fsm.SessionSeenStep, whatever the number of requests.
const keyUseInterval = time.Minute

// maxKeyUses bounds the uses in one command.
const maxKeyUses = 1000

// keyUses collects which API keys and sessions this node admitted, so that one command notes them
// all.
type keyUses struct {
	cluster  Cluster
	keys     lastUses[int]
	sessions lastUses[string]
}

func newKeyUses(c Cluster) *keyUses {
	return &keyUses{
		cluster: c, keys: lastUses[int]{at: map[int]time.Time{}},
		sessions: lastUses[string]{at: map[string]time.Time{}},
	}
}

// note records a use of a key, nil for none. Most uses are within fsm.APIKeyUseStep of the stored
// one.
func (u *keyUses) note(key *fsm.APIKey, now time.Time) {
	if key == nil || key.LastUsedAt != nil && now.Sub(*key.LastUsedAt) < fsm.APIKeyUseStep {
		return
	}
	u.keys.note(key.ID, now)
}

// noteSession records a use of a session.
func (u *keyUses) noteSession(s *fsm.Session, now time.Time) {
	if now.Sub(s.SeenAt) >= fsm.SessionSeenStep {
		u.sessions.note(s.Hash, now)
	}
}

// run sends what was noted until ctx ends. Each command has the given time.
func (u *keyUses) run(ctx context.Context, timeout time.Duration) {
	every := time.NewTicker(keyUseInterval)
	defer every.Stop()
	for {
		select {
		case <-every.C:
			u.send(ctx, timeout)
		case <-ctx.Done():
			return
		}
	}
}

// send proposes what was noted, each kind in one command unless there are more than maxKeyUses.
// Without a leader it stays for the next time.
func (u *keyUses) send(ctx context.Context, timeout time.Duration) {
	if v, err := u.cluster.View(ctx, cluster.Stale); err != nil || !v.Active(fsm.VersionAccess) {
		return
	}
	sendUses(ctx, u, &u.keys, timeout, func(some []lastUse[int]) fsm.Body {
		b := &fsm.APIKeyUsedBody{Uses: make([]fsm.APIKeyUse, len(some))}
		for i, one := range some {
			b.Uses[i] = fsm.APIKeyUse{ID: one.of, At: one.at}
		}
		return b
	})
	sendUses(ctx, u, &u.sessions, timeout, func(some []lastUse[string]) fsm.Body {
		b := &fsm.SessionSeenBody{Uses: make([]fsm.SessionUse, len(some))}
		for i, one := range some {
			b.Uses[i] = fsm.SessionUse{Hash: one.of, At: one.at}
		}
		return b
	})
}

func sendUses[K cmp.Ordered](ctx context.Context, u *keyUses, from *lastUses[K], timeout time.Duration,
	body func([]lastUse[K]) fsm.Body) {
	for some := range slices.Chunk(from.take(), maxKeyUses) {
		own, cancel := context.WithTimeout(ctx, timeout)
		_, err := u.cluster.Propose(own, fsm.NewCommand(uuid.NewString(), time.Now(), "", body(some)))
		cancel()
		if err != nil {
			from.keep(some)
		}
	}
}

// lastUses are when each of some things was last used.
type lastUses[K cmp.Ordered] struct {
	mu sync.Mutex
	at map[K]time.Time
}

// lastUse is the last use of one thing.
type lastUse[K cmp.Ordered] struct {
	of K
	at time.Time
}

func (s *lastUses[K]) note(of K, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at[of] = now
}

// take returns the noted uses in the order of what was used, and forgets them.
func (s *lastUses[K]) take() []lastUse[K] {
	s.mu.Lock()
	defer s.mu.Unlock()
	uses := make([]lastUse[K], 0, len(s.at))
	for _, of := range slices.Sorted(maps.Keys(s.at)) {
		uses = append(uses, lastUse[K]{of, s.at[of]})
	}
	clear(s.at)
	return uses
}

// keep puts uses back that could not be sent, unless there are later ones.
func (s *lastUses[K]) keep(uses []lastUse[K]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range uses {
		if one.at.After(s.at[one.of]) {
			s.at[one.of] = one.at
		}
	}
}

package httpapi

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// keyUseInterval is how often a node sends the uses of keys that it saw. A key is in it at most once
// in fsm.APIKeyUseStep, whatever the number of requests.
const keyUseInterval = time.Minute

// maxKeyUses bounds the uses in one command.
const maxKeyUses = 1000

// keyUses collects which API keys this node admitted, so that one command notes them all.
type keyUses struct {
	cluster Cluster

	mu   sync.Mutex
	seen map[int]time.Time
}

func newKeyUses(c Cluster) *keyUses { return &keyUses{cluster: c, seen: map[int]time.Time{}} }

// note records a use of a key, nil for none. Most uses are within fsm.APIKeyUseStep of the stored
// one.
func (u *keyUses) note(key *fsm.APIKey, now time.Time) {
	if key == nil || key.LastUsedAt != nil && now.Sub(*key.LastUsedAt) < fsm.APIKeyUseStep {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.seen[key.ID] = now
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

// send proposes what was noted, in one command unless there are more than maxKeyUses. Without a
// leader it stays for the next time.
func (u *keyUses) send(ctx context.Context, timeout time.Duration) {
	if v, err := u.cluster.View(ctx, cluster.Stale); err != nil || !v.Active(fsm.VersionAccess) {
		return
	}
	for uses := range slices.Chunk(u.take(), maxKeyUses) {
		own, cancel := context.WithTimeout(ctx, timeout)
		_, err := u.cluster.Propose(own, fsm.NewCommand(uuid.NewString(), time.Now(), "", &fsm.APIKeyUsedBody{Uses: uses}))
		cancel()
		if err != nil {
			u.keep(uses)
		}
	}
}

// take returns the noted uses by key id and forgets them.
func (u *keyUses) take() []fsm.APIKeyUse {
	u.mu.Lock()
	defer u.mu.Unlock()
	uses := make([]fsm.APIKeyUse, 0, len(u.seen))
	for _, id := range slices.Sorted(maps.Keys(u.seen)) {
		uses = append(uses, fsm.APIKeyUse{ID: id, At: u.seen[id]})
	}
	clear(u.seen)
	return uses
}

// keep puts uses back that could not be sent, unless there are later ones.
func (u *keyUses) keep(uses []fsm.APIKeyUse) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, use := range uses {
		if use.At.After(u.seen[use.ID]) {
			u.seen[use.ID] = use.At
		}
	}
}

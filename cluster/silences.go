package cluster

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// silencesKept is how long what a leader told of silent members counts: a member may
// have answered since. Where the next leader is not found by then, it counts anew.
const silencesKept = 10 * time.Second

// silences are since when the leader has heard nothing of members, as it told last:
// whoever leads next counts on from there. They are in memory only.
type silences struct {
	mu    sync.Mutex
	told  time.Time
	since map[raft.ServerID]time.Time
}

// set takes what a leader tells, in milliseconds.
func (s *silences) set(silent map[raft.ServerID]int64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told, s.since = now, map[raft.ServerID]time.Time{}
	for id, ms := range silent {
		s.since[id] = now.Add(-time.Duration(ms) * time.Millisecond)
	}
}

// get gives what was told lately.
func (s *silences) get(now time.Time) map[raft.ServerID]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.told) > silencesKept {
		return nil
	}
	return s.since
}

// silentIn gives the silent members among those that a leader has asked.
func silentIn(contacts map[raft.ServerID]contact, now time.Time) map[raft.ServerID]int64 {
	silent := map[raft.ServerID]int64{}
	for id, c := range contacts {
		if !c.alive && !c.since.IsZero() {
			silent[id] = now.Sub(c.since).Milliseconds()
		}
	}
	return silent
}

package cluster

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// silentKept is how long a leader's report of silent members counts. A later leader starts from
// zero, as the members may have answered since.
const silentKept = 10 * time.Second

// silentMembers holds the leader's last report of silent members, in memory only. The next leader
// continues to count from it.
type silentMembers struct {
	mu       sync.Mutex
	reported time.Time
	since    map[raft.ServerID]time.Time
}

// set stores a report: the milliseconds of silence by member.
func (s *silentMembers) set(silent map[raft.ServerID]int64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reported, s.since = now, map[raft.ServerID]time.Time{}
	for id, ms := range silent {
		s.since[id] = now.Add(-time.Duration(ms) * time.Millisecond)
	}
}

// get returns the last report, nil when it is too old.
func (s *silentMembers) get(now time.Time) map[raft.ServerID]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.reported) > silentKept {
		return nil
	}
	return s.since
}

// silentIn returns the silent members among the polled ones, with the milliseconds of silence.
func silentIn(contacts map[raft.ServerID]contact, now time.Time) map[raft.ServerID]int64 {
	silent := map[raft.ServerID]int64{}
	for id, c := range contacts {
		if !c.alive && !c.since.IsZero() {
			silent[id] = now.Sub(c.since).Milliseconds()
		}
	}
	return silent
}

package cluster

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// What a leader told of silent members counts for a while only: whoever answered
// since, this node would not know.
func TestSilentMembers_CountForAWhileOnly(t *testing.T) {
	t.Parallel()
	var s silentMembers
	begin := time.Now()
	if got := s.get(begin); len(got) != 0 {
		t.Errorf("before anything was told: %v", got)
	}
	s.set(map[raft.ServerID]int64{"a.1": 5000}, begin)
	if got := s.get(begin.Add(silentKept)); len(got) != 1 || !got["a.1"].Equal(begin.Add(-5*time.Second)) {
		t.Errorf("within the time: %v", got)
	}
	if got := s.get(begin.Add(silentKept + 1)); len(got) != 0 {
		t.Errorf("after it: %v", got)
	}
	s.set(nil, begin)
	if got := s.get(begin); len(got) != 0 {
		t.Errorf("when nobody is silent any more: %v", got)
	}
}

// A leader that takes a silence over does not take the member for heard.
func TestContactBook_TakesOverSilences(t *testing.T) {
	t.Parallel()
	var l contactBook
	begin := time.Now()
	l.begin(7, map[raft.ServerID]time.Time{"a.1": begin.Add(-time.Hour)})
	if c := l.note("a.1", helloResponse{}, false, begin, begin); !c.since.Equal(begin.Add(-time.Hour)) || c.alive {
		t.Errorf("silent still: %+v", c)
	}
	if c := l.note("a.1", helloResponse{}, true, begin, begin); !c.since.Equal(begin) || !c.alive {
		t.Errorf("it answers: %+v", c)
	}
	l.begin(7, map[raft.ServerID]time.Time{"a.1": begin.Add(-time.Hour)})
	if c, _ := l.get("a.1"); !c.alive {
		t.Errorf("begun again in the same term: %+v", c)
	}
	if ages := l.ages(7, begin.Add(time.Second)); ages["a.1"] != 1000 {
		t.Errorf("ages %v", ages)
	}
}

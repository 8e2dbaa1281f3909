package fsm

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// commandWindow remembers the commands of the last InternalResultTTL, by command time. It is not
// part of a View: a map costs several times less per command than a table, and only Apply needs it
// at an exact index.
type commandWindow struct {
	mu   sync.RWMutex
	byID map[string]*commandRecord
	// seconds are in time order, so that a clock that runs ahead for a while does not push out younger
	// records.
	seconds []*commandSecond
	weight  int
	// room bounds weight. It is maxInternalWeight except in tests.
	room int
}

// commandSecond has the commands of one second, in log order. The first gone of them are forgotten.
type commandSecond struct {
	second  int64
	records []*commandRecord
	gone    int
}

func newCommandWindow() *commandWindow {
	return &commandWindow{byID: make(map[string]*commandRecord), room: maxInternalWeight}
}

// get returns the record of an id, or nil.
func (c *commandWindow) get(id string) *commandRecord {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.byID[id]
}

// add remembers a record, and forgets records that are too old at the time now or no longer fit. It
// returns the latest time among those it forgot, zero for none.
func (c *commandWindow) add(r *commandRecord, now time.Time) (forgotten time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	oldest := now.Add(-InternalResultTTL).Unix()
	w := r.weight()
	for len(c.seconds) > 0 && (c.seconds[0].second < oldest || c.weight+w > c.room) {
		forgotten = later(forgotten, c.forget())
	}
	c.insert(r, w)
	return forgotten
}

// restore remembers a record from a snapshot. It forgets nothing: the snapshot holds only what was
// remembered.
func (c *commandWindow) restore(r *commandRecord) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.insert(r, r.weight())
}

func (c *commandWindow) insert(r *commandRecord, weight int) {
	second := r.Time.Unix()
	i, found := len(c.seconds)-1, len(c.seconds) > 0 && c.seconds[len(c.seconds)-1].second == second
	if !found {
		i, found = slices.BinarySearchFunc(c.seconds, second,
			func(s *commandSecond, at int64) int { return cmp.Compare(s.second, at) })
	}
	if !found {
		c.seconds = slices.Insert(c.seconds, i, &commandSecond{second: second})
	}
	c.seconds[i].records = append(c.seconds[i].records, r)
	c.weight += weight
	c.byID[r.ID] = r
}

// forget removes the first record of the oldest second and returns its time.
func (c *commandWindow) forget() time.Time {
	s := c.seconds[0]
	r := s.records[s.gone]
	s.records[s.gone] = nil
	s.gone++
	if s.gone == len(s.records) {
		c.seconds[0] = nil
		c.seconds = c.seconds[1:]
	}
	c.weight -= r.weight()
	delete(c.byID, r.ID)
	return r.Time
}

// all copies the records, in the order that restore expects.
func (c *commandWindow) all() []*commandRecord {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]*commandRecord, 0, len(c.byID))
	for _, s := range c.seconds {
		out = append(out, s.records[s.gone:]...)
	}
	return out
}

// blank replaces what a user's clients were answered (commandRecord.blank).
func (c *commandWindow) blank(user string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.seconds {
		for i, r := range s.records[s.gone:] {
			if r.UserID != user || r.Fingerprint == "" {
				continue
			}
			b := r.blank()
			s.records[s.gone+i], c.byID[r.ID] = b, b
			c.weight += b.weight() - r.weight()
		}
	}
}

package scheduler

import "sync"

// line lets a number of sandboxes in at a time, in the order in which they came.
type line struct {
	mu      sync.Mutex
	room    int
	waiting []string
	in      map[string]bool
}

func newLine(room int) *line { return &line{room: room, in: map[string]bool{}} }

// enter takes a place, or a place in the line when there is none.
func (l *line) enter(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.room > 0 {
		l.room--
		return true
	}
	if !l.in[id] {
		l.in[id] = true
		l.waiting = append(l.waiting, id)
	}
	return false
}

// leave gives a place back.
func (l *line) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.room++
}

// pop removes the first of the line and returns it, if there is a place; "" for none.
func (l *line) pop() (id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.room == 0 || len(l.waiting) == 0 {
		return ""
	}
	id, l.waiting = l.waiting[0], l.waiting[1:]
	delete(l.in, id)
	return id
}

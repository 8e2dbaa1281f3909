package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"bivouac.dev/bivouac/scheduler/agent"
)

const (
	// eventBytes bounds the events of one call, beside its last one.
	eventBytes = 1 << 20
	// eventPause and eventPauseMost bound the pauses between attempts, oldPause is that of a control
	// plane that keeps no events yet.
	eventPause     = 50 * time.Millisecond
	eventPauseMost = time.Minute
	oldPause       = 5 * time.Minute
)

// Tail reads the events of a conversation from a position on: at most about eventBytes of them, at least
// one if there is one. A negative position is the last event's. It says where the first one stands, and
// how many events there are.
type Tail func(from, bytes int) (texts []json.RawMessage, first, total int, err error)

// tailOf is one conversation whose events are sent.
type tailOf struct {
	read Tail
	// next is the position of the first event that the control plane may lack, -1 for not known: then
	// the last event goes first, and the answer says what is missing before it, or how many it has.
	next int
	// told: there may be events that were not read.
	told  bool
	pause time.Duration
	due   time.Time
}

// TellEvents sends what the control plane lacks of a conversation's events, in their order, until it has
// all of them.
func (w *Sender) TellEvents(id string, read Tail) {
	w.mu.Lock()
	if w.tails[id] == nil {
		w.tails[id] = &tailOf{read: read, next: -1}
	}
	if t := w.tails[id]; !t.told {
		if w.untold() == 0 {
			w.eventsSent = make(chan struct{})
		}
		t.told = true
	}
	w.mu.Unlock()
	select {
	case w.eventsWake <- struct{}{}:
	default:
	}
}

// untold is how many conversations have events to send. The caller holds mu.
func (w *Sender) untold() (n int) {
	for _, t := range w.tails {
		if t.told {
			n++
		}
	}
	return n
}

// dueTail returns a conversation whose events can be sent now, or how long to wait for one.
func (w *Sender) dueTail() (id string, t *tailOf, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait = time.Hour
	for id, t := range w.tails {
		if !t.told {
			continue
		}
		left := time.Until(t.due)
		if left <= 0 {
			return id, t, 0
		}
		wait = min(wait, left)
	}
	return "", nil, wait
}

// RunEvents sends events until ctx ends.
func (w *Sender) RunEvents(ctx context.Context) {
	if len(w.bases) == 0 {
		return
	}
	for ctx.Err() == nil {
		id, t, wait := w.dueTail()
		if t != nil {
			w.sendEvents(ctx, id, t)
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-w.eventsWake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// sendEvents makes one attempt. Only RunEvents changes next, pause and due.
func (w *Sender) sendEvents(ctx context.Context, id string, t *tailOf) {
	w.mu.Lock()
	t.told = false
	w.mu.Unlock()
	texts, first, total, err := t.read(t.next, eventBytes)
	if err != nil { // it was deleted
		w.mu.Lock()
		delete(w.tails, id)
		w.settled()
		w.mu.Unlock()
		return
	}
	more := false
	if len(texts) > 0 {
		more = w.postEvents(ctx, id, t, texts, first)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	t.told = t.told || more || len(texts) > 0 && t.next < total
	w.settled()
}

// settled closes eventsSent if there is nothing to send. The caller holds mu.
func (w *Sender) settled() {
	if w.untold() > 0 {
		return
	}
	select {
	case <-w.eventsSent:
	default:
		close(w.eventsSent)
	}
}

// postEvents sends events and takes note of the answer. It reports whether they are to be sent again.
func (w *Sender) postEvents(
	ctx context.Context, id string, t *tailOf, texts []json.RawMessage, first int,
) (again bool) {
	number, status, err := w.tryEvents(ctx, id, texts, first)
	end := first + len(texts)
	switch {
	case err == nil && status/100 == 2 && t.next < 0 && number >= 0 && number != end:
		// It has others than the file: some in the middle may be missing there.
		t.next, t.pause = 0, 0
		return true
	case err == nil && status/100 == 2:
		t.next, t.pause = end, 0
		return false
	case err == nil && status == http.StatusConflict && number >= 0 && first > 0:
		if t.next, t.pause = number, 0; number >= first {
			t.next = 0 // it lacks one before its last one
		}
		return true
	case err == nil && status == http.StatusConflict:
		t.pause = oldPause
	default:
		t.pause = min(max(2*t.pause, eventPause), eventPauseMost)
	}
	if ctx.Err() == nil && t.pause >= eventPauseMost {
		w.logger.Warn("events are not accepted; they are sent again", "conversation", id, "status", status, "error", err)
	}
	t.due = time.Now().Add(t.pause)
	return true
}

// tryEvents posts events to the bases in turn. number is how many events the control plane says that it
// has of the conversation, -1 if it does not.
func (w *Sender) tryEvents(
	ctx context.Context, id string, texts []json.RawMessage, first int,
) (number, status int, err error) {
	body, err := json.Marshal(texts)
	if err != nil {
		return -1, 0, err
	}
	var all []error
	for _, base := range w.bases {
		status, header, err := w.post(ctx, base, "/events/"+id, body, agent.EventPositionHeader, strconv.Itoa(first))
		if err != nil {
			all = append(all, err)
			continue
		}
		if status/100 == 5 && base != w.bases[len(w.bases)-1] {
			continue // another node may do it
		}
		number, failed := strconv.Atoi(header.Get(agent.EventPositionHeader))
		if failed != nil {
			number = -1
		}
		return number, status, nil
	}
	return -1, 0, errors.Join(all...)
}

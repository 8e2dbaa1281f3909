package main

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	// repeatPause is how long a fault's further lines are only counted.
	repeatPause = time.Minute
	// maxRepeats bounds the faults that are known at a time. What goes beyond is logged.
	maxRepeats = 512
)

// repeats logs a fault once a minute. Its lines in between are counted, and the last of them is
// written when the minute is over, with the count. A fault is a warning or an error with the same
// message, peer, and cause: the end of its error, after the last colon.
type repeats struct {
	next  slog.Handler
	all   *repeated
	level slog.Leveler
}

// repeated are the faults of one log.
type repeated struct {
	mu     sync.Mutex
	faults map[string]*fault
}

// fault was logged at since. left counts the lines since then, and last is one of them.
type fault struct {
	since time.Time
	left  int
	last  slog.Record
	next  slog.Handler
}

func newRepeated() *repeated { return &repeated{faults: map[string]*fault{}} }

// Enabled implements slog.Handler.
func (h repeats) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// WithAttrs implements slog.Handler.
func (h repeats) WithAttrs(attrs []slog.Attr) slog.Handler {
	return repeats{next: h.next.WithAttrs(attrs), all: h.all, level: h.level}
}

// WithGroup implements slog.Handler.
func (h repeats) WithGroup(name string) slog.Handler {
	return repeats{next: h.next.WithGroup(name), all: h.all, level: h.level}
}

// Handle implements slog.Handler.
func (h repeats) Handle(ctx context.Context, r slog.Record) error {
	key, is := faultOf(r)
	due, leave := h.all.admit(key, is && h.level.Level() > slog.LevelDebug, r, h.next)
	for _, f := range due {
		if f.left > 1 {
			f.last.AddAttrs(slog.Int("not_logged", f.left-1))
		}
		if err := f.next.Handle(ctx, f.last); err != nil {
			return err
		}
	}
	if leave {
		return nil
	}
	return h.next.Handle(ctx, r)
}

// admit returns the faults whose minute is over with lines left, and whether r is left out.
func (a *repeated) admit(key string, isFault bool, r slog.Record, next slog.Handler) (due []fault, leave bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, f := range a.faults {
		switch {
		case r.Time.Sub(f.since) < repeatPause:
		case f.left == 0:
			delete(a.faults, k)
		default:
			due = append(due, *f)
			a.faults[k] = &fault{since: r.Time}
		}
	}
	if !isFault {
		return due, false
	}
	if f := a.faults[key]; f != nil {
		f.left++
		f.last, f.next = r.Clone(), next
		return due, true
	}
	if len(a.faults) < maxRepeats {
		a.faults[key] = &fault{since: r.Time}
	}
	return due, false
}

// faultOf returns what a line has in common with others of the same fault. A request's line is none:
// clients quote its id.
func faultOf(r slog.Record) (key string, is bool) {
	if r.Level < slog.LevelWarn {
		return "", false
	}
	key = r.Message
	request := false
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "request":
			request = true
		case "peer", "sandbox":
			key += "\x00" + a.Value.String()
		case "error":
			text := a.Value.String()
			key += "\x00" + text[strings.LastIndex(text, ": ")+1:]
			is = true
		}
		return true
	})
	return key, is && !request
}

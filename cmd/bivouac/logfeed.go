package main

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// Bounds of followers of a node's log.
const (
	maxFollowers = 8
	// followedBytes bounds the lines that wait for one follower.
	followedBytes = 1 << 20
	// followedFor is how long a follower that does not ask is kept.
	followedFor = 15 * time.Second
	// followWait is how long a call waits for a line.
	followWait = time.Second
)

// logFeed gives the lines of a node's log to followers, each with a level of its own.
type logFeed struct {
	mu        sync.Mutex
	followers map[string]*follower
	// lowest is the lowest level that a follower wants, nobody if there is none.
	lowest atomic.Int64
}

// nobody is above every level.
const nobody = int64(1 << 20)

func newLogFeed() *logFeed {
	f := &logFeed{followers: map[string]*follower{}}
	f.lowest.Store(nobody)
	return f
}

// follower holds the lines that it has not fetched yet. Its handler writes them.
type follower struct {
	handler slog.Handler
	level   slog.Level
	mu      sync.Mutex
	lines   bytes.Buffer
	dropped int
	asked   time.Time
	arrived chan struct{}
}

// Write implements io.Writer for one line. It never blocks.
func (f *follower) Write(line []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lines.Len()+len(line) > followedBytes {
		f.dropped++
		return len(line), nil
	}
	f.lines.Write(line)
	select {
	case f.arrived <- struct{}{}:
	default:
	}
	return len(line), nil
}

// take returns the waiting lines, and how many were dropped behind them.
func (f *follower) take() (lines []byte, dropped int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	lines, dropped = bytes.Clone(f.lines.Bytes()), f.dropped
	f.lines.Reset()
	f.dropped = 0
	return lines, dropped
}

// attach returns a logger that writes to log's handler and to the followers.
func (f *logFeed) attach(log *slog.Logger) *slog.Logger {
	return slog.New(feedHandler{next: log.Handler(), feed: f})
}

// follow returns the lines since the last call of the session, or waits for one. The first call of
// a session begins it.
func (f *logFeed) follow(ctx context.Context, session, level, format string) ([]byte, error) {
	one, err := f.session(session, level, format)
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(followWait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-one.arrived:
	}
	lines, dropped := one.take()
	if dropped > 0 {
		r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines were dropped: the follower is too slow", 0)
		r.AddAttrs(slog.Int("count", dropped))
		if err := one.handler.Handle(ctx, r); err != nil {
			return nil, err
		}
	}
	return lines, nil
}

func (f *logFeed) session(session, level, format string) (*follower, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for name, one := range f.followers {
		if now.Sub(one.asked) > followedFor {
			delete(f.followers, name)
		}
	}
	defer f.relevel()
	if one, there := f.followers[session]; there {
		one.asked = now
		return one, nil
	}
	if len(f.followers) >= maxFollowers {
		return nil, fsm.Errorf(fsm.CodeLimit, "%d programs follow this node's log already", maxFollowers)
	}
	one := &follower{level: logLevel(level), asked: now, arrived: make(chan struct{}, 1)}
	one.handler = newLogger(one, format, one.level).Handler()
	f.followers[session] = one
	return one, nil
}

// relevel notes the lowest level. The caller holds mu.
func (f *logFeed) relevel() {
	lowest := nobody
	for _, one := range f.followers {
		lowest = min(lowest, int64(one.level))
	}
	f.lowest.Store(lowest)
}

// feedHandler writes to next by its level, and to the followers by theirs.
type feedHandler struct {
	next  slog.Handler
	feed  *logFeed
	attrs []slog.Attr
}

// Enabled implements slog.Handler.
func (h feedHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return int64(l) >= h.feed.lowest.Load() || h.next.Enabled(ctx, l)
}

// Handle implements slog.Handler.
func (h feedHandler) Handle(ctx context.Context, r slog.Record) error {
	if int64(r.Level) >= h.feed.lowest.Load() {
		h.give(ctx, r)
	}
	if !h.next.Enabled(ctx, r.Level) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

func (h feedHandler) give(ctx context.Context, r slog.Record) {
	full := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	full.AddAttrs(h.attrs...)
	r.Attrs(func(a slog.Attr) bool {
		full.AddAttrs(a)
		return true
	})
	h.feed.mu.Lock()
	followers := make([]*follower, 0, len(h.feed.followers))
	for _, one := range h.feed.followers {
		followers = append(followers, one)
	}
	h.feed.mu.Unlock()
	for _, one := range followers {
		if r.Level >= one.level {
			_ = one.handler.Handle(ctx, full.Clone()) // it writes to memory
		}
	}
}

// WithAttrs implements slog.Handler.
func (h feedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return feedHandler{next: h.next.WithAttrs(attrs), feed: h.feed, attrs: slices.Concat(h.attrs, attrs)}
}

// WithGroup implements slog.Handler. The program has no groups: followers get their members flat.
func (h feedHandler) WithGroup(name string) slog.Handler {
	return feedHandler{next: h.next.WithGroup(name), feed: h.feed, attrs: h.attrs}
}

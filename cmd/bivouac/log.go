package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"

	redact "bivouac.dev/bivouac/httpapi/decode"
)

// newLogger logs to w in the format "text" or "json", by the schema of ops/LOGS.md, without
// credentials in texts and errors. level may change while the program runs; at DEBUG no line is left
// out.
func newLogger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: redact.LogAttr}
	var lines slog.Handler = slog.NewTextHandler(w, opts)
	if format == "json" {
		lines = slog.NewJSONHandler(w, opts)
	}
	lines = uniqueKeys{next: lines}
	return slog.New(repeats{next: lines, all: newRepeated(), level: level})
}

// logLevel returns the level of a configuration word. The word was checked before; an unknown
// one is info.
func logLevel(word string) slog.Level {
	var l slog.Level
	if err := l.UnmarshalText([]byte(word)); err != nil {
		return slog.LevelInfo
	}
	return l
}

// uniqueKeys numbers a key that a line has already: readers of JSON keep one of two.
type uniqueKeys struct {
	next slog.Handler
	// keys are those of the attributes that every line of this handler has.
	keys []string
}

// Enabled implements slog.Handler.
func (h uniqueKeys) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// Handle implements slog.Handler.
func (h uniqueKeys) Handle(ctx context.Context, r slog.Record) error {
	attrs := make([]slog.Attr, 0, r.NumAttrs())
	r.Attrs(func(a slog.Attr) bool {
		attrs = append(attrs, a)
		return true
	})
	if _, changed := h.number(attrs); changed {
		r = slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
		r.AddAttrs(attrs...)
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h uniqueKeys) WithAttrs(attrs []slog.Attr) slog.Handler {
	attrs = slices.Clone(attrs)
	keys, _ := h.number(attrs)
	return uniqueKeys{next: h.next.WithAttrs(attrs), keys: keys}
}

// WithGroup implements slog.Handler. Keys of a group are its own.
func (h uniqueKeys) WithGroup(name string) slog.Handler {
	return uniqueKeys{next: h.next.WithGroup(name)}
}

// number renames repeated keys in attrs, and returns all keys.
func (h uniqueKeys) number(attrs []slog.Attr) (keys []string, changed bool) {
	keys = slices.Clone(h.keys)
	taken := func(key string) bool {
		return key == slog.TimeKey || key == slog.LevelKey || key == slog.MessageKey || slices.Contains(keys, key)
	}
	for i := range attrs {
		key := attrs[i].Key
		for n := 2; taken(key); n++ {
			key, changed = fmt.Sprintf("%s_%d", attrs[i].Key, n), true
		}
		attrs[i].Key = key
		keys = append(keys, key)
	}
	return keys, changed
}

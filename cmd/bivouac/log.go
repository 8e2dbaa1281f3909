package main

import (
	"io"
	"log/slog"
)

// newLogger writes to w in the given format ("text" or "json") at a level that
// may change while the program runs.
func newLogger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// logLevel translates the words of configuration and flags. The word was
// checked before; anything else is info.
func logLevel(word string) slog.Level {
	var l slog.Level
	if err := l.UnmarshalText([]byte(word)); err != nil {
		return slog.LevelInfo
	}
	return l
}

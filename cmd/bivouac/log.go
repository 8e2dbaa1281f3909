package main

import (
	"io"
	"log/slog"

	redact "bivouac.dev/bivouac/httpapi/decode"
)

// newLogger logs to w in the format "text" or "json", without credentials in texts and errors. level
// may change while the program runs.
func newLogger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: redact.RedactAttr}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
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

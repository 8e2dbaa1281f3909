package cluster

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// raftLogger returns an hclog.Logger that writes hashicorp/raft's messages to logger.
func raftLogger(logger *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Output: io.Discard, Level: hclogLevel(logger)})
	l.RegisterSink(logSink{logger})
	return l
}

type logSink struct{ logger *slog.Logger }

// Accept implements hclog.SinkAdapter. Keys of the project's closed list stay keys. The library's
// others become part of the message.
func (s logSink) Accept(name string, level hclog.Level, msg string, args ...any) {
	l := slogLevel(level)
	ctx := context.Background()
	if !s.logger.Enabled(ctx, l) {
		return
	}
	var text strings.Builder
	text.WriteString("raft: ")
	if name != "" {
		text.WriteString(name + ": ")
	}
	text.WriteString(msg)
	var attrs []slog.Attr
	for i := 0; i+1 < len(args); i += 2 {
		key, value := fmt.Sprint(args[i]), printable(args[i+1])
		switch key {
		case "error", "peer", "term", "index", "address":
			attrs = append(attrs, slog.String(key, value))
		default:
			fmt.Fprintf(&text, " %s=%s", key, value)
		}
	}
	s.logger.LogAttrs(ctx, l, text.String(), attrs...)
}

// printable renders an hclog argument, which may be a format with its values.
func printable(v any) string {
	if f, ok := v.(hclog.Format); ok && len(f) > 0 {
		return fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
	}
	return fmt.Sprint(v)
}

func slogLevel(l hclog.Level) slog.Level {
	switch l {
	case hclog.Error:
		return slog.LevelError
	case hclog.Warn:
		return slog.LevelWarn
	case hclog.Info:
		return slog.LevelInfo
	default:
		return slog.LevelDebug
	}
}

// hclogLevel is the lowest level that logger records, so that raft need not format the others.
func hclogLevel(l *slog.Logger) hclog.Level {
	ctx := context.Background()
	switch {
	case l.Enabled(ctx, slog.LevelDebug):
		return hclog.Debug
	case l.Enabled(ctx, slog.LevelInfo):
		return hclog.Info
	case l.Enabled(ctx, slog.LevelWarn):
		return hclog.Warn
	default:
		return hclog.Error
	}
}

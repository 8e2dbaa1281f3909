package cluster

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
	"unicode"

	"github.com/hashicorp/go-hclog"
)

// raftLogger returns an hclog.Logger that writes hashicorp/raft's messages to logger. Its own level
// is off, so that it renders nothing itself; the sink asks logger for the level.
func raftLogger(logger *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Output: io.Discard, Level: hclog.Off})
	l.RegisterSink(logSink{logger})
	return l
}

type logSink struct{ logger *slog.Logger }

// Accept implements hclog.SinkAdapter.
func (s logSink) Accept(name string, level hclog.Level, msg string, args ...any) {
	l := slogLevel(level)
	ctx := context.Background()
	if !s.logger.Enabled(ctx, l) {
		return
	}
	if name != "" {
		msg = name + ": " + msg
	}
	attrs := make([]slog.Attr, 0, len(args)/2)
	for i := 0; i+1 < len(args); i += 2 {
		attrs = append(attrs, slog.Attr{Key: attrKey(fmt.Sprint(args[i])), Value: attrValue(args[i+1])})
	}
	s.logger.LogAttrs(ctx, l, "raft: "+msg, attrs...)
}

// attrKey is the name of a library's key in the log: snake_case, and none that has another meaning
// there.
func attrKey(key string) string {
	var b strings.Builder
	for i, r := range key {
		switch {
		case unicode.IsUpper(r):
			if i > 0 && !strings.HasSuffix(b.String(), "_") {
				b.WriteByte('_')
			}
			b.WriteRune(unicode.ToLower(r))
		case unicode.IsLetter(r) || unicode.IsDigit(r):
			b.WriteRune(r)
		default:
			b.WriteByte('_')
		}
	}
	switch key := b.String(); key {
	case "err":
		return "error"
	case "node", "time", "level", "msg":
		return "raft_" + key
	default:
		return key
	}
}

// attrValue keeps numbers, truth values and durations. Everything else becomes a text: structs of
// the library would be objects in JSON.
func attrValue(v any) slog.Value {
	switch v := v.(type) {
	case int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, float32, float64, bool, time.Duration:
		return slog.AnyValue(v)
	case hclog.Format:
		if len(v) > 0 {
			return slog.StringValue(fmt.Sprintf(fmt.Sprint(v[0]), v[1:]...))
		}
	}
	return slog.StringValue(fmt.Sprint(v))
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

package nomad

import (
	"context"
	"io"
	"regexp"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// How much of a crashed task's log its failure tells, and how long reading it
// may hold up the picture of everything else.
const (
	lastBytes  = 2 << 10
	lastLines  = 5
	lastWait   = time.Second
	lastMemory = 5 * time.Minute
)

// explain adds the end of the task's log to a crash. Each is read once.
func (r *Runner) explain(ctx context.Context, o scheduler.Observed, alloc string) scheduler.Observed {
	if o.Failure == nil || o.Failure.Reason != fsm.ReasonCrashed || alloc == "" {
		return o
	}
	words, known := r.words.Get(alloc)
	if !known {
		words = r.lastWords(ctx, alloc)
		r.words.Add(alloc, words)
	}
	if words != "" {
		o.Failure = &scheduler.Failure{Reason: o.Failure.Reason, Detail: o.Failure.Detail + "; it last wrote: " + words}
	}
	return o
}

// lastWords is the end of what the task wrote, of its errors if there are any,
// on one line and without what looks like a secret; "" when it can't be had.
func (r *Runner) lastWords(ctx context.Context, alloc string) string {
	ctx, cancel := context.WithTimeout(ctx, lastWait)
	defer cancel()
	for _, stream := range []string{"stderr", "stdout"} {
		log, err := r.openLog(ctx, alloc, stream, logPlace{origin: "end", offset: lastBytes}, false)
		if err != nil {
			r.log.Debug("the log of a task that ended can't be read", "error", err)
			return ""
		}
		text, err := io.ReadAll(io.LimitReader(log, lastBytes))
		_ = log.Close() // read to its end
		if line := oneLine(string(text)); err == nil && line != "" {
			return line
		}
	}
	return ""
}

// oneLine joins the last lines of a text that may begin within a character, or
// within a secret.
func oneLine(text string) string {
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(text, "")), "\n")
	if len(text) >= lastBytes && len(lines) > 1 {
		lines = lines[1:]
	}
	lines = lines[max(0, len(lines)-lastLines):]
	return mask(strings.Join(strings.Fields(strings.Join(lines, " | ")), " "))
}

// mask hides long words of letters and digits, as keys and tokens are: the
// detail of a failure is stored and logged. Ids may stay.
func mask(text string) string {
	word, id := regexp.MustCompile(`[A-Za-z0-9_-]{24,}`), regexp.MustCompile(`^(sandbox-)?([0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)
	return word.ReplaceAllStringFunc(text, func(w string) string {
		if !strings.ContainsAny(w, "0123456789") || id.MatchString(w) {
			return w
		}
		return "**********"
	})
}

package nomad

import (
	"context"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler"
)

// How much of a crashed task's log its failure contains, how long reading it may take, how long
// it is kept, and how many logs are read at a time and queued.
const (
	lastBytes     = 2 << 10
	lastLines     = 5
	lastWait      = time.Second
	lastMemory    = 5 * time.Minute
	readersAtOnce = 4
	maxReading    = 256
)

// explained adds the end of the task's log to the failure of a crash, as far as it was read.
// known is false while it is still to be read.
func (r *Runner) explained(o scheduler.Observed, alloc string) (with scheduler.Observed, known bool) {
	if o.Failure == nil || o.Failure.Reason != fsm.ReasonCrashed || alloc == "" {
		return o, true
	}
	words, known := r.words.Get(alloc)
	if words != "" {
		o.Failure = &scheduler.Failure{Reason: o.Failure.Reason, Detail: o.Failure.Detail + "; it last wrote: " + words}
	}
	return o, known
}

// readers reads the logs of crashed tasks beside a watch, some at a time. A client that does not
// respond delays only the news of its own crashes. Only the watch's goroutine uses it.
type readers struct {
	r     *Runner
	queue chan crash
	// read returns the crashes whose log was read.
	read chan crash
	// asked has the allocations whose log is being read. waits is until when a job's crash is not
	// reported because its log may come.
	asked map[string]bool
	waits map[string]time.Time
	wg    sync.WaitGroup
}

// crash is an allocation of a job.
type crash struct{ job, alloc string }

// newReaders makes readers that end with ctx.
func (r *Runner) newReaders(ctx context.Context) *readers {
	rs := &readers{
		r: r, queue: make(chan crash, maxReading), read: make(chan crash), asked: map[string]bool{},
		waits: map[string]time.Time{},
	}
	for range readersAtOnce {
		rs.wg.Go(func() { rs.run(ctx) })
	}
	return rs
}

func (rs *readers) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-rs.queue:
			words := rs.r.crashLog(ctx, c.alloc)
			if ctx.Err() != nil {
				return
			}
			rs.r.words.Add(c.alloc, words)
			select {
			case rs.read <- c:
			case <-ctx.Done():
				return
			}
		}
	}
}

// ask requests the log of a crash and reports whether its report should wait for it.
func (rs *readers) ask(c crash) bool {
	if !rs.asked[c.alloc] {
		select {
		case rs.queue <- c:
			rs.asked[c.alloc] = true
			rs.waits[c.job] = time.Now().Add(lastWait)
		default:
			return false
		}
	}
	return time.Now().Before(rs.waits[c.job])
}

// over returns the jobs that have waited long enough.
func (rs *readers) over() (jobs []string) {
	for job, until := range rs.waits {
		if !time.Now().Before(until) {
			delete(rs.waits, job)
			jobs = append(jobs, job)
		}
	}
	return jobs
}

// crashLog returns the end of the task's output, of its errors if there are any, on one line and
// without what looks like a secret; "" when it can't be read.
func (r *Runner) crashLog(ctx context.Context, alloc string) string {
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

// oneLine joins the last lines of a text that may begin within a character or a secret.
func oneLine(text string) string {
	if _, rest, more := strings.Cut(strings.TrimSpace(text), "\n"); more && len(text) >= lastBytes {
		text = rest
	}
	return mask(decode.LastLines(text, lastLines))
}

// mask hides long words of letters and digits, such as keys and tokens: the detail of a failure
// is stored and logged. Ids may stay.
func mask(text string) string {
	word, id := regexp.MustCompile(`[A-Za-z0-9_-]{24,}`), regexp.MustCompile(`^(sandbox-)?([0-9a-f]{32}|[0-9a-f]{8}`+
		`(-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)
	return word.ReplaceAllStringFunc(text, func(w string) string {
		if !strings.ContainsAny(w, "0123456789") || id.MatchString(w) {
			return w
		}
		return "**********"
	})
}

package nomad

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

var _ scheduler.Logs = (*Runner)(nil)

// What Nomad keeps of each stream of a task, and the number of empty heartbeats that end a log.
const (
	logFiles      = 3
	logFileMB     = 5
	maxLogBytes   = logFiles * logFileMB << 20
	logHeartbeats = 2
)

// Logs implements scheduler.Logs with Nomad's file API through its servers: a node of ours need
// not reach the Nomad clients.
func (r *Runner) Logs(ctx context.Context, job scheduler.Job, part scheduler.LogPart) (io.ReadCloser, error) {
	stream, tail := part.Stream, part.Tail
	if stream != "stdout" && stream != "stderr" {
		return nil, fsm.Errorf(fsm.CodeInvalid, "a task has the streams stdout and stderr, not %q", stream)
	}
	alloc, err := r.runOf(ctx, job, part.Previous)
	if err != nil {
		return nil, err
	}
	follow := part.Follow && !ended(alloc.ClientStatus)
	place := logPlace{origin: "start"}
	switch {
	case tail > 0:
		place = logPlace{origin: "end", offset: tail}
	case tail == 0 && !follow:
		return io.NopCloser(strings.NewReader("")), nil
	case tail == 0:
		if place, err = r.logEnd(ctx, alloc.ID, stream); err != nil {
			return nil, noLogs(job, err)
		}
	}
	lr, err := r.openLog(ctx, alloc.ID, stream, place, follow)
	return lr, noLogs(job, err)
}

// runOf returns the allocation whose log it is: the newest one, or the one before. A stopped job
// still has its allocations, until Nomad collects them as garbage.
func (r *Runner) runOf(ctx context.Context, job scheduler.Job, previous bool) (*api.AllocationListStub, error) {
	id := jobID(job.SandboxID)
	cur, err := r.info(ctx, id)
	if err != nil {
		return nil, err
	}
	if cur == nil || !ours(cur, job.ClusterID, job.SandboxID) {
		return nil, fsm.Errorf(fsm.CodeNotFound, "there is no job of sandbox %s", job.SandboxID)
	}
	allocs, err := r.allocations(ctx, id)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(allocs, func(a, b *api.AllocationListStub) int { return cmp.Compare(b.CreateIndex, a.CreateIndex) })
	switch {
	case previous && len(allocs) > 1:
		return allocs[1], nil
	case previous:
		return nil, fsm.Errorf(fsm.CodeNotFound, "there is no earlier run of sandbox %s", job.SandboxID)
	case len(allocs) == 0:
		return nil, noLogs(job, errNotFound)
	}
	return allocs[0], nil
}

// allocations lists those of a job that Nomad still has; none is not an error.
func (r *Runner) allocations(ctx context.Context, id string) ([]*api.AllocationListStub, error) {
	var allocs []*api.AllocationListStub
	err := r.call(ctx, "list job's allocations", func(ctx context.Context) error {
		var err error
		allocs, _, err = r.client.Jobs().Allocations(id, false, query(ctx))
		return err
	})
	if errors.Is(err, errNotFound) {
		return nil, nil
	}
	return allocs, err
}

// noLogs maps errNotFound to the caller's CodeNotFound.
func noLogs(job scheduler.Job, err error) error {
	if errors.Is(err, errNotFound) {
		return fsm.Errorf(fsm.CodeNotFound, "there are no logs of sandbox %s", job.SandboxID)
	}
	return err
}

func ended(clientStatus string) bool {
	switch clientStatus {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	}
	return false
}

// logEnd returns where a stream ends now. Nomad's "0 from the end" is the begin of its newest file,
// so it is one byte before the end, where there is one. Only its log API takes read-logs: to list the
// files would need read-fs.
func (r *Runner) logEnd(ctx context.Context, alloc, stream string) (logPlace, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
	defer cancel()
	last := logPlace{origin: "end", offset: 1, skip: 1}
	lr, err := r.openLog(ctx, alloc, stream, last, false)
	if err != nil {
		return logPlace{}, err
	}
	defer lr.Close()
	switch _, err := io.ReadFull(lr, make([]byte, 1)); {
	case errors.Is(err, io.EOF):
		return logPlace{origin: "start"}, nil
	case err != nil:
		return logPlace{}, err
	}
	return last, nil
}

// logPlace is where reading begins: an offset in bytes from the start or the end of what is kept.
// skip is how many bytes from there a follower leaves out.
type logPlace struct {
	origin string
	offset int64
	skip   int
}

// openLog opens the stream of frames; CallTimeout bounds the opening, ctx the reading. A task
// that has not started is errNotFound.
func (r *Runner) openLog(ctx context.Context, alloc, stream string, at logPlace, follow bool) (io.ReadCloser, error) {
	own, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(r.cfg.CallTimeout, func() { cancel(errors.New("no answer in time")) })
	params := url.Values{
		"task": {taskName}, "type": {stream}, "follow": {strconv.FormatBool(follow)},
		"origin": {at.origin}, "offset": {strconv.FormatInt(at.offset, 10)},
	}
	body, err := r.client.Raw().Response("/v1/client/fs/logs/"+url.PathEscape(alloc)+"?"+params.Encode(), query(own))
	if !timer.Stop() && err == nil {
		_ = body.Close() // it came too late
		err = context.Cause(own)
	}
	if err != nil {
		cancel(nil)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err = r.deniedLog(mapError(opReadLog, err)); says(err, "unknown task name") {
			err = fmt.Errorf("nomad: read log: %w", errNotFound)
		}
		return nil, err
	}
	text := bufio.NewReader(body)
	lr := &logReader{
		outer:  ctx,
		cancel: cancel,
		body:   body,
		text:   text,
		dec:    json.NewDecoder(text),
		follow: follow,
		left:   maxLogBytes,
		denied: r.deniedLog,
	}
	if follow {
		lr.over, lr.skip = make(chan struct{}), at.skip
		lr.watch.Go(func() { r.awaitEnd(own, alloc, lr.over) })
	}
	return lr, nil
}

// deniedLog adds the missing permission to a *scheduler.Denied.
func (r *Runner) deniedLog(err error) error {
	if denied := (*scheduler.Denied)(nil); errors.As(err, &denied) {
		denied.Path, denied.Capability = r.cfg.missing(opReadLog)
	}
	return err
}

// awaitEnd closes over when the allocation has ended or is gone.
func (r *Runner) awaitEnd(ctx context.Context, alloc string, over chan<- struct{}) {
	var index uint64
	for ctx.Err() == nil {
		q := query(ctx)
		q.WaitIndex, q.WaitTime = index, time.Minute
		a, meta, err := r.client.Allocations().Info(alloc, q)
		switch {
		case err == nil && ended(a.ClientStatus), errors.Is(mapError("read allocation", err), errNotFound):
			close(over)
			return
		case err == nil:
			index = meta.LastIndex
		default:
			pause(ctx, time.Second)
		}
	}
}

// logReader turns Nomad's frames into bytes. One goroutine calls Read; any may call Close.
type logReader struct {
	outer  context.Context //nolint:containedctx // a reader's life is its caller's
	cancel context.CancelCauseFunc
	body   io.Closer
	text   *bufio.Reader // what dec reads
	dec    *json.Decoder
	rest   []byte
	follow bool
	// skip is how many bytes are still left out.
	skip int
	// denied completes the error of a missing permission; opened says that there was a frame.
	denied func(error) error
	opened bool
	// left bounds what is read without follow, in bytes: a task can write faster than we read.
	left int64
	// over is closed when the task has ended. Nomad's stream continues even then; two heartbeats,
	// a second apart, without data between them are the end.
	over  chan struct{}
	quiet int

	watch  sync.WaitGroup
	once   sync.Once
	closed bool
	mu     sync.Mutex
}

// Read implements io.Reader.
func (l *logReader) Read(p []byte) (int, error) {
	for len(l.rest) == 0 {
		if len(p) == 0 {
			return 0, nil
		}
		var f api.StreamFrame
		if err := l.refused(); err != nil {
			return 0, err
		}
		if err := l.dec.Decode(&f); err != nil {
			return 0, l.broken(err)
		}
		if l.rest = f.Data; len(l.rest) > 0 {
			n := min(l.skip, len(l.rest))
			l.rest, l.skip = l.rest[n:], l.skip-n
			l.quiet = 0
		} else if l.finished() {
			return 0, io.EOF
		}
	}
	if l.follow {
		n := copy(p, l.rest)
		l.rest = l.rest[n:]
		return n, nil
	}
	if l.left <= 0 {
		return 0, io.EOF
	}
	n := copy(p, l.rest[:min(int64(len(l.rest)), l.left)])
	l.rest = l.rest[n:]
	l.left -= int64(n)
	return n, nil
}

// refused returns Nomad's refusal, which can be a 200 with the error as its text.
func (l *logReader) refused() error {
	if l.opened {
		return nil
	}
	l.opened = true
	begin, err := l.text.Peek(len(textDenied))
	if err != nil || string(begin) != textDenied {
		return nil // reading reports what is wrong
	}
	return l.denied(&scheduler.Denied{Detail: "Nomad: " + opReadLog + ": " + textDenied})
}

// finished counts a heartbeat and reports whether it is the end.
func (l *logReader) finished() bool {
	if l.ended() {
		l.quiet++
	}
	return l.quiet >= logHeartbeats
}

func (l *logReader) ended() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}

// broken returns why there are no more frames.
func (l *logReader) broken(err error) error {
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	switch {
	case closed:
		return fs.ErrClosed
	case l.outer.Err() != nil:
		return l.outer.Err()
	case errors.Is(err, io.EOF) && (!l.follow || l.ended()):
		return io.EOF
	}
	return fsm.Errorf(fsm.CodeScheduler, "Nomad's log stream broke: %v", err)
}

// Close implements io.Closer. It ends a waiting Read.
func (l *logReader) Close() error {
	l.once.Do(func() {
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		l.cancel(nil)
		_ = l.body.Close() // nothing reads it any more
		l.watch.Wait()
	})
	return nil
}

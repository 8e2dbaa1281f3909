package process

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

var _ scheduler.Logs = (*Runner)(nil)

// Logs implements scheduler.Logs. The newest run is read with what is kept of those before. A
// follower slower than the task misses output that the bounded files have dropped and continues
// with the oldest that is kept.
func (r *Runner) Logs(ctx context.Context, job scheduler.Job, part scheduler.LogPart) (io.ReadCloser, error) {
	r.mu.Lock()
	sb, closed := r.sandboxes[job.SandboxID], r.closed
	r.mu.Unlock()
	if closed {
		return nil, fsm.Errorf(fsm.CodeScheduler, "the process runner is closed")
	}
	if sb == nil {
		return nil, fsm.Errorf(fsm.CodeNotFound, "there is no job of sandbox %s", job.SandboxID)
	}
	if st := sb.snapshot(); st.SandboxID == "" || st.ClusterID != job.ClusterID {
		return nil, fsm.Errorf(fsm.CodeNotFound, "there is no job of sandbox %s", job.SandboxID)
	}
	var s *stream
	switch part.Stream {
	case "stdout":
		s = sb.out.stdout
	case "stderr":
		s = sb.out.stderr
	default:
		return nil, fsm.Errorf(fsm.CodeInvalid, "a task has the streams stdout and stderr, not %q", part.Stream)
	}
	if !part.Previous {
		return s.reader(ctx, part.Tail, part.Follow), nil
	}
	if sb.out.runs() < 2 {
		return nil, fsm.Errorf(fsm.CodeNotFound, "there is no earlier run of sandbox %s", job.SandboxID)
	}
	return s.formerReader(ctx, part.Tail), nil
}

// reader reads a stream from tail bytes before its end; see scheduler.LogPart.
func (s *stream) reader(ctx context.Context, tail int64, follow bool) io.ReadCloser {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readerOf(ctx, s.base-s.old, s.base+s.size, tail, follow)
}

// formerReader reads what the run before the newest one wrote.
func (s *stream) formerReader(ctx context.Context, tail int64) io.ReadCloser {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readerOf(ctx, max(s.formerBegan, s.base-s.old), s.began, tail, false)
}

// readerOf reads the positions from first to end.
func (s *stream) readerOf(ctx context.Context, first, end, tail int64, follow bool) io.ReadCloser {
	r := &streamReader{ctx: ctx, s: s, at: first, until: end, follow: follow, closed: make(chan struct{})}
	if tail >= 0 {
		r.at = max(first, end-tail)
	}
	return r
}

// streamReader is one caller's position in a stream. at needs no lock: one goroutine calls
// Read, any may call Close.
type streamReader struct {
	ctx    context.Context //nolint:containedctx // a reader's life is its caller's
	s      *stream
	at     int64
	until  int64 // where to end without follow
	follow bool

	once   sync.Once
	closed chan struct{}
}

// Read implements io.Reader.
func (r *streamReader) Read(p []byte) (int, error) {
	for {
		if err := r.ended(); err != nil {
			return 0, err
		}
		n, changed, err := r.look(p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		select {
		case <-changed:
		case <-r.ctx.Done():
		case <-r.closed:
		}
	}
}

func (r *streamReader) ended() error {
	select {
	case <-r.closed:
		return fs.ErrClosed
	case <-r.ctx.Done():
		return r.ctx.Err()
	default:
		return nil
	}
}

// look reads what is available. With nothing available it returns a channel to wait for.
func (r *streamReader) look(p []byte) (n int, changed <-chan struct{}, err error) {
	s := r.s
	s.mu.Lock()
	defer s.mu.Unlock()
	r.at = max(r.at, s.base-s.old)
	end := s.base + s.size
	if !r.follow {
		end = min(end, r.until)
	}
	if r.at >= end {
		if !r.follow || !s.running {
			return 0, nil, io.EOF
		}
		return 0, s.changed, nil
	}
	path, from, upTo := s.path, r.at-s.base, end-s.base
	if r.at < s.base {
		path, from, upTo = s.former(), r.at-(s.base-s.old), min(s.old, end-(s.base-s.old))
	}
	n, err = readAt(path, p[:min(int64(len(p)), upTo-from)], from)
	r.at += int64(n)
	return n, nil, err
}

// readAt reads from a file. If the file was deleted with its sandbox it returns io.EOF.
func readAt(path string, p []byte, from int64) (int, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, io.EOF
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n, err := f.ReadAt(p, from)
	if n > 0 {
		return n, nil
	}
	return 0, err
}

// Close implements io.Closer. It ends a waiting Read.
func (r *streamReader) Close() error {
	r.once.Do(func() { close(r.closed) })
	return nil
}

package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"bivouac.dev/bivouac/httpapi/decode"
)

const tailBytes = 2 << 10

// output stores what a sandbox's task writes over all its runs: each stream in files, and the
// end of both together in memory.
type output struct {
	dir            string
	stdout, stderr *stream

	mu   sync.Mutex
	tail []byte
	// started counts the runs, with one for those of an earlier program.
	started int
}

// runs returns how many runs there were.
func (o *output) runs() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.started
}

// newOutput keeps at most limit bytes on disk. It creates no file; the output of an earlier
// program stays readable.
func newOutput(dir string, limit int64) *output {
	o := &output{dir: dir}
	// Each of the two streams has two files.
	o.stdout = newStream(filepath.Join(dir, "stdout.log"), max(limit/4, 1))
	o.stderr = newStream(filepath.Join(dir, "stderr.log"), max(limit/4, 1))
	if o.stdout.size+o.stderr.size > 0 {
		o.started = 1
	}
	return o
}

// open opens the files for a run.
func (o *output) open() error {
	o.mu.Lock()
	o.tail = nil
	o.started++
	o.mu.Unlock()
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return err
	}
	err := o.stdout.start()
	if err == nil {
		err = o.stderr.start()
	}
	if err != nil {
		o.close()
	}
	return err
}

// close ends the run's writing. Followers read the rest and get io.EOF.
func (o *output) close() {
	o.stdout.end()
	o.stderr.end()
}

// outputWriter is one stream of a run.
type outputWriter struct {
	o *output
	s *stream
}

// Write never fails: a full disk must not stop the task.
func (w outputWriter) Write(p []byte) (int, error) {
	w.o.mu.Lock()
	w.o.tail = append(w.o.tail, p...)
	if n := len(w.o.tail); n > tailBytes {
		w.o.tail = append(w.o.tail[:0], w.o.tail[n-tailBytes:]...)
	}
	w.o.mu.Unlock()
	w.s.write(p)
	return len(p), nil
}

// last returns the end of the output on one line, without the given secrets.
func (o *output) last(secrets ...string) string {
	o.mu.Lock()
	text := strings.ToValidUTF8(string(o.tail), "")
	o.mu.Unlock()
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "**********")
		}
	}
	return decode.LastLines(text, 5)
}

// stream is one stream in a file that is rotated at the limit; the previous file is kept.
// Positions count from the stream's beginning, so a reader keeps its position over a rotation.
type stream struct {
	path  string
	limit int64

	mu sync.Mutex
	// file is open while there is something to write to. running: a run may write.
	file    *os.File
	running bool
	// The previous file holds positions base-old to base, the current one base to base+size.
	base, old, size int64
	// began is the position at which the newest run began, formerBegan that of the run before.
	began, formerBegan int64
	// changed is closed and replaced at every change.
	changed chan struct{}
}

func newStream(path string, limit int64) *stream {
	s := &stream{path: path, limit: limit, changed: make(chan struct{})}
	if st, err := os.Stat(s.former()); err == nil {
		s.old = st.Size()
		s.base = s.old
	}
	if st, err := os.Stat(path); err == nil {
		s.size = st.Size()
	}
	return s
}

func (s *stream) former() string { return s.path + ".1" }

func (s *stream) start() error {
	f, err := os.OpenFile(s.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file, s.size, s.running = f, st.Size(), true
	s.began, s.formerBegan = s.base+s.size, s.began
	return nil
}

func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		_ = s.file.Close() // no data is buffered
		s.file = nil
	}
	s.running = false
	s.wake()
}

// wake notifies the readers. The caller holds mu.
func (s *stream) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *stream) write(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rest := p; len(rest) > 0 && s.file != nil; {
		if s.size >= s.limit {
			s.turn()
			continue
		}
		n, err := s.file.Write(rest[:min(int64(len(rest)), s.limit-s.size)])
		s.size += int64(n)
		rest = rest[n:]
		if err != nil {
			break
		}
	}
	s.wake()
}

// turn rotates the files. The caller holds mu.
func (s *stream) turn() {
	_ = s.file.Close() // no data is buffered
	s.file = nil
	if err := os.Rename(s.path, s.former()); err != nil {
		return
	}
	s.base, s.old, s.size = s.base+s.size, s.size, 0
	if f, err := os.OpenFile(s.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600); err == nil {
		s.file = f
	}
}

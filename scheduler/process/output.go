package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

const tailBytes = 2 << 10

// output keeps what a sandbox's task writes, over all its runs: its two
// streams in files, and the end of both together in memory.
type output struct {
	dir            string
	stdout, stderr *stream

	mu   sync.Mutex
	tail []byte
}

// newOutput keeps at most limit bytes on disk. It makes nothing; what an
// earlier program has kept can be read.
func newOutput(dir string, limit int64) *output {
	o := &output{dir: dir}
	// Two streams of two files each.
	o.stdout = newStream(filepath.Join(dir, "stdout.log"), max(limit/4, 1))
	o.stderr = newStream(filepath.Join(dir, "stderr.log"), max(limit/4, 1))
	return o
}

// open lets a run write.
func (o *output) open() error {
	o.mu.Lock()
	o.tail = nil
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

// close ends the run's writing; whoever follows reads the rest and is done.
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

// last gives the end of the output without the given secrets, on one line.
func (o *output) last(secrets ...string) string {
	o.mu.Lock()
	text := strings.ToValidUTF8(string(o.tail), "")
	o.mu.Unlock()
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "**********")
		}
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) > 5 {
		lines = lines[len(lines)-5:]
	}
	return strings.Join(strings.Fields(strings.Join(lines, " | ")), " ")
}

// stream is one stream in a file that is begun anew when it has grown to the
// limit; the former one stays beside it. Places in the stream are counted from
// its beginning, so that a reader keeps its place while the files turn.
type stream struct {
	path  string
	limit int64

	mu sync.Mutex
	// file is open while there is something to write to, running while a run
	// may write.
	file    *os.File
	running bool
	// The former file holds the places from base-old to base, the current one
	// those from base to base+size.
	base, old, size int64
	// changed is closed and made anew with every change.
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
	return nil
}

func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		_ = s.file.Close() // nothing buffered is lost, and nobody to tell
		s.file = nil
	}
	s.running = false
	s.wake()
}

// wake tells the readers. The caller holds mu.
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

// turn begins a new file. The caller holds mu.
func (s *stream) turn() {
	_ = s.file.Close() // nothing buffered is lost, and nobody to tell
	s.file = nil
	if err := os.Rename(s.path, s.former()); err != nil {
		return
	}
	s.base, s.old, s.size = s.base+s.size, s.size, 0
	if f, err := os.OpenFile(s.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600); err == nil {
		s.file = f
	}
}

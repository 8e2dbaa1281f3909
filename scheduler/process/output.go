package process

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
)

const tailBytes = 2 << 10

// output keeps a task's output: in a file that is begun anew when it has grown
// to half the bound (the former half stays beside it), and its end in memory.
type output struct {
	path  string
	limit int64

	mu   sync.Mutex
	file *os.File
	size int64
	tail []byte
}

func openOutput(dir string, limit int64) (*output, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	o := &output{path: filepath.Join(dir, "task.log"), limit: max(limit/2, 1)}
	f, err := os.OpenFile(o.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	o.file = f
	if st, err := f.Stat(); err == nil {
		o.size = st.Size()
	}
	return o, nil
}

// Write never fails: a full disk must not stop the task.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tail = append(o.tail, p...)
	if n := len(o.tail); n > tailBytes {
		o.tail = append(o.tail[:0], o.tail[n-tailBytes:]...)
	}
	for rest := p; len(rest) > 0 && o.file != nil; {
		if o.size >= o.limit {
			o.turn()
			continue
		}
		n, err := o.file.Write(rest[:min(int64(len(rest)), o.limit-o.size)])
		o.size += int64(n)
		rest = rest[n:]
		if err != nil {
			break
		}
	}
	return len(p), nil
}

// turn begins a new file. The caller holds mu.
func (o *output) turn() {
	_ = o.file.Close() // nothing buffered is lost, and nobody to tell
	o.file, o.size = nil, 0
	if err := os.Rename(o.path, o.path+".1"); err != nil {
		return
	}
	if f, err := os.OpenFile(o.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600); err == nil {
		o.file = f
	}
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

func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file != nil {
		_ = o.file.Close() // nothing buffered is lost, and nobody to tell
		o.file = nil
	}
}

package httpapi

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"strings"
	"sync"
)

// taskStream is one of the streams of a task, by its name.
type taskStream struct {
	name string
	log  io.ReadCloser
}

// joinStreams returns the streams one after the other. Where more than one has output, each begins
// with a header, as tail(1) prints it for several files.
func joinStreams(streams []taskStream) (io.ReadCloser, error) {
	joined := joinedStreams{streams: streams}
	var parts []io.Reader
	for _, s := range streams {
		buffered := bufio.NewReader(s.log)
		switch _, err := buffered.Peek(1); {
		case errors.Is(err, io.EOF):
		case err != nil:
			return nil, errors.Join(err, joined.Close())
		default:
			parts = append(parts, strings.NewReader(streamHeader(s.name, len(parts) == 0)), buffered)
		}
	}
	if len(parts) == 2 {
		parts = parts[1:]
	}
	joined.Reader = io.MultiReader(parts...)
	return joined, nil
}

// streamHeader introduces the output of a stream.
func streamHeader(name string, first bool) string {
	header := "==> " + name + " <==\n"
	if !first {
		header = "\n" + header
	}
	return header
}

type joinedStreams struct {
	io.Reader
	streams []taskStream
}

// Close implements io.Closer.
func (j joinedStreams) Close() error {
	var errs []error
	for _, s := range j.streams {
		errs = append(errs, s.log.Close())
	}
	return errors.Join(errs...)
}

// followedStreams are several streams as they are written, by whole lines. A header says where the
// output changes from one stream to another. One goroutine calls Read; any may call Close.
type followedStreams struct {
	streams []taskStream
	chunks  chan streamChunk
	closed  chan struct{}
	once    sync.Once
	readers sync.WaitGroup

	// open counts the streams that have not ended, last is the stream that was read last.
	open int
	last string
	rest []byte
}

// streamChunk is a part of a stream, or its end.
type streamChunk struct {
	name string
	data []byte
	err  error
}

func followStreams(streams []taskStream) *followedStreams {
	f := &followedStreams{
		streams: streams,
		chunks:  make(chan streamChunk),
		closed:  make(chan struct{}),
		open:    len(streams),
	}
	for _, s := range streams {
		f.readers.Go(func() { f.read(s) })
	}
	return f
}

// read sends what a stream has until it ends.
func (f *followedStreams) read(s taskStream) {
	var kept []byte
	chunk := make([]byte, logChunk)
	for {
		n, err := s.log.Read(chunk)
		kept = append(kept, chunk[:n]...)
		whole := bytes.LastIndexByte(kept, '\n') + 1
		if err != nil || len(kept)-whole >= logChunk {
			whole = len(kept)
		}
		if whole > 0 && !f.send(streamChunk{name: s.name, data: bytes.Clone(kept[:whole])}) {
			return
		}
		kept = append(kept[:0], kept[whole:]...)
		if err != nil {
			f.send(streamChunk{name: s.name, err: err})
			return
		}
	}
}

func (f *followedStreams) send(c streamChunk) bool {
	select {
	case f.chunks <- c:
		return true
	case <-f.closed:
		return false
	}
}

// Read implements io.Reader.
func (f *followedStreams) Read(p []byte) (int, error) {
	for len(f.rest) == 0 {
		if f.open == 0 {
			return 0, io.EOF
		}
		select {
		case c := <-f.chunks:
			if c.err != nil && !errors.Is(c.err, io.EOF) {
				return 0, c.err
			}
			if c.err != nil {
				f.open--
				continue
			}
			if f.rest = c.data; f.last != "" && f.last != c.name {
				f.rest = append([]byte(streamHeader(c.name, false)), c.data...)
			}
			f.last = c.name
		case <-f.closed:
			return 0, fs.ErrClosed
		}
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

// Close implements io.Closer. It ends a waiting Read.
func (f *followedStreams) Close() (err error) {
	f.once.Do(func() {
		close(f.closed)
		err = joinedStreams{streams: f.streams}.Close()
		f.readers.Wait()
	})
	return err
}

package snapshotfile

import (
	"context"
	"hash"
	"io"
)

// meter counts and hashes what is written through it. It fails with ctx's error. hash and ctx may
// be nil.
type meter struct {
	w    io.Writer
	hash hash.Hash
	ctx  context.Context
	n    int64
}

// Write implements io.Writer.
func (m *meter) Write(b []byte) (int, error) {
	if m.ctx != nil && m.ctx.Err() != nil {
		return 0, m.ctx.Err()
	}
	n, err := m.w.Write(b)
	if m.hash != nil {
		m.hash.Write(b[:n])
	}
	m.n += int64(n)
	return n, err
}

// source counts what is read through it and keeps the first error that is not io.EOF.
type source struct {
	r   io.Reader
	n   int64
	err error
}

// Read implements io.Reader.
func (s *source) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	s.n += int64(n)
	if err != nil && err != io.EOF && s.err == nil {
		s.err = err
	}
	return n, err
}

package proxy

import "sync"

// CopyBuffers implements httputil.BufferPool. The zero value is ready. Without it each response takes
// a buffer of its own.
type CopyBuffers struct{ pool sync.Pool }

// copyBuffer is the size that httputil.ReverseProxy copies with, in bytes.
const copyBuffer = 32 << 10

// Get implements httputil.BufferPool.
func (c *CopyBuffers) Get() []byte {
	if b, ok := c.pool.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, copyBuffer)
}

// Put implements httputil.BufferPool.
func (c *CopyBuffers) Put(b []byte) { c.pool.Put(&b) }

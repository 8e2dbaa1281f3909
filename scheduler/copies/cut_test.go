package copies_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/copies"
)

// A connection that ends within a manifest says nothing of the copy: the store is to be asked again.
func TestManifest_ConnectionEnds(t *testing.T) {
	t.Parallel()
	for _, sealed := range []bool{false, true} {
		t.Run(fmt.Sprintf("encrypted %t", sealed), func(t *testing.T) {
			b, keys := newBench(t), &keyring{}
			if sealed {
				keys.add(t)
			}
			b.with(keys)
			for i := range 2000 {
				b.write(manyName(i), []byte(manyName(i)))
			}
			c, _ := b.save(nil)
			var requests atomic.Int32
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
				if strings.HasSuffix(key, "manifest") && requests.Add(1) > 1 { // the first is for the checksum
					w = &cutting{w, 40_000}
				}
				http.ServeFile(w, r, filepath.Join(b.store, key))
			}))
			t.Cleanup(srv.Close)
			s, err := copies.Open(t.Context(), "s3://bucket?region=us-east-1&use_path_style=true&anonymous=true&endpoint="+
				url.QueryEscape(srv.URL), keys)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			if err := s.Load(t.Context(), "cl", "sb1", c, io.Discard); fsm.CodeOf(err) != fsm.CodeScheduler {
				t.Errorf("after %d requests: %v", requests.Load(), err)
			}
		})
	}
}

// cutting ends the connection after some bytes.
type cutting struct {
	http.ResponseWriter
	left int
}

// Write implements io.Writer.
func (c *cutting) Write(p []byte) (int, error) {
	if len(p) > c.left {
		_, _ = c.ResponseWriter.Write(p[:c.left])
		panic(http.ErrAbortHandler)
	}
	c.left -= len(p)
	return c.ResponseWriter.Write(p)
}

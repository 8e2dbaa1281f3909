package cluster

import (
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"bivouac.dev/bivouac/cluster/eventstore"
	"bivouac.dev/bivouac/fsm"
)

// countedFS counts the bytes that are read.
type countedFS struct {
	vfs.FS
	read *atomic.Int64
}

func (f countedFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.Open(name, opts...)
	return countedFile{file, f.read}, err
}

type countedFile struct {
	vfs.File
	read *atomic.Int64
}

func (f countedFile) ReadAt(p []byte, at int64) (int, error) {
	f.read.Add(int64(len(p)))
	return f.File.ReadAt(p, at)
}

// TestEventPage_AFilterReadsNoOtherBodies of 16 MB of them.
func TestEventPage_AFilterReadsNoOtherBodies(t *testing.T) {
	t.Parallel()
	fs := countedFS{vfs.NewMem(), new(atomic.Int64)}
	store := func() *eventstore.Store {
		s, err := eventstore.Open("events", eventstore.Options{FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s, chain := store(), fsm.ChainKey{1}.Begin()
	random := rand.NewChaCha8([32]byte{1})
	for i := range 4 {
		change := fsm.EventChange{UserID: "ada", ConversationID: "c1", Before: chain.Hash}
		for j := range 1000 {
			head, body := fsm.EventHead{ID: strconv.Itoa(1000*i + j), Kind: "ActionEvent"}, make([]byte, 4096)
			if _, err := random.Read(body); err != nil {
				t.Fatal(err)
			}
			if j == 500 {
				head.Kind = "MessageEvent"
			}
			stored := fsm.AppendEvent(nil, head, body)
			change.Events = append(change.Events, stored)
			chain = chain.Next(stored)
		}
		change.Chain = chain
		if err := s.Write(uint64(i+1), []fsm.EventChange{change}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = store()
	before, found := fs.read.Load(), 0
	page := &eventPage{ctx: t.Context(), end: chain.Number,
		query: EventQuery{Takes: func(h fsm.EventHead) bool { return h.Kind == "MessageEvent" }},
		fn:    func(_ uint64, stored []byte) bool { found += len(stored) / 4096; return true }}
	if err := page.readHere(s, chain.Key); err != nil || found != 4 || !page.done() {
		t.Errorf("%d events, at %d, %v", found, page.next, err)
	}
	if read := fs.read.Load() - before; read > 1<<20 || read == 0 {
		t.Errorf("%d bytes were read", read)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

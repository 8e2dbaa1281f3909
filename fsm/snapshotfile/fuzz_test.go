package snapshotfile

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"runtime/metrics"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// allocated returns how many bytes this process has allocated in total.
func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// FuzzLoad: reading any file ends in a state or an error and takes memory in proportion to the
// content. A state that was accepted can be written again and is the same.
func FuzzLoad(f *testing.F) {
	good := bytesOf(f, pack(f, seeded(f)))
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add(good[:block])
	f.Add(bytes.Repeat([]byte{0}, 4*block))
	f.Fuzz(func(t *testing.T, raw []byte) { readBounded(t, raw, len(raw)) })
}

// FuzzLoadSealed puts a manifest and a state into a file with correct hashes and lengths, as a
// faulty program would. The file may be accepted, and then its state must be usable.
func FuzzLoadSealed(f *testing.F) {
	m, state, err := stateOf(bytes.NewReader(bytesOf(f, pack(f, seeded(f)))))
	if err != nil {
		f.Fatal(err)
	}
	m.Parts = nil
	text, err := m.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text, state)
	f.Add([]byte(`{"kind":"bivouac-snapshot","format":1}`), state[:len(state)/2])
	f.Add([]byte(`{"kind":"bivouac-snapshot","format":2}`), []byte{})
	f.Add([]byte(`{}`), []byte("\n"))
	f.Fuzz(func(t *testing.T, manifest, state []byte) {
		var zipped bytes.Buffer
		zip, err := gzip.NewWriterLevel(&zipped, gzip.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = zip.Write(state)
		_ = zip.Close()
		sum := sha256.Sum256(zipped.Bytes())
		part := Part{
			Name:        PartState,
			SHA256:      hex.EncodeToString(sum[:]),
			Size:        int64(zipped.Len()),
			Encoding:    encodingGzip,
			ContentSize: int64(len(state)),
		}
		var whole map[string]any
		if json.Unmarshal(manifest, &whole) != nil || whole == nil {
			return
		}
		if _, own := whole["parts"]; !own {
			whole["parts"] = []Part{part}
		}
		header, err := json.Marshal(whole)
		if err != nil {
			return
		}
		p := &Packed{manifest: Manifest{Parts: []Part{part}}, header: header, scratch: bytes.NewReader(zipped.Bytes())}
		var b bytes.Buffer
		if _, err := p.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		readBounded(t, b.Bytes(), b.Len()+len(state))
	})
}

// readBounded loads a file of which size bytes are content.
func readBounded(t *testing.T, raw []byte, size int) {
	t.Helper()
	before := allocated()
	m, state, err := stateOf(bytes.NewReader(raw))
	if used := allocated() - before; used > 16<<20+2048*uint64(size) {
		t.Fatalf("%d bytes took %d bytes to read", size, used)
	}
	loaded, trial, loadErr := Load(bytes.NewReader(raw))
	if err != nil {
		if loadErr == nil {
			t.Fatalf("it was loaded, and refused: %v", err)
		}
		return
	}
	if loadErr != nil {
		return
	}
	if !cmp.Equal(m, loaded) || trial.View.Index() != m.Index || int64(len(state)) != m.State().ContentSize {
		t.Fatalf("%+v and %+v", m, loaded)
	}
}

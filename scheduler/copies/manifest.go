package copies

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"

	"filippo.io/age"
	"gocloud.dev/blob"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/archive"
)

// A manifest is gzip of JSON values: a head, an item for each entry in their order, and a tail. All
// of that is encrypted, except in a copy from before the cluster had a key.
const manifestFormat = 1

type head struct {
	Format  int    `json:"format"`
	Cluster string `json:"cluster"`
	Sandbox string `json:"sandbox"`
	Copy    string `json:"copy"`
}

// item is an entry with its content, or the tail.
type item struct {
	*archive.Entry
	Parts []part `json:"d,omitempty"`
	// End is the number of the entries before it, in the tail.
	End int64 `json:"end,omitempty"`
}

// part is a piece of content in an object. Sum is its SHA-256.
type part struct {
	// Object is <copy>/data-<number>, and .age if it is encrypted.
	Object string `json:"o"`
	Offset int64  `json:"f,omitempty"`
	Length int64  `json:"n"`
	Sum    []byte `json:"x"`
}

// manifestWriter writes a manifest into the store.
type manifestWriter struct {
	out    *blob.Writer
	sum    hash.Hash
	seal   io.WriteCloser
	gz     *gzip.Writer
	enc    *json.Encoder
	cancel context.CancelFunc
	items  int64
}

func (s *Store) newManifest(ctx context.Context, h head, to age.Recipient) (*manifestWriter, error) {
	ctx, cancel := context.WithCancel(ctx)
	key := dirOf(h.Cluster, h.Sandbox, h.Copy) + manifestName
	out, err := s.bucket.NewWriter(ctx, key, nil)
	if err != nil {
		cancel()
		return nil, unavailable("writing "+key, err)
	}
	w := &manifestWriter{out: out, sum: sha256.New(), cancel: cancel}
	if w.seal, err = seal(to, io.MultiWriter(out, w.sum)); err != nil {
		w.abandon()
		return nil, err
	}
	w.gz = gzip.NewWriter(w.seal)
	w.enc = json.NewEncoder(w.gz)
	return w, w.enc.Encode(h)
}

func (w *manifestWriter) add(i item) error {
	w.items++
	return w.enc.Encode(i)
}

// close completes the manifest and returns its checksum.
func (w *manifestWriter) close() (string, error) {
	defer w.cancel()
	end := item{Entry: &archive.Entry{}, End: w.items}
	err := errors.Join(w.enc.Encode(end), w.gz.Close(), w.seal.Close(), w.out.Close())
	if err != nil {
		return "", unavailable("writing a manifest", err)
	}
	return hex.EncodeToString(w.sum.Sum(nil)), nil
}

// abandon leaves no manifest behind.
func (w *manifestWriter) abandon() {
	w.cancel()
	_ = w.out.Close() // its context has ended
}

// manifest reads the items of a manifest in order.
type manifest struct {
	in  *source
	dec *json.Decoder
	n   int64
}

// source reads an object. It keeps what ended that: who decodes the content can't tell a store that
// failed from damage.
type source struct {
	*blob.Reader
	key string
	err error
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// unlessCut returns damage, or the error that ended the reading.
func (s *source) unlessCut(err error) error {
	if s.err != nil {
		return unavailable("reading "+s.key, s.err)
	}
	return damaged("the manifest %s: %w", s.key, err)
}

// checked checks the manifest of a copy against the checksum in the state, before any of it is used.
func (s *Store) checked(ctx context.Context, cluster, sandbox string, c fsm.Copy) error {
	key := dirOf(cluster, sandbox, c.ID) + manifestName
	r, err := s.bucket.NewReader(ctx, key, nil)
	if err != nil {
		return unavailable("reading "+key, err)
	}
	defer func() { _ = r.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		return unavailable("reading "+key, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != c.Sum {
		return fmt.Errorf("%w: the manifest %s has the checksum %.12s instead of %.12s", archive.ErrDamaged, key, got, c.Sum)
	}
	return nil
}

func (s *Store) openManifest(ctx context.Context, cluster, sandbox, id string) (*manifest, error) {
	key := dirOf(cluster, sandbox, id) + manifestName
	r, err := s.bucket.NewReader(ctx, key, nil)
	if err != nil {
		return nil, unavailable("reading "+key, err)
	}
	in := &source{Reader: r, key: key}
	plain, err := s.openedManifest(ctx, in)
	if fsm.CodeOf(err) == fsm.CodeSecretStore || errors.Is(err, context.Canceled) {
		_ = r.Close()
		return nil, err
	}
	m := &manifest{in: in}
	var gz *gzip.Reader
	if err == nil {
		gz, err = gzip.NewReader(plain)
	}
	var h head
	if err == nil {
		m.dec = json.NewDecoder(gz)
		err = m.dec.Decode(&h)
	}
	if err == nil && h != (head{manifestFormat, cluster, sandbox, id}) {
		err = fmt.Errorf("it is of format %d, of cluster %s and sandbox %s", h.Format, h.Cluster, h.Sandbox)
	}
	if err != nil {
		_ = r.Close()
		return nil, in.unlessCut(err)
	}
	return m, nil
}

// next returns the next item, and io.EOF after the last of a whole manifest.
func (m *manifest) next() (item, error) {
	var i item
	if err := m.dec.Decode(&i); err != nil {
		return i, m.in.unlessCut(err)
	}
	if i.Entry == nil || len(i.Path) == 0 {
		if i.End != m.n {
			return i, fmt.Errorf("%w: a manifest ends after %d of %d entries", archive.ErrDamaged, m.n, i.End)
		}
		return i, io.EOF
	}
	m.n++
	return i, nil
}

func (m *manifest) close() { _ = m.in.Close() }

// find returns the item with the path, reading on from where the manifest is.
func (m *manifest) find(path []byte) (item, error) {
	for {
		i, err := m.next()
		if errors.Is(err, io.EOF) {
			return i, fmt.Errorf("%w: %q is not in the earlier copy", archive.ErrDamaged, path)
		}
		if err != nil || bytes.Equal(i.Path, path) {
			return i, err
		}
	}
}

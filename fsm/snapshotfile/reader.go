package snapshotfile

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"

	"bivouac.dev/bivouac/fsm"
)

// Reader reads a file once, from beginning to end:
//
//	file, err := snapshotfile.Open(r)
//	// decide by file.Manifest() whether to go on
//	err = store.Restore(file.State())
//
// The end of State is the end of the file. io.EOF there means that the manifest, every part and the
// length are as they were written. Until State returns io.EOF nothing is verified.
type Reader struct {
	in       *source
	tar      *tar.Reader
	manifest Manifest
	// length is the length of the whole file according to its manifest.
	length int64
	sums   sums

	// Events, if set before State is read, gets the content of PartEvents. What it reads is verified only
	// at the end of State.
	Events func(io.Reader) error

	// parts are those not yet read. entry is the current one. state decompresses it if it is the
	// state.
	parts   []Part
	entry   *entry
	state   io.Reader
	content int64
	err     error
}

// entry is the current part.
type entry struct {
	part Part
	r    io.Reader
	hash hash.Hash
}

// Open reads the manifest. It refuses, with one of the Err values, a file that is not a snapshot
// file, that is truncated within the manifest, or that this program is too old for. The manifest is
// verified only at the end of State.
func Open(r io.Reader) (*Reader, error) {
	in := &source{r: r}
	f := &Reader{in: in, tar: tar.NewReader(in)}
	h, err := f.tar.Next()
	switch {
	case in.err != nil:
		return nil, fmt.Errorf("reading the file: %w", in.err)
	case in.n == 0:
		return nil, fmt.Errorf("%w: it is empty", ErrTruncated)
	case err != nil && in.n < block:
		return nil, fmt.Errorf("%w: it is only %d bytes long", ErrNotSnapshot, in.n)
	case err != nil || h.Name != nameManifest || h.Typeflag != tar.TypeReg:
		return nil, ErrNotSnapshot
	case h.Size > maxManifest:
		return nil, fmt.Errorf("%w: its manifest is %d bytes long", ErrDamaged, h.Size)
	}
	b, err := io.ReadAll(f.tar)
	if err != nil {
		return nil, f.broken("the manifest", err)
	}
	if f.manifest, err = decodeManifest(b); err != nil {
		return nil, err
	}
	f.sums.add(nameManifest, sha256.Sum256(b))
	f.parts = f.manifest.Parts
	f.length = sizeOf(len(b), f.parts)
	return f, nil
}

// Manifest returns the file's manifest.
func (f *Reader) Manifest() Manifest { return f.manifest }

// Length returns the length that the file must have, in bytes.
func (f *Reader) Length() int64 { return f.length }

// State returns the fsm snapshot, for fsm.Store.Restore. It ends with io.EOF when the whole file
// has been verified, else with an error that says what is wrong. It can be read once.
func (f *Reader) State() io.Reader { return stateReader{f} }

// Verify reads the file to its end without loading the state.
func (f *Reader) Verify() error {
	_, err := io.Copy(io.Discard, f.State())
	return err
}

type stateReader struct{ f *Reader }

// Read implements io.Reader.
func (s stateReader) Read(b []byte) (int, error) {
	f := s.f
	if f.err != nil {
		return 0, f.err
	}
	n, err := f.read(b)
	if err != nil {
		f.err = err
	}
	return n, err
}

// read reads the state, and verifies what comes before and after it.
func (f *Reader) read(b []byte) (int, error) {
	for f.state == nil {
		if len(f.parts) == 0 {
			return 0, f.end()
		}
		if err := f.open(); err != nil {
			return 0, err
		}
	}
	n, err := f.state.Read(b)
	f.content += int64(n)
	part := f.entry.part
	switch {
	case f.content > part.ContentSize:
		return 0, fmt.Errorf("%w: the state is longer than the %d bytes of its manifest", ErrDamaged, part.ContentSize)
	case err == nil:
		return n, nil
	case !errors.Is(err, io.EOF):
		return n, f.undecodable(err)
	}
	f.state = nil
	if err := f.finish(); err != nil {
		return n, err
	}
	if f.content != part.ContentSize {
		return n, fmt.Errorf("%w: the state is %d bytes long, its manifest says %d", ErrDamaged, f.content, part.ContentSize)
	}
	if n > 0 {
		return n, nil
	}
	return f.read(b)
}

// open starts the next part. It reads a part other than the state to its end.
func (f *Reader) open() error {
	part := f.parts[0]
	f.parts = f.parts[1:]
	h, err := f.tar.Next()
	if err != nil {
		return f.broken("part "+part.Name, err)
	}
	if h.Name != part.entry() || h.Size != part.Size || h.Typeflag != tar.TypeReg {
		return fmt.Errorf("%w: an entry %q of %d bytes stands where part %q should be", ErrDamaged, h.Name, h.Size, part.Name)
	}
	sum := sha256.New()
	f.entry = &entry{part: part, r: io.TeeReader(f.tar, sum), hash: sum}
	switch {
	case part.Name == PartEvents && f.Events != nil:
		return f.readEvents()
	case part.Name != PartState:
		return f.finish()
	}
	zip, err := gzip.NewReader(f.entry.r)
	if err != nil {
		return f.undecodable(err)
	}
	f.state = zip
	return nil
}

// readEvents hands the open part on.
func (f *Reader) readEvents() error {
	zip, err := gzip.NewReader(f.entry.r)
	if err != nil {
		return f.undecodable(err)
	}
	if err := f.Events(zip); err != nil {
		// A part that is not what was written is the cause.
		if cause := f.finish(); cause != nil {
			return cause
		}
		return err
	}
	return f.finish()
}

// finish reads the open part to its end and verifies it.
func (f *Reader) finish() error {
	part := f.entry.part
	if _, err := io.Copy(io.Discard, f.entry.r); err != nil {
		return f.broken("part "+part.Name, err)
	}
	if sum := hex.EncodeToString(f.entry.hash.Sum(nil)); sum != part.SHA256 {
		return fmt.Errorf("%w: the SHA-256 of part %q is %s, its manifest says %s", ErrDamaged, part.Name, sum, part.SHA256)
	}
	f.sums.addHex(part.entry(), part.SHA256)
	return nil
}

// undecodable returns the error for a state that can't be decompressed. Usually it is truncated, or
// its hash is wrong.
func (f *Reader) undecodable(err error) error {
	if cause := f.finish(); cause != nil {
		return cause
	}
	return fmt.Errorf("%w: part %q can't be decompressed: %w", ErrDamaged, f.entry.part.Name, err)
}

// end verifies what follows the parts. It returns io.EOF on success.
func (f *Reader) end() error {
	h, err := f.tar.Next()
	if err != nil {
		return f.broken(nameSums, err)
	}
	if h.Name != nameSums || h.Size != int64(f.sums.Len()) {
		return fmt.Errorf("%w: an entry %q of %d bytes stands where %s should be", ErrDamaged, h.Name, h.Size, nameSums)
	}
	var b strings.Builder
	if _, err := io.Copy(&b, f.tar); err != nil {
		return f.broken(nameSums, err)
	}
	if b.String() != f.sums.String() {
		return fmt.Errorf("%w: its manifest is not the one that %s names", ErrDamaged, nameSums)
	}
	if _, err := f.tar.Next(); !errors.Is(err, io.EOF) {
		if err == nil {
			return fmt.Errorf("%w: there is an entry behind %s", ErrDamaged, nameSums)
		}
		return f.broken("its end", err)
	}
	if _, err := io.CopyN(io.Discard, f.in, 1); !errors.Is(err, io.EOF) {
		if err == nil {
			return fmt.Errorf("%w: there is something behind its end", ErrDamaged)
		}
		return f.broken("its end", err)
	}
	if f.in.n != f.length {
		return f.broken("its end", io.ErrUnexpectedEOF)
	}
	return io.EOF
}

// broken classifies an error of the tar: a read error, a missing end, or damage.
func (f *Reader) broken(where string, err error) error {
	switch {
	case f.in.err != nil:
		return fmt.Errorf("reading the file: %w", f.in.err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		if f.length == 0 {
			return fmt.Errorf("%w: it ends within %s, after %d bytes", ErrTruncated, where, f.in.n)
		}
		return fmt.Errorf("%w: it ends within %s, after %d of %d bytes", ErrTruncated, where, f.in.n, f.length)
	}
	return fmt.Errorf("%w: %s: %w", ErrDamaged, where, err)
}

// Load reads a whole file, verifies it and loads its state on trial. A nil error means that this
// program can restore the state.
func Load(r io.Reader) (Manifest, *fsm.Trial, error) {
	f, err := Open(r)
	if err != nil {
		return Manifest{}, nil, err
	}
	m := f.manifest
	if m.ProtocolVersion > fsm.ProtocolVersion {
		return m, nil, fmt.Errorf("%w: its protocol version is %d and this program knows %d: upgrade it", ErrNewer,
			m.ProtocolVersion, fsm.ProtocolVersion)
	}
	if m.StateFormat > fsm.SnapshotFormat {
		return m, nil, fmt.Errorf("%w: the format of its state is %d and this program reads %d: upgrade it", ErrNewer,
			m.StateFormat, fsm.SnapshotFormat)
	}
	trial, err := fsm.TrialLoad(f.State())
	switch {
	case f.err != nil && !errors.Is(f.err, io.EOF):
		return m, nil, f.err
	case err != nil:
		return m, nil, fmt.Errorf("%w: its state can't be loaded: %w", ErrDamaged, err)
	}
	v := trial.View
	var history History
	if m.History != nil {
		history = *m.History
	}
	if h := v.History(); h.ID != history.ID || h.Epoch != history.Epoch {
		return m, nil, fmt.Errorf("%w: its manifest is not that of its state: history %q, epoch %d", ErrDamaged, h.ID,
			h.Epoch)
	}
	if v.ClusterID() != m.ClusterID || v.Index() != m.Index || v.Term() != m.Term ||
		v.ProtocolVersion() != m.ProtocolVersion {
		return m, nil, fmt.Errorf("%w: its manifest is not that of its state: "+
			"cluster %q index %d term %d protocol version %d",
			ErrDamaged, v.ClusterID(), v.Index(), v.Term(), v.ProtocolVersion())
	}
	return m, trial, nil
}

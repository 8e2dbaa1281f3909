package archive

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"
)

// The records of ours in the tar. The entry as JSON has what tar has no place for, and the sum at
// the end is of every entry and every byte of content.
const (
	recordEntry = "BIVOUAC.entry"
	recordSum   = "BIVOUAC.sum"
	recordSame  = "BIVOUAC.same"
)

// Writer writes a stream. Close completes it; a stream that is not closed is damaged.
type Writer struct {
	tar *tar.Writer
	sum hash.Hash
}

// NewWriter returns a Writer on w.
func NewWriter(w io.Writer) *Writer { return &Writer{tar: tar.NewWriter(w), sum: sha256.New()} }

// Entry begins an entry. The caller writes its content, e.Content bytes, before the next.
func (w *Writer) Entry(e *Entry) error {
	raw, err := encode(e)
	if err != nil {
		return err
	}
	h := &tar.Header{
		Format: tar.FormatPAX, Name: string(e.Path), Mode: e.Mode, Uid: e.UID, Gid: e.GID, ModTime: time.Unix(0, e.ModTime),
		Size: e.Content(), PAXRecords: map[string]string{recordEntry: string(raw)},
	}
	switch e.Kind {
	case KindFile:
		h.Typeflag = tar.TypeReg
	case KindDir:
		h.Typeflag = tar.TypeDir
	case KindSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, string(e.Target)
	case KindLink:
		h.Typeflag, h.Linkname = tar.TypeLink, string(e.Target)
	}
	if e.Same {
		h.PAXRecords[recordSame] = "1"
	}
	w.sum.Write(raw)
	return w.tar.WriteHeader(h)
}

// Write writes content of the entry.
func (w *Writer) Write(p []byte) (int, error) {
	w.sum.Write(p)
	return w.tar.Write(p)
}

// Close writes the sum and the end.
func (w *Writer) Close() error {
	err := w.tar.WriteHeader(&tar.Header{
		Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{recordSum: hex.EncodeToString(w.sum.Sum(nil))},
	})
	return errors.Join(err, w.tar.Close())
}

// Reader reads a stream. Every error of a stream that was not written so wraps ErrDamaged.
type Reader struct {
	tar  *tar.Reader
	sum  hash.Hash
	left int64
	end  bool
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader { return &Reader{tar: tar.NewReader(r), sum: sha256.New()} }

// Next returns the next entry, and io.EOF after the last of a stream that is whole.
func (r *Reader) Next() (*Entry, error) {
	if r.end {
		return nil, io.EOF
	}
	if r.left > 0 {
		if _, err := io.Copy(io.Discard, r); err != nil {
			return nil, err
		}
	}
	h, err := r.tar.Next()
	switch {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%w: its end is missing", ErrDamaged)
	case err != nil:
		return nil, damaged(err)
	case h.Typeflag == tar.TypeXGlobalHeader:
		if h.PAXRecords[recordSum] != hex.EncodeToString(r.sum.Sum(nil)) {
			return nil, fmt.Errorf("%w: its checksum is another", ErrDamaged)
		}
		r.end = true
		return nil, io.EOF
	}
	raw := []byte(h.PAXRecords[recordEntry])
	e := &Entry{}
	if err := json.Unmarshal(raw, e); err != nil {
		return nil, damaged(err)
	}
	r.sum.Write(raw)
	e.Same = h.PAXRecords[recordSame] != ""
	if e.Kind == KindFile && e.Pieces == nil && h.Size == 0 && e.Size > 0 && !e.Same {
		e.Pieces = []Piece{} // the sandbox-agent of an earlier image writes an empty list as none
	}
	if r.left = e.Content(); r.left != h.Size || e.Size < 0 {
		return nil, fmt.Errorf("%w: an entry has %d bytes instead of %d", ErrDamaged, h.Size, r.left)
	}
	return e, nil
}

// Read reads content of the entry.
func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.tar.Read(p)
	r.sum.Write(p[:n])
	r.left -= int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		err = damaged(err)
	}
	return n, err
}

func damaged(err error) error { return fmt.Errorf("%w: %w", ErrDamaged, err) }

// encode returns the entry as JSON. Bytes of names are base64 there, so that any can occur.
func encode(e *Entry) ([]byte, error) { return json.Marshal(e) }

package snapshotfile

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// Info is what the writer adds to a manifest. The other members come from the state.
type Info struct {
	// Created is the time at which the state was read.
	Created time.Time
	// Reason is one of the Reason constants.
	Reason string
	// Version is the program's, Node the node's name.
	Version, Node string
	// Stale: the state was read without asking the leader.
	Stale bool
}

// Packed is a file that is ready to be written.
type Packed struct {
	manifest Manifest
	header   []byte // the encoded manifest
	scratch  io.ReadSeeker
}

// Pack compresses a state and its events into scratch, which must be empty. The Packed uses scratch until
// it is discarded. Pack stops early with ctx's error.
func Pack(ctx context.Context, info Info, s *fsm.Snapshot, scratch io.ReadWriteSeeker) (*Packed, error) {
	// The fastest level: rows of JSON compress to about a tenth at every level.
	state, err := packPart(ctx, PartState, gzip.BestSpeed, scratch, s.Persist)
	if err != nil {
		return nil, err
	}
	v := s.View()
	m := Manifest{
		Kind: kind, Format: Format, Created: info.Created.UTC(), Reason: info.Reason, Version: info.Version, Node: info.Node,
		ClusterID: v.ClusterID(), Index: v.Index(), Term: v.Term(), ProtocolVersion: v.ProtocolVersion(),
		StateFormat: fsm.SnapshotFormat, Stale: info.Stale, Parts: []Part{state},
	}
	if s.Events != nil {
		var written fsm.EventsWritten
		// Sealed bodies are not compressible.
		events, err := packPart(ctx, PartEvents, gzip.NoCompression, scratch, func(w io.Writer) (err error) {
			written, err = s.Events.Write(ctx, w)
			return err
		})
		if err != nil {
			return nil, err
		}
		m.Events, m.Parts = &written, append(m.Parts, events)
	}
	if h := v.History(); h.ID != "" {
		m.History = &History{ID: h.ID, Epoch: h.Epoch}
	}
	header, err := m.encode()
	if err != nil {
		return nil, err
	}
	return &Packed{manifest: m, header: header, scratch: scratch}, nil
}

// packPart compresses what write writes into scratch.
func packPart(
	ctx context.Context, name string, level int, scratch io.Writer, write func(io.Writer) error,
) (Part, error) {
	stored := &meter{w: scratch, hash: sha256.New(), ctx: ctx}
	zip, err := gzip.NewWriterLevel(stored, level)
	if err != nil {
		return Part{}, fmt.Errorf("compressing the %s: %w", name, err)
	}
	content := &meter{w: zip, ctx: ctx}
	if err := errors.Join(write(content), zip.Close()); err != nil {
		return Part{}, fmt.Errorf("compressing the %s: %w", name, err)
	}
	return Part{
		Name: name, SHA256: hex.EncodeToString(stored.hash.Sum(nil)), Size: stored.n,
		Encoding: encodingGzip, ContentSize: content.n,
	}, nil
}

// Manifest returns the file's manifest.
func (p *Packed) Manifest() Manifest { return p.manifest }

// Size returns the length of the whole file, in bytes.
func (p *Packed) Size() int64 { return sizeOf(len(p.header), p.manifest.Parts) }

// WriteTo implements io.WriterTo. It writes the whole file and can be called more than once.
func (p *Packed) WriteTo(w io.Writer) (int64, error) {
	out := &meter{w: w}
	t := tar.NewWriter(out)
	sums := &sums{}
	sums.add(nameManifest, sha256.Sum256(p.header))
	err := p.entry(t, nameManifest, int64(len(p.header)), bytes.NewReader(p.header))
	if err == nil {
		_, err = p.scratch.Seek(0, io.SeekStart)
	}
	for _, part := range p.manifest.Parts {
		if err == nil {
			err = p.entry(t, part.entry(), part.Size, io.LimitReader(p.scratch, part.Size))
		}
		sums.addHex(part.entry(), part.SHA256)
	}
	if err == nil {
		err = p.entry(t, nameSums, int64(sums.Len()), strings.NewReader(sums.String()))
	}
	if err == nil {
		err = t.Close()
	}
	if err != nil {
		return out.n, fmt.Errorf("writing the snapshot file: %w", err)
	}
	return out.n, nil
}

func (p *Packed) entry(t *tar.Writer, name string, size int64, from io.Reader) error {
	if err := t.WriteHeader(headerOf(name, size, p.manifest.Created)); err != nil {
		return err
	}
	_, err := io.Copy(t, from)
	return err
}

// headerOf returns an entry's header. It takes one block at any size: USTAR holds sizes below 8
// GiB, GNU's format larger ones.
func headerOf(name string, size int64, created time.Time) *tar.Header {
	h := &tar.Header{
		Typeflag: tar.TypeReg,
		Name:     name,
		Size:     size,
		Mode:     0o600,
		ModTime:  created.Truncate(time.Second),
		Format:   tar.FormatUSTAR,
	}
	if size >= 8<<30 {
		h.Format = tar.FormatGNU
	}
	return h
}

// block is the unit of a tar. maxPart keeps the lengths computed from it far below the largest
// int64.
const (
	block   = 512
	maxPart = 1 << 56
)

// sizeOf returns the length of a file: each entry has a header and fills whole blocks, and two
// blocks end the file.
func sizeOf(manifest int, parts []Part) int64 {
	sums := &sums{}
	sums.add(nameManifest, [sha256.Size]byte{})
	n := blocks(int64(manifest))
	for _, p := range parts {
		n += blocks(p.Size)
		sums.addHex(p.entry(), p.SHA256)
	}
	return n + blocks(int64(sums.Len())) + 2*block
}

// blocks returns the length of an entry with its header.
func blocks(size int64) int64 { return block + (size+block-1)/block*block }

// sums builds the content of SHA256SUMS.
type sums struct{ strings.Builder }

func (s *sums) add(name string, sum [sha256.Size]byte) { s.addHex(name, hex.EncodeToString(sum[:])) }

func (s *sums) addHex(name, sum string) { fmt.Fprintf(s, "%s  %s\n", sum, name) }

package fsm

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
)

const (
	// rowsDecoded and bytesDecoded bound what is decoded together.
	rowsDecoded  = 256
	bytesDecoded = 1 << 20
	// batchesAhead is how many batches are decoded beside the storing of another, which takes longer.
	batchesAhead = 3
)

// rowReader reads the lines of a snapshot and checks its trailer.
type rowReader struct {
	r    *bufio.Reader
	sum  hash.Hash
	size int64
	rows int
}

// rowBatch is rows that follow each other. decoded is closed when they are decoded.
type rowBatch struct {
	// first is the number of the first row, from 1 on. err is what ended the snapshot behind the rows.
	first   int
	rows    []snapshotLine
	err     error
	decoded chan struct{}
}

// snapshotLine is one row, raw and then decoded.
type snapshotLine struct {
	table string
	raw   []byte
	store func(*loader) error
	err   error
}

func (b *rowBatch) decode() {
	defer close(b.decoded)
	for i := range b.rows {
		row := &b.rows[i]
		row.store, row.err = decodeRow(row.table, row.raw)
		row.raw = nil
	}
}

// batches yields the rows in their order. The last batch has the error of the snapshot, nil for a whole
// one.
func (in *rowReader) batches() iter.Seq[*rowBatch] {
	return func(yield func(*rowBatch) bool) {
		ahead := make(chan *rowBatch, batchesAhead)
		stop := make(chan struct{})
		go func() {
			defer close(ahead)
			for more := true; more; {
				var b *rowBatch
				b, more = in.next()
				select {
				case ahead <- b:
					go b.decode()
				case <-stop:
					return
				}
			}
		}()
		defer func() {
			close(stop)
			for range ahead { // the reader is the caller's again
			}
		}()
		for b := range ahead {
			if !yield(b) {
				return
			}
		}
	}
}

// next reads a batch. more is false behind the trailer or an error.
func (in *rowReader) next() (b *rowBatch, more bool) {
	b = &rowBatch{first: in.rows + 1, decoded: make(chan struct{})}
	for begun := in.size; len(b.rows) < rowsDecoded && in.size-begun < bytesDecoded; {
		row, end, err := in.line()
		if end || err != nil {
			b.err = err
			return b, false
		}
		b.rows = append(b.rows, row)
		in.rows++
	}
	return b, true
}

// line reads a row, or the trailer at the end.
func (in *rowReader) line() (row snapshotLine, end bool, err error) {
	line, err := in.r.ReadBytes('\n')
	if err != nil {
		return row, false, fmt.Errorf("it ends after %d rows without its trailer: %w", in.rows, unexpected(err))
	}
	var plain bool
	if row.table, row.raw, plain = cutRow(line); !plain {
		var l struct {
			Table string          `json:"table"`
			Row   json.RawMessage `json:"row"`
			snapshotTrailer
		}
		if err := json.Unmarshal(line, &l); err != nil {
			return row, false, fmt.Errorf("row %d: %w", in.rows+1, err)
		}
		if row.table, row.raw = l.Table, l.Row; row.table == "" {
			return row, true, in.end(l.snapshotTrailer)
		}
	}
	in.add(line)
	return row, false, nil
}

// add counts a line before the trailer.
func (in *rowReader) add(line []byte) {
	in.sum.Write(line)
	in.size += int64(len(line))
}

// end checks the trailer, and that nothing is behind it.
func (in *rowReader) end(trailer snapshotTrailer) error {
	content := snapshotTrailer{in.rows, in.size, hex.EncodeToString(in.sum.Sum(nil))}
	if trailer != content {
		return fmt.Errorf("it is damaged: the trailer says %+v, the content is %+v", trailer, content)
	}
	if _, err := in.r.ReadByte(); err == nil {
		return errors.New("there is something behind the trailer")
	} else if !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading its end: %w", err)
	}
	return nil
}

// cutRow splits a row's line in the form that Persist writes, so that the row is decoded only once.
// plain is false for a line of any other form.
func cutRow(line []byte) (table string, row []byte, plain bool) {
	name, ok := bytes.CutPrefix(line, []byte(`{"table":"`))
	if !ok {
		return "", nil, false
	}
	name, rest, ok := bytes.Cut(name, []byte(`","row":`))
	row, closed := bytes.CutSuffix(rest, []byte("}\n"))
	if !ok || !closed {
		return "", nil, false
	}
	return string(name), row, true
}

package fsm

import (
	"bytes"
	"io"
	"iter"
	"slices"
	"strings"
)

// View returns the state that the snapshot holds.
func (p *Snapshot) View() *View { return p.view }

// Term returns the Raft term that was opened last, 0 before the first.
func (v *View) Term() uint64 { return v.meta.Term }

// SecretRefs iterates every version of a secret that a row refers to, each once.
func (v *View) SecretRefs() iter.Seq[SecretRef] {
	return func(yield func(SecretRef) bool) {
		for row := range withPrefix[secretRef](v.txn, tableSecretRefs, indexID, nil) {
			if !yield(row.ref) {
				return
			}
		}
	}
}

// Trial is the result of a trial load of a snapshot.
type Trial struct {
	// View is the loaded state. No store holds it.
	View *View
	// Tables are the tables that have rows, by name.
	Tables []TableSize
}

// TableSize is the share of one table in a snapshot.
type TableSize struct {
	Table string `json:"table"`
	Rows  int    `json:"rows"`
	// Bytes is the size of the rows' lines.
	Bytes int64 `json:"bytes"`
}

// Sizes counts the rows of each table that has any, by name. It leaves Bytes at 0.
func (p *Snapshot) Sizes() []TableSize {
	sizes := &tableSizes{}
	for table := range p.rows() {
		sizes.add(table, 0)
	}
	return sizes.list()
}

// TrialLoad reads a snapshot to its end as Restore does, without changing a store. Success proves
// that the snapshot can be restored.
func TrialLoad(r io.Reader) (*Trial, error) {
	sizes := &tableSizes{}
	s := NewStore()
	if err := s.Restore(io.TeeReader(r, sizes)); err != nil {
		return nil, err
	}
	return &Trial{View: s.View(), Tables: sizes.list()}, nil
}

// tableSizes counts rows and bytes by table in the lines written to it.
type tableSizes struct {
	// line is the beginning of an unfinished line, long enough to hold the table's name. length is the
	// length of the whole line so far.
	line   []byte
	length int64
	tables []TableSize
}

// maxTablePrefix is the length of a line's beginning that always includes the table's name.
const maxTablePrefix = 64

// Write implements io.Writer.
func (s *tableSizes) Write(b []byte) (int, error) {
	written := len(b)
	for len(b) > 0 {
		part, ended := b, false
		if at := bytes.IndexByte(b, '\n'); at >= 0 {
			part, ended = b[:at+1], true
		}
		s.length += int64(len(part))
		if room := maxTablePrefix - len(s.line); room > 0 {
			s.line = append(s.line, part[:min(room, len(part))]...)
		}
		if ended {
			s.count()
			s.line, s.length = s.line[:0], 0
		}
		b = b[len(part):]
	}
	return written, nil
}

// count adds a finished line. The first line and the last name no table.
func (s *tableSizes) count() {
	name, row := bytes.CutPrefix(s.line, []byte(`{"table":"`))
	name, _, closed := bytes.Cut(name, []byte(`"`))
	if !row || !closed {
		return
	}
	s.add(string(name), s.length)
}

func (s *tableSizes) add(table string, bytes int64) {
	at := slices.IndexFunc(s.tables, func(t TableSize) bool { return t.Table == table })
	if at < 0 {
		at = len(s.tables)
		s.tables = append(s.tables, TableSize{Table: table})
	}
	s.tables[at].Rows++
	s.tables[at].Bytes += bytes
}

// list returns the tables by name.
func (s *tableSizes) list() []TableSize {
	slices.SortFunc(s.tables, func(a, b TableSize) int { return strings.Compare(a.Table, b.Table) })
	return s.tables
}

package snapshotfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// Format is the file format that this program writes. It refuses a file of a newer format.
const Format = 1

// kind is the Manifest.Kind of every file.
const kind = "bivouac-snapshot"

// The names of the entries, and of the one part that format 1 requires.
const (
	nameManifest = "manifest.json"
	nameSums     = "SHA256SUMS"
	dirParts     = "parts/"
	// PartState is the Part.Name of the state, PartEvents that of the events, which follow it.
	PartState  = "state"
	PartEvents = "events"
)

// encodingGzip is the only Part.Encoding of format 1.
const encodingGzip = "gzip"

// The reasons for writing a file, in Manifest.Reason.
const (
	// ReasonSave: an operator requested it.
	ReasonSave = "save"
	// ReasonBackup: the leader wrote it on its own. Only such files are removed when there are enough
	// newer ones.
	ReasonBackup = "backup"
)

// Bounds that a reader applies before it has verified anything.
const (
	maxManifest = 1 << 20
	maxParts    = 64
)

// The reasons for refusing a file, for errors.Is. The error's text says more.
var (
	// ErrNotSnapshot: the file is no snapshot file.
	ErrNotSnapshot = errors.New("this is not a bivouac snapshot file")
	// ErrTruncated: the end of the file is missing.
	ErrTruncated = errors.New("the file is truncated")
	// ErrDamaged: the content is not what was written.
	ErrDamaged = errors.New("the file is damaged")
	// ErrNewer: a newer program wrote the file.
	ErrNewer = errors.New("the file was written by a newer bivouac")
	// ErrEncrypted: the file is encrypted. Format 1 reserves the field but can't decrypt.
	ErrEncrypted = errors.New("the file is encrypted")
)

// Manifest describes a file. Members without a comment are those of the fsm.View in the file.
type Manifest struct {
	// Kind is the same in every file.
	Kind string `json:"kind"`
	// Format is the number of the file's format.
	Format int `json:"format"`
	// Created is when the state was read.
	Created time.Time `json:"created"`
	// Reason is one of the Reason constants.
	Reason string `json:"reason"`
	// Version is the version of the program that wrote the file, Node the node it ran as.
	Version string `json:"bivouac_version"`
	Node    string `json:"node"`

	ClusterID       string   `json:"cluster_id"`
	History         *History `json:"history,omitempty"`
	Index           uint64   `json:"index"`
	Term            uint64   `json:"term"`
	ProtocolVersion int      `json:"protocol_version"`
	// StateFormat is fsm.SnapshotFormat of the program that wrote the file.
	StateFormat int `json:"state_format"`
	// Stale: the state was read without checking that it is the newest.
	Stale bool `json:"stale,omitempty"`

	// Events says what the part PartEvents has, nil for a file without it.
	Events *fsm.EventsWritten `json:"events,omitempty"`

	// Encryption is nil: format 1 encrypts nothing.
	Encryption *Encryption `json:"encryption"`
	// Parts are the entries after the manifest, in order.
	Parts []Part `json:"parts"`
}

// History identifies the history of the state (fsm.History). A state below protocol version 3 has
// none.
type History struct {
	ID    string `json:"id"`
	Epoch int64  `json:"epoch"`
}

// Encryption is what a later format needs to find the key of a file.
type Encryption struct {
	KeyID string `json:"key_id"`
}

// Part is one entry after the manifest.
type Part struct {
	// Name is PartState or PartEvents. A reader verifies and skips parts that it does not know.
	Name string `json:"name"`
	// SHA256 is the hash of the entry's bytes, Size their number.
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	// Encoding says how the content was encoded: "gzip".
	Encoding string `json:"encoding"`
	// ContentSize is the size of the content in bytes, before encoding.
	ContentSize int64 `json:"content_size"`
}

// entry returns the name of the part's entry.
func (p Part) entry() string { return dirParts + p.SHA256 }

// State returns the part that holds the state. A Manifest that Open has accepted has exactly one.
func (m Manifest) State() Part {
	for _, p := range m.Parts {
		if p.Name == PartState {
			return p
		}
	}
	return Part{}
}

// encode returns the manifest as it is written to a file, indented for human readers.
func (m Manifest) encode() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(m); err != nil {
		return nil, fmt.Errorf("encoding the manifest: %w", err)
	}
	return b.Bytes(), nil
}

var sha256Pattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// decodeManifest reads a manifest and refuses what this program can't read. It checks the format
// first, because a newer format may change everything else.
func decodeManifest(b []byte) (Manifest, error) {
	var first struct {
		Kind   string `json:"kind"`
		Format int    `json:"format"`
	}
	if err := json.Unmarshal(b, &first); err != nil {
		return Manifest{}, fmt.Errorf("%w: its manifest can't be read: %w", ErrDamaged, err)
	}
	switch {
	case first.Kind != kind:
		return Manifest{}, ErrNotSnapshot
	case first.Format > Format:
		return Manifest{}, fmt.Errorf("%w: its format is %d and this program reads %d: upgrade it", ErrNewer, first.Format,
			Format)
	case first.Format < 1:
		return Manifest{}, fmt.Errorf("%w: its format is %d", ErrDamaged, first.Format)
	}
	var m Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return Manifest{}, fmt.Errorf("%w: its manifest can't be read: %w", ErrDamaged, err)
	}
	if m.Encryption != nil {
		return Manifest{}, fmt.Errorf("%w with the key %q, and this program can't decrypt: upgrade it", ErrEncrypted,
			m.Encryption.KeyID)
	}
	return m, m.checkParts()
}

// checkParts refuses parts that no writer produces.
func (m Manifest) checkParts() error {
	states := 0
	if len(m.Parts) > maxParts {
		return fmt.Errorf("%w: its manifest has %d parts", ErrDamaged, len(m.Parts))
	}
	for _, p := range m.Parts {
		if p.Name == PartState {
			states++
		}
		if !sha256Pattern.MatchString(p.SHA256) || p.Size < 0 || p.Size > maxPart || p.ContentSize < 0 {
			return fmt.Errorf("%w: its manifest says %+v of a part", ErrDamaged, p)
		}
		if p.Encoding != encodingGzip {
			return fmt.Errorf("%w: the encoding of part %q is %q: upgrade", ErrNewer, p.Name, p.Encoding)
		}
	}
	if states != 1 {
		return fmt.Errorf("%w: its manifest has %d states", ErrDamaged, states)
	}
	return nil
}

package snapshotfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// Format is the number of the file format this program writes. A file of a
// newer one is refused.
const Format = 1

// kind is Manifest.Kind of every file.
const kind = "bivouac-snapshot"

// The names of entries, and of the one part that format 1 needs.
const (
	nameManifest = "manifest.json"
	nameSums     = "SHA256SUMS"
	dirParts     = "parts/"
	// PartState is the Part.Name of the state.
	PartState = "state"
)

// encodingGzip is the only Part.Encoding of format 1.
const encodingGzip = "gzip"

// The reasons for which files are written, in Manifest.Reason.
const (
	// ReasonSave: an operator asked for it.
	ReasonSave = "save"
	// ReasonBackup: the leader made it by itself. Only such files are removed
	// when there are enough newer ones.
	ReasonBackup = "backup"
)

// Bounds of what a reader believes before it has checked anything.
const (
	maxManifest = 1 << 20
	maxParts    = 64
)

// The ways in which a file can be refused, for errors.Is. The error's text says
// more.
var (
	// ErrNotSnapshot: the file never was one of ours.
	ErrNotSnapshot = errors.New("this is not a bivouac snapshot file")
	// ErrTruncated: the end of the file is missing.
	ErrTruncated = errors.New("the file is truncated")
	// ErrDamaged: the file holds something else than was written.
	ErrDamaged = errors.New("the file is damaged")
	// ErrNewer: a newer program wrote the file.
	ErrNewer = errors.New("the file was written by a newer bivouac")
	// ErrEncrypted: the file is encrypted, which format 1 has room for only.
	ErrEncrypted = errors.New("the file is encrypted")
)

// Manifest says what a file holds. The members without a comment are those of
// the fsm.View in it.
type Manifest struct {
	// Kind is the same in every file.
	Kind string `json:"kind"`
	// Format is the number of the file's format.
	Format int `json:"format"`
	// Created is when the state was read.
	Created time.Time `json:"created"`
	// Reason is one of the Reason constants.
	Reason string `json:"reason"`
	// Version is that of the program that wrote the file, Node the node that it
	// ran as.
	Version string `json:"bivouac_version"`
	Node    string `json:"node"`

	ClusterID       string   `json:"cluster_id"`
	History         *History `json:"history,omitempty"`
	Index           uint64   `json:"index"`
	Term            uint64   `json:"term"`
	ProtocolVersion int      `json:"protocol_version"`
	// StateFormat is fsm.SnapshotFormat of the program that wrote the file.
	StateFormat int `json:"state_format"`
	// Stale: nobody was asked whether the node had the newest state.
	Stale bool `json:"stale,omitempty"`

	// Encryption is nil: format 1 encrypts nothing.
	Encryption *Encryption `json:"encryption"`
	// Parts are the entries behind the manifest, in their order.
	Parts []Part `json:"parts"`
}

// History names the history that the state belongs to (fsm.History); a state
// below protocol version 3 has none.
type History struct {
	ID    string `json:"id"`
	Epoch int64  `json:"epoch"`
}

// Encryption is what a later format needs to find the key of a file.
type Encryption struct {
	KeyID string `json:"key_id"`
}

// Part is one entry behind the manifest.
type Part struct {
	// Name is PartState. A reader skips parts that it does not know, verified.
	Name string `json:"name"`
	// SHA256 is that of the entry's bytes, and Size their number.
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	// Encoding says how the content became the entry's bytes: "gzip".
	Encoding string `json:"encoding"`
	// ContentSize is the number of bytes of the content.
	ContentSize int64 `json:"content_size"`
}

// entry is the name of the part's entry.
func (p Part) entry() string { return dirParts + p.SHA256 }

// State gives the part that holds the state. A Manifest that Open has accepted
// has exactly one.
func (m Manifest) State() Part {
	for _, p := range m.Parts {
		if p.Name == PartState {
			return p
		}
	}
	return Part{}
}

// encode gives the manifest as it stands in a file, to be read by people too.
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

// decodeManifest reads a manifest and refuses what this program can't go by.
// The format is looked at first: a newer one may say everything else otherwise.
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
		return Manifest{}, fmt.Errorf("%w: its format is %d and this program reads %d: upgrade it", ErrNewer, first.Format, Format)
	case first.Format < 1:
		return Manifest{}, fmt.Errorf("%w: its format is %d", ErrDamaged, first.Format)
	}
	var m Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return Manifest{}, fmt.Errorf("%w: its manifest can't be read: %w", ErrDamaged, err)
	}
	if m.Encryption != nil {
		return Manifest{}, fmt.Errorf("%w with the key %q, and this program can't decrypt: upgrade it", ErrEncrypted, m.Encryption.KeyID)
	}
	return m, m.checkParts()
}

// checkParts refuses parts that no writer makes.
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

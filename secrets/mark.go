package secrets

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Mark names the cluster whose leader uses this store, and how far that leader's history has
// advanced. It mirrors fsm.Mark, because this package does not import fsm.
type Mark struct {
	Cluster string    `json:"cluster"`
	History string    `json:"history"`
	Epoch   int64     `json:"epoch"`
	Nonce   string    `json:"nonce"`
	Index   uint64    `json:"index"`
	Time    time.Time `json:"time"`
}

// Marks stores one Mark beside the secrets.
type Marks interface {
	// Place names the store in errors: "the prefix bivouac of vault's mount secret".
	Place() string
	// ReadMark returns the mark, whether there is one, and the cas that lets WriteMark replace exactly
	// this mark or write the first.
	ReadMark(ctx context.Context) (mark Mark, cas uint64, found bool, err error)
	// WriteMark replaces the mark that was read with cas. It returns ErrConflict when the mark has
	// changed since. Callers write only a mark that follows the one they read in their own history, so
	// the mark only moves forward.
	WriteMark(ctx context.Context, mark Mark, cas uint64) error
}

// encodeMark returns the stored text.
func encodeMark(m Mark) (string, error) {
	if m.Cluster == "" {
		return "", fmt.Errorf("%w: a mark without a cluster", ErrInvalid)
	}
	raw, err := json.Marshal(m)
	return string(raw), err
}

// decodeMark reads the stored text. A mark that can't be read is an error, not a missing mark.
func decodeMark(text, where string) (Mark, error) {
	var m Mark
	if err := json.Unmarshal([]byte(text), &m); err != nil || m.Cluster == "" {
		return Mark{}, unavailable("%s does not hold a mark that this program can read", where)
	}
	return m, nil
}

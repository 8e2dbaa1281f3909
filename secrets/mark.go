package secrets

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Mark says which cluster's leader works with this store, and how far that
// leader's history had come. It is fsm.Mark; this package does not import fsm.
type Mark struct {
	Cluster string    `json:"cluster"`
	History string    `json:"history"`
	Epoch   int64     `json:"epoch"`
	Nonce   string    `json:"nonce"`
	Index   uint64    `json:"index"`
	Time    time.Time `json:"time"`
}

// Marks keeps one Mark beside the secrets.
type Marks interface {
	// Place names the store in errors: "the prefix bivouac of vault's mount secret".
	Place() string
	// ReadMark gives the mark, whether there is one, and what WriteMark needs to
	// replace exactly this one, or to write the first.
	ReadMark(ctx context.Context) (mark Mark, cas uint64, found bool, err error)
	// WriteMark replaces the mark that was read with cas; ErrConflict when it is
	// another by now. A caller writes only what follows the mark that it read in
	// its own history, so the mark moves forward only.
	WriteMark(ctx context.Context, mark Mark, cas uint64) error
}

// encodeMark gives the text that is stored.
func encodeMark(m Mark) (string, error) {
	if m.Cluster == "" {
		return "", fmt.Errorf("%w: a mark without a cluster", ErrInvalid)
	}
	raw, err := json.Marshal(m)
	return string(raw), err
}

// decodeMark reads it. A mark that can't be read is not a missing one.
func decodeMark(text, where string) (Mark, error) {
	var m Mark
	if err := json.Unmarshal([]byte(text), &m); err != nil || m.Cluster == "" {
		return Mark{}, unavailable("%s does not hold a mark that this program can read", where)
	}
	return m, nil
}

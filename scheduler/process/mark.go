package process

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// markFile is the mark's file in the runner's directory.
const markFile = "mark.json"

// storedMark is the file's format. CAS changes with each write.
type storedMark struct {
	Mark fsm.Mark `json:"mark"`
	CAS  uint64   `json:"cas"`
}

// ReadMark implements scheduler.Marks.
func (r *Runner) ReadMark(context.Context) (mark fsm.Mark, cas uint64, found bool, err error) {
	r.markMu.Lock()
	defer r.markMu.Unlock()
	m, err := r.readMark()
	return m.Mark, m.CAS, m.CAS != 0, err
}

// WriteMark implements scheduler.Marks.
func (r *Runner) WriteMark(_ context.Context, mark fsm.Mark, cas uint64) error {
	r.markMu.Lock()
	defer r.markMu.Unlock()
	now, err := r.readMark()
	switch {
	case err != nil:
		return err
	case now.CAS != cas:
		return fsm.Errorf(fsm.CodeConflict, "the mark in %s was written since it was read", r.dir)
	}
	// The clock keeps a number from repeating after the file is lost.
	next := storedMark{Mark: mark, CAS: max(now.CAS+1, uint64(time.Now().UnixMicro()))}
	if err := writeJSON(r.dir, markFile, next); err != nil {
		return fsm.Errorf(fsm.CodeScheduler, "writing the mark: %v", err)
	}
	return nil
}

// readMark reads the file. CAS is 0 if there is none. The caller holds markMu.
func (r *Runner) readMark() (m storedMark, err error) {
	r.mu.Lock()
	closed := r.closed
	r.mu.Unlock()
	if closed {
		return m, fsm.Errorf(fsm.CodeScheduler, "the process runner is closed")
	}
	path := filepath.Join(r.dir, markFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err == nil && (m.CAS == 0 || m.Mark.Cluster == "" || m.Mark.Nonce == "") {
		err = errors.New("it holds no mark")
	}
	if err != nil {
		return storedMark{}, fsm.Errorf(fsm.CodeScheduler, "the mark in %s can't be read: %v", path, err)
	}
	return m, nil
}

package fsm

import "time"

// Backup is the replicated record of the backups that leaders make, so that a new leader does not
// repeat one. The zero Backup means that there was none.
type Backup struct {
	// File is the name of the newest complete backup, in the backup directory of Node.
	File string `json:"file,omitempty"`
	Node string `json:"node,omitempty"`
	// Index is the log index of its state, Time the time when it was finished.
	Index uint64    `json:"index,omitempty"`
	Time  time.Time `json:"time,omitzero"`
	Size  int64     `json:"size,omitempty"`
	// Failure says why the last attempt failed, on FailedNode at FailedTime. It is "" when the last
	// attempt succeeded.
	Failure    string    `json:"failure,omitempty"`
	FailedNode string    `json:"failed_node,omitempty"`
	FailedTime time.Time `json:"failed_time,omitzero"`
}

// Backup returns the record of the backups. It is zero below protocol version 3.
func (v *View) Backup() Backup { return v.meta.Backup }

// BackupNoteBody records the outcome of a backup: the file, or the failure. The leader proposes it.
type BackupNoteBody struct {
	File  string `json:"file,omitempty"`
	Node  string `json:"node"`
	Index uint64 `json:"index,omitempty"`
	Size  int64  `json:"size,omitempty"`
	// Failure says why there is no file.
	Failure string `json:"failure,omitempty"`
}

// CommandType implements Body.
func (*BackupNoteBody) CommandType() CommandType { return BackupNote }

// check implements Body.
func (b *BackupNoteBody) check(r *rules) {
	r.name("node", b.Node, MaxName)
	r.text("file", b.File, MaxName)
	r.words("failure", b.Failure)
	r.check((b.File == "") != (b.Failure == ""), "either file or failure must be given")
	r.check(b.Size >= 0, "size must not be negative")
}

func (t *transaction) applyBackupNote(b *BackupNoteBody) (Result, *Error) {
	last := &t.meta.Backup
	if b.Failure != "" {
		last.Failure, last.FailedNode, last.FailedTime = cleanWords(b.Failure), b.Node, t.now
		return Result{}, nil
	}
	*last = Backup{File: b.File, Node: b.Node, Index: b.Index, Time: t.now, Size: b.Size}
	return Result{}, nil
}

package fsm

import "time"

// Copy names the newest copy of a workspace in the store of copies.
type Copy struct {
	ID string `json:"id"`
	// Sum is the SHA-256 of its manifest, in hex. The manifest has those of all content.
	Sum string `json:"sum"`
	// At is when the copy began: what was written before is in it. It is the leader's clock.
	At time.Time `json:"at"`
	// Generation is the sandbox's when the copy began, 0 for a copy from below VersionCopies.
	Generation uint64 `json:"generation,omitempty"`
	// Files counts files, Bytes their content.
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// Home is the volume of a sandbox whose workspace has moved.
type Home struct {
	// Volume and Client are Nomad's ids.
	Volume string `json:"volume"`
	Client string `json:"client"`
	// From is the client that the workspace was on before, Lost whether that client was lost.
	From string `json:"from"`
	Lost bool   `json:"lost,omitempty"`
	// CopyAt is Copy.At of the copy that it came from; zero for one that was moved itself.
	CopyAt time.Time `json:"copy_at,omitzero"`
	// Orphan is Move.Orphan of the move that ended.
	Orphan string `json:"orphan,omitempty"`
	// Generation is the sandbox's with which the move ended.
	Generation uint64 `json:"generation"`
}

// Move is a move of a workspace that is under way.
type Move struct {
	// Attempt counts the tries: each try makes a volume of its own, and only the last may end.
	Attempt uint64 `json:"attempt"`
	// From is the client that has, or had, the workspace.
	From string    `json:"from"`
	At   time.Time `json:"at"`
	// Orphan is the volume of an OrphanLost that the sandbox is restored from, "" for none. It has no
	// workspace of its own before the move ends, so this move is not given up.
	Orphan string `json:"orphan,omitempty"`
}

// SandboxCopiedBody records a copy of a workspace. The leader proposes it. Base is the id of the copy
// that it builds on: unless that is the sandbox's newest, it is CodeConflict, because what it needs
// may be collected by then.
type SandboxCopiedBody struct {
	ID   string `json:"id"`
	Base string `json:"base,omitempty"`
	Copy Copy   `json:"copy"`
}

// CommandType implements Body.
func (*SandboxCopiedBody) CommandType() CommandType { return SandboxCopied }

// check implements Body.
func (b *SandboxCopiedBody) check(r *rules) {
	r.sandboxID("sandbox id", b.ID)
	r.text("base", b.Base, MaxName)
	r.text("copy id", b.Copy.ID, MaxName)
	r.hash("copy sum", b.Copy.Sum)
	r.check(b.Copy.ID != "" && b.Copy.Files >= 0 && b.Copy.Bytes >= 0, "a copy has an id and sizes")
}

func (t *transaction) applySandboxCopied(b *SandboxCopiedBody) (Result, *Error) {
	old := first[Sandbox](t.txn, tableSandboxes, indexID, []byte(b.ID))
	if old == nil || old.Desired == DesiredDeleted {
		return Result{}, Errorf(CodeNotFound, "Not Found")
	}
	if old.copyID() != b.Base {
		return Result{}, Errorf(CodeConflict, "the newest copy of sandbox %s is %q and not %q: copy again", b.ID,
			old.copyID(), b.Base)
	}
	s, c := *old, b.Copy
	c.At = c.At.UTC().Truncate(time.Microsecond)
	s.Copy = &c
	put(t, tableSandboxes, old, &s)
	return Result{Sandbox: &s}, nil
}

func (s *Sandbox) copyID() string {
	if s.Copy == nil {
		return ""
	}
	return s.Copy.ID
}

// SandboxMoveBody begins a move of a workspace, or another try of one. Attempt is that of the row,
// 0 for none: a try of a leader that was deposed begins nothing. With End the move is given up.
type SandboxMoveBody struct {
	ID      string `json:"id"`
	Attempt uint64 `json:"attempt"`
	From    string `json:"from,omitempty"`
	End     bool   `json:"end,omitempty"`
}

// CommandType implements Body.
func (*SandboxMoveBody) CommandType() CommandType { return SandboxMove }

// check implements Body.
func (b *SandboxMoveBody) check(r *rules) {
	r.sandboxID("sandbox id", b.ID)
	r.text("from", b.From, MaxName)
	r.check(b.End || b.From != "", "a move needs the client that it is from")
}

func (t *transaction) applySandboxMove(b *SandboxMoveBody) (Result, *Error) {
	old, err := t.moving(b.ID, b.Attempt)
	if err != nil {
		return Result{}, err
	}
	s, orphan := *old, old.restoredFrom()
	if b.End && orphan != "" {
		return Result{}, Errorf(CodeConflict, "the sandbox %s is being restored and has no other workspace", b.ID)
	}
	if s.Move = nil; !b.End {
		s.Moves = b.Attempt + 1
		s.Move = &Move{Attempt: s.Moves, From: b.From, At: t.now, Orphan: orphan}
	}
	put(t, tableSandboxes, old, &s)
	return Result{Sandbox: &s}, nil
}

// moving finds a sandbox whose last try of a move is attempt.
func (t *transaction) moving(id string, attempt uint64) (*Sandbox, *Error) {
	s := first[Sandbox](t.txn, tableSandboxes, indexID, []byte(id))
	if s == nil || s.Desired == DesiredDeleted {
		return nil, Errorf(CodeNotFound, "Not Found")
	}
	if s.Moves != attempt {
		return nil, Errorf(CodeConflict, "the workspace of sandbox %s is moved by try %d and not %d", id, s.Moves, attempt)
	}
	return s, nil
}

// SandboxMovedBody ends a move: Home is the sandbox's workspace from now on. Home.From,
// Home.Orphan and Home.Generation are Apply's to set. A version of the former job can't be reverted
// to, and observations of before are dropped.
type SandboxMovedBody struct {
	ID      string `json:"id"`
	Attempt uint64 `json:"attempt"`
	Home    Home   `json:"home"`
	// Left is the volume that a lost client still has, "" for none. It becomes an orphan on record.
	Left string `json:"left,omitempty"`
}

// CommandType implements Body.
func (*SandboxMovedBody) CommandType() CommandType { return SandboxMoved }

// check implements Body.
func (b *SandboxMovedBody) check(r *rules) {
	r.sandboxID("sandbox id", b.ID)
	r.text("volume", b.Home.Volume, MaxName)
	r.text("client", b.Home.Client, MaxName)
	r.text("left", b.Left, MaxName)
	r.check(b.Home.Volume != "" && b.Home.Client != "", "a workspace has a volume and a client")
}

func (t *transaction) applySandboxMoved(b *SandboxMovedBody) (Result, *Error) {
	old, err := t.moving(b.ID, b.Attempt)
	if err != nil {
		return Result{}, err
	}
	if old.Move == nil {
		return Result{}, Errorf(CodeConflict, "the workspace of sandbox %s is not moved", b.ID)
	}
	s, home := *old, b.Home
	s.Generation++
	s.DesiredAt = t.now
	home.From, home.Orphan, home.Generation = old.Move.From, old.Move.Orphan, s.Generation
	home.CopyAt = home.CopyAt.UTC().Truncate(time.Microsecond)
	s.Home, s.Move = &home, nil
	s.Status.Job, s.Status.Proven, s.Status.Placement = JobRef{}, "", nil
	put(t, tableSandboxes, old, &s)
	if old.Move.Orphan == "" {
		t.drainMoved(home.From)
	}
	if home.Lost && b.Left != "" && t.meta.active(VersionRoom) {
		t.noteLost(old, home.From, b.Left)
	}
	return Result{Sandbox: &s}, nil
}

package nomadtest

import (
	"context"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// marks holds the mark and its earlier values.
type marks struct {
	now    *fsm.Mark
	before []fsm.Mark
	cas    uint64
	denied bool
}

// ReadMark implements scheduler.Marks.
func (n *Nomad) ReadMark(ctx context.Context) (mark fsm.Mark, cas uint64, found bool, err error) {
	if err := n.enterMark(ctx, "read mark"); err != nil {
		return fsm.Mark{}, 0, false, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.marks.now == nil {
		return fsm.Mark{}, 0, false, nil
	}
	return *n.marks.now, n.marks.cas, true, nil
}

// WriteMark implements scheduler.Marks.
func (n *Nomad) WriteMark(ctx context.Context, mark fsm.Mark, cas uint64) error {
	if err := n.enterMark(ctx, "write mark"); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.marks.cas
	if n.marks.now == nil {
		now = 0
	}
	if cas != now {
		return conflict("the mark was written since it was read")
	}
	n.setMark(mark)
	return nil
}

func (n *Nomad) enterMark(ctx context.Context, call string) error {
	if err := n.enter(ctx, call, scheduler.Job{}); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.marks.denied {
		return nil
	}
	capability := "read"
	if call == "write mark" {
		capability = "write"
	}
	return &scheduler.Denied{Path: "the variable bivouac/test", Capability: capability, Detail: "Permission denied"}
}

func (n *Nomad) setMark(mark fsm.Mark) {
	if n.marks.now != nil {
		n.marks.before = append(n.marks.before, *n.marks.now)
	}
	n.index++
	n.marks.now, n.marks.cas = &mark, n.index
}

// Mark returns the current mark, nil if there is none.
func (n *Nomad) Mark() *fsm.Mark {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.marks.now
}

// SetMark replaces the mark with another cluster's.
func (n *Nomad) SetMark(mark fsm.Mark) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.setMark(mark)
}

// LoseMark deletes the mark.
func (n *Nomad) LoseMark() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.marks.now = nil
}

// RollBackMark restores the mark to its value before the last writes.
func (n *Nomad) RollBackMark(writes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.setMark(n.marks.before[len(n.marks.before)-writes])
}

// DenyMarks withdraws the permissions for the mark, or grants them again.
func (n *Nomad) DenyMarks(denied bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.marks.denied = denied
}

// Wipe deletes everything, like a Nomad that was never used.
func (n *Nomad) Wipe() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.marks = marks{}
	n.breakStreams()
	for _, list := range n.allocs {
		for _, a := range list {
			a.live, a.answering = false, false
		}
	}
	clear(n.jobs)
	clear(n.volumes)
	clear(n.allocs)
	clear(n.files)
}

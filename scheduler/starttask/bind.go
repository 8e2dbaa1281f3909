package starttask

import (
	"context"
	"errors"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/access"
)

// bind gives the task the sandbox it names, or a new one. The new one's key is written first. If
// the command does not follow, that version is unreferenced and is collected.
func (r *Runner) bind(ctx context.Context, t *fsm.StartTask, d *drawn) outcome {
	if id := deref(t.Request.SandboxID); id != "" {
		r.step(ctx, t, "bind")
		_, err := r.propose(ctx, &fsm.StartTaskBindBody{ID: t.ID, SandboxID: id})
		return bindOutcome(err)
	}
	if d.id == "" && r.store.View().ClaimableMember("", t.UserID, nil) != nil {
		r.step(ctx, t, "bind")
		_, err := r.propose(ctx, &fsm.StartTaskBindBody{ID: t.ID, Create: &fsm.SandboxCreateBody{Warm: true}})
		if fsm.CodeOf(err) != fsm.CodePoolEmpty {
			return bindOutcome(err)
		}
	}
	o := r.bindNew(ctx, t, newSandboxID(r.store.View(), t), d)
	if errors.Is(o.err, errIDTaken) {
		o = r.bindNew(ctx, t, access.Base62(16), d)
	}
	return o
}

// newSandboxID returns the id of the sandbox for a task. It derives from the task's own random
// id, so it is never used again, whatever id a client chose for its conversation. Every leader of
// this history derives the same id, so the next leader writes the key to the same path.
func newSandboxID(v *fsm.View, t *fsm.StartTask) string {
	return access.Hash("sandbox\x00" + v.History().ID + "\x00" + t.ID)[:32]
}

// drawn is a new sandbox's id and stored key. It is kept while its command is retried, so that
// one task does not write a key for each try.
type drawn struct {
	id, hash string
	ref      fsm.SecretRef
	// late: the last call that creates the conversation was slow. lateClone: the last one that
	// prepares the repository was.
	late, lateClone bool
	// project is what this leader has loaded of the project, nil before.
	project *project
}

var errIDTaken = errors.New("the sandbox id is taken")

func (r *Runner) bindNew(ctx context.Context, t *fsm.StartTask, id string, d *drawn) outcome {
	if d.id == "" {
		if err := r.draw(ctx, t, id, d); err != nil {
			return outcome{err: err}
		}
	}
	create := &fsm.SandboxCreateBody{ID: d.id, KeyRef: d.ref, KeyHash: d.hash}
	r.step(ctx, t, "bind")
	_, err := r.propose(ctx, &fsm.StartTaskBindBody{ID: t.ID, SandboxID: d.id, Create: create})
	if fsm.CodeOf(err) == fsm.CodeConflict {
		*d = drawn{}
		return outcome{err: errIDTaken}
	}
	// The task may have been bound meanwhile, perhaps to another sandbox. This key is then
	// unreferenced and left to the collector. Deleting its entry here could hit a sandbox that
	// got the same id.
	return bindOutcome(err)
}

// draw makes the key of a new sandbox and stores it.
func (r *Runner) draw(ctx context.Context, t *fsm.StartTask, id string, d *drawn) error {
	// A command that can't create the sandbox would leave a secret behind.
	if r.store.View().SandboxAny(id) != nil {
		return errIDTaken
	}
	if err := r.writes.Acquire(ctx, 1); err != nil {
		return err
	}
	defer r.writes.Release(1)
	r.step(ctx, t, "write key")
	ref, hash, err := access.WriteKeys(ctx, r.secrets, id)
	if err != nil {
		return err
	}
	*d = drawn{id: id, hash: hash, ref: ref}
	return nil
}

func bindOutcome(err error) outcome {
	switch fsm.CodeOf(err) {
	case fsm.CodeNotFound, fsm.CodeInvalid:
		return outcome{fatal: err.Error()}
	default:
		// A limit is retried too: the task had room when it was accepted, and waits for room
		// until the deadline if it needs more now.
		return outcome{err: err}
	}
}

package scheduler

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

// Members of a sandbox's session entry in the secret store.
const (
	secretKeyMember = "key"
	sealKeyMember   = "secret_key"
)

// advance takes the one step that the task's status asks for.
func (r *StartTasks) advance(ctx context.Context, v *fsm.View, t *fsm.StartTask, d *drawn) outcome {
	if t.SandboxID == "" {
		return r.bind(ctx, t, d)
	}
	place, o := r.sandbox(v, t)
	if place == nil {
		return o
	}
	switch t.Status {
	case fsm.StartTaskWorking, fsm.StartTaskWaitingForSandbox:
		next := fsm.StartTaskStartingConversation
		if needsPreparation(v, t) {
			next = fsm.StartTaskPreparingRepository
		}
		return r.moveTo(ctx, t, next, place)
	case fsm.StartTaskPreparingRepository:
		return r.clones.do(ctx, t.UserID, &d.lateClone, func(ctx context.Context) outcome {
			if o := r.prepare(ctx, v, t, place); o != (outcome{}) {
				return o
			}
			return r.moveTo(ctx, t, fsm.StartTaskStartingConversation, place)
		})
	case fsm.StartTaskStartingConversation:
		if t.AgentServerURL != place.url {
			// Placed anew since the last step.
			return r.moveTo(ctx, t, t.Status, place)
		}
		return r.calls.do(ctx, t.UserID, &d.late, func(ctx context.Context) outcome { return r.converse(ctx, v, t, place) })
	default:
		return r.moveTo(ctx, t, fsm.StartTaskStartingConversation, place)
	}
}

// moveTo advances the task. The agent server's URL is known from
// STARTING_CONVERSATION on.
func (r *StartTasks) moveTo(ctx context.Context, t *fsm.StartTask, status fsm.StartTaskStatus, p *place) outcome {
	r.step(ctx, t, "advance "+string(status))
	b := &fsm.StartTaskAdvanceBody{ID: t.ID, Status: status}
	if status == fsm.StartTaskStartingConversation {
		b.AgentServerURL = p.url
	}
	_, err := r.propose(ctx, b)
	return outcome{err: err}
}

// bind gives the task the sandbox it names, or a new one. The new one's key is
// written first; if the command does not follow, that version is unreferenced
// and is collected.
func (r *StartTasks) bind(ctx context.Context, t *fsm.StartTask, d *drawn) outcome {
	if id := t.Request.SandboxID; id != nil && *id != "" {
		r.step(ctx, t, "bind")
		_, err := r.propose(ctx, &fsm.StartTaskBindBody{ID: t.ID, SandboxID: *id})
		return bindOutcome(err)
	}
	// Not drawn: a leader that follows a lost one writes the key where that one
	// did, and no entry is left behind that nobody owns.
	id := t.ID
	if t.Request.ConversationID != nil {
		id = t.ConversationID
	} else if d.id == "" && r.store.View().ClaimableMember("", t.UserID, nil) != nil {
		r.step(ctx, t, "bind")
		_, err := r.propose(ctx, &fsm.StartTaskBindBody{ID: t.ID, Create: &fsm.SandboxCreateBody{Warm: true}})
		if fsm.CodeOf(err) != fsm.CodePoolEmpty {
			return bindOutcome(err)
		}
	}
	o := r.bindNew(ctx, t, id, d)
	if errors.Is(o.err, errIDTaken) {
		// Another user's sandbox has the id that was wished for.
		o = r.bindNew(ctx, t, base62(16), d)
	}
	return o
}

// drawn is a new sandbox's id and stored key. It is kept while its command is
// tried again, so that one task does not leave a trail of keys.
type drawn struct {
	id, hash string
	ref      fsm.SecretRef
	// late: the agent server took long for the last call that creates the
	// conversation; lateClone: for the last that prepares the repository.
	late, lateClone bool
}

var errIDTaken = errors.New("the sandbox id is taken")

func (r *StartTasks) bindNew(ctx context.Context, t *fsm.StartTask, id string, d *drawn) outcome {
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
	// Bound meanwhile by somebody else, perhaps to another sandbox: then this
	// key is unreferenced and is the collector's. Deleting its entry here could
	// hit a sandbox that got the same id.
	return bindOutcome(err)
}

// draw makes the key of a new sandbox and stores it.
func (r *StartTasks) draw(ctx context.Context, t *fsm.StartTask, id string, d *drawn) error {
	// A command that can't create the sandbox would leave a secret behind.
	if r.store.View().SandboxAny(id) != nil {
		return errIDTaken
	}
	if err := r.writes.Acquire(ctx, 1); err != nil {
		return err
	}
	defer r.writes.Release(1)
	r.step(ctx, t, "write key")
	ref, hash, err := writeKey(ctx, r.secrets, id)
	if err != nil {
		return err
	}
	*d = drawn{id: id, hash: hash, ref: ref}
	return nil
}

// writeKey makes the keys of a sandbox and stores them: its own, whose hash it
// gives, and the one its agent server seals with what it keeps.
func writeKey(ctx context.Context, secrets Secrets, id string) (ref fsm.SecretRef, hash string, err error) {
	key, seal := base62(32), base62(32)
	ref, err = secrets.Write(ctx, sessionPath(id), map[string]string{secretKeyMember: key, sealKeyMember: seal})
	return ref, hashed(key), err
}

// hashed is a key's SHA-256, hex.
func hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

func bindOutcome(err error) outcome {
	switch fsm.CodeOf(err) {
	case fsm.CodeNotFound, fsm.CodeInvalid:
		return outcome{fatal: err.Error()}
	default:
		// A limit too: what was accepted had room then, and waits for it until
		// the deadline if it asks for more now.
		return outcome{err: err}
	}
}

// place is where a task's sandbox can be reached.
type place struct {
	sandbox *fsm.Sandbox
	url     string
	// projects is the directory for projects, absolute in the sandbox.
	projects string
}

// sandbox looks whether the task's sandbox is RUNNING. When it is not, place is
// nil and the outcome says whether to wait or to fail.
func (r *StartTasks) sandbox(v *fsm.View, t *fsm.StartTask) (*place, outcome) {
	s := v.SandboxAny(t.SandboxID)
	if s == nil || s.UserID != t.UserID || s.Desired == fsm.DesiredDeleted {
		return nil, outcome{fatal: "Sandbox was deleted: " + t.SandboxID}
	}
	if s.Desired == fsm.DesiredPaused {
		return nil, outcome{fatal: "Sandbox was paused before the conversation was started: " + t.SandboxID}
	}
	switch s.State() {
	case fsm.SandboxRunning:
	case fsm.SandboxError, fsm.SandboxMissing:
		reason := s.Status.Detail
		if reason == "" {
			reason = s.Status.Reason
		}
		return nil, outcome{fatal: fmt.Sprintf("Sandbox %s is in %s: %s", t.SandboxID, s.State(), reason)}
	default:
		return nil, outcome{wait: true, detail: s.Status.Detail}
	}
	p := &place{sandbox: s, url: AgentURL(s.Status.Placement), projects: ProjectDir(s.Template, s.Status.Placement)}
	if p.url == "" || p.projects == "" {
		return nil, outcome{wait: true, detail: "the sandbox's address is not known yet"}
	}
	return p, outcome{}
}

// converse creates the conversation in the sandbox and finishes the task.
// Settings and secrets are read here, and their values go into this one call.
func (r *StartTasks) converse(ctx context.Context, v *fsm.View, t *fsm.StartTask, p *place) outcome {
	in, o := r.inputs(ctx, v, t, p)
	if o != (outcome{}) {
		return o
	}
	req, err := in.request()
	if err != nil {
		return outcome{fatal: in.scrub(err.Error())}
	}
	r.step(ctx, t, "create conversation")
	_, created, err := r.agents.CreateConversation(ctx, p.url, in.key, req)
	if err != nil {
		return r.agentOutcome(err, in)
	}
	r.log.Debug("conversation is in its sandbox", "task", t.ID, "conversation", t.ConversationID, "reason", map[bool]string{true: "created", false: "found"}[created])
	r.step(ctx, t, "finish")
	_, err = r.propose(ctx, &fsm.StartTaskFinishBody{ID: t.ID, Conversation: in.conversation(r.now())})
	switch fsm.CodeOf(err) {
	case "":
		r.step(ctx, t, "forget")
		r.forget(ctx, t)
		return outcome{}
	case fsm.CodeConflict, fsm.CodeInvalid:
		return outcome{fatal: in.scrub(err.Error())}
	default:
		return outcome{err: err}
	}
}

// agentOutcome says what an agent server's failure means for the task.
func (r *StartTasks) agentOutcome(err error, in *inputs) outcome {
	text := in.scrub(err.Error())
	if errors.Is(err, agent.ErrRefused) || errors.Is(err, agent.ErrBadAnswer) {
		return outcome{fatal: text}
	}
	// Unreachable, failing, or refusing the key: the sandbox may just be
	// starting again. Its own state decides in the end.
	return outcome{err: errors.New(text)}
}

const base62Digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// base62 gives n random bytes as digits and letters.
func base62(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	x, base, rem := new(big.Int).SetBytes(b), big.NewInt(62), new(big.Int)
	var out []byte
	for x.Sign() > 0 {
		x.DivMod(x, base, rem)
		out = append(out, base62Digits[rem.Int64()])
	}
	if len(out) == 0 {
		return "0"
	}
	return string(out)
}

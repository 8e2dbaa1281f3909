package fsm

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/hashicorp/go-memdb"
)

// How long a command id is remembered. An internal id (no fingerprint) has to outlive every
// repetition of its command that may still be applied. A client's id is kept as long as the
// Idempotency-Key header guarantees.
const (
	// MaxCommandAge is how far a command's time may be from the leader's clock, in either direction,
	// when it is put into the log (cluster).
	MaxCommandAge = 60 * time.Second
	// InternalResultTTL is how long, in command time, an internal command is remembered. The newest
	// command time of a log is at most MaxCommandAge ahead of the leader's clock, and the leader
	// refuses commands that are more than MaxCommandAge behind it.
	InternalResultTTL = 2 * MaxCommandAge
	// ClientResultTTL is how long, in command time, a client's command is
	// remembered.
	ClientResultTTL = 24 * time.Hour
	// ClientResults is how many commands of one user's clients are remembered for
	// ClientResultTTL. Beyond that number, those younger than InternalResultTTL are remembered
	// like internal commands.
	ClientResults = 10000

	// The weights bound the memory, in bytes: above them the oldest ids are forgotten early. There is
	// room for about 200,000 ordinary commands.
	maxInternalWeight = 64 << 20
	maxClientWeight   = 64 << 20
	// expireAlways bounds how many expired commands any command removes. expirePerCommand is that of a
	// client's command below VersionRoom, where others remove none.
	expireAlways     = 64
	expirePerCommand = 16
)

// commandRecord is the stored outcome of one command.
type commandRecord struct {
	ID          string    `json:"id"`
	Type        string    `json:"type"`
	UserID      string    `json:"user_id,omitempty"`
	Fingerprint string    `json:"fingerprint,omitempty"`
	Time        time.Time `json:"time"`
	// Result.Index is set for errors too.
	Result Result `json:"result"`
	Err    *Error `json:"error,omitempty"`
}

// clientCommandTable holds the records with a fingerprint.
func clientCommandTable() *memdb.TableSchema {
	return newTable(tableClientCommands,
		newIndex(indexID, func(r *commandRecord) []byte { return []byte(r.ID) }),
		// The records of one user, oldest first, by log index.
		newIndex(indexUser, func(r *commandRecord) []byte {
			k := binary.BigEndian.AppendUint64(prefixOf(r.UserID), r.Result.Index)
			return append(k, r.ID...)
		}),
		// All records, oldest first, by command time.
		newIndex(indexTime, func(r *commandRecord) []byte {
			return append(appendTime(nil, r.Time), r.ID...)
		}),
	)
}

// recorded returns the outcome of a command whose id is known. It refuses a command whose id may
// have been forgotten, so that no command is applied twice.
func (t *transaction) recorded(cmd Command) (Outcome, bool) {
	r := t.store.commands.get(cmd.ID)
	if r == nil {
		r = first[commandRecord](t.txn, tableClientCommands, indexID, []byte(cmd.ID))
		if r != nil && r.expired(cmd.Time) {
			t.forget(r)
			return Outcome{}, false
		}
	}
	if r == nil {
		return t.forgotten(cmd)
	}
	// A second copy of the same command gets the recorded outcome, whatever has happened to its key. A
	// different time means another request with the client's id.
	if !r.Time.Equal(cmd.Time) {
		if err := t.refused(cmd); err != nil {
			return Outcome{Result{Index: t.index}, err}, true
		}
	}
	if r.Fingerprint != cmd.Fingerprint || r.UserID != cmd.UserID {
		return Outcome{Result{Index: t.index}, Errorf(CodeIdempotencyMismatch,
			"this idempotency key was used before with another request: repeat that request or use another key")}, true
	}
	o := Outcome{r.Result.whole(t.txn), r.Err}
	o.Result.Replayed = true
	return o, true
}

// forgotten refuses a command from a time whose ids are no longer remembered (meta.Forgotten). A
// command from long before that time is no repetition, because no leader accepts one that old: the
// clocks were set back. Opening a term twice is harmless, and after a wrong clock the check would
// prevent every new term.
func (t *transaction) forgotten(cmd Command) (Outcome, bool) {
	until := t.meta.Forgotten
	if cmd.Type == TermOpen || cmd.Time.After(until) || !cmd.Time.After(until.Add(-InternalResultTTL)) {
		return Outcome{}, false
	}
	return Outcome{Result{Index: t.index}, &Error{Code: CodeOutcomeUnknown, RetryAfter: time.Second, Message: fmt.Sprintf(
		"the command is of %s and ids are remembered after %s only: it was not applied now, and may have been before; "+
			"if this repeats, the nodes' clocks differ",
		cmd.Time.UTC(), until)}}, true
}

// record stores the outcome of a command. That of events.append needs none: a copy of it finds another
// number of events than its own, and at a thousand a second the records are 60 MB.
func (t *transaction) record(cmd Command, result Result, err *Error) {
	if cmd.Type == EventsAppend && cmd.Fingerprint == "" {
		return
	}
	r := &commandRecord{
		ID: cmd.ID, Type: string(cmd.Type), UserID: cmd.UserID, Fingerprint: cmd.Fingerprint,
		Time: cmd.Time, Result: result, Err: err,
	}
	if r.Fingerprint == "" {
		t.remember(r, cmd.Time)
		return
	}
	if t.meta.active(VersionAccess) {
		if task := r.Result.StartTask; task != nil {
			kept := *task
			kept.Request = task.Request.withoutLarge()
			r.Result.StartTask = &kept
		}
		// A full state has room for what removes something, and not for its result.
		if t.full(r) {
			t.remember(r, cmd.Time)
			return
		}
	}
	must(t.txn.Insert(tableClientCommands, r))
	t.account(resourceUse{}, resourceUseOf(&t.meta, r))
	u := t.store.usageOf(r.UserID)
	u.clientCommands++
	u.clientWeight += r.weight()
	if !t.meta.active(VersionRoom) {
		t.forgetExpired(cmd.Time, expirePerCommand)
	}
	for u.clientCommands > ClientResults || u.clientWeight > maxClientWeight && u.clientCommands > 1 {
		old := firstWithPrefix[commandRecord](t.txn, tableClientCommands, indexUser, prefixOf(r.UserID))
		t.forget(old)
		// A second copy of the command may still arrive, however many commands its user sends.
		if cmd.Time.Sub(old.Time) < InternalResultTTL {
			t.remember(old, cmd.Time)
		}
	}
}

// remember keeps a record for InternalResultTTL, or for as long as there is room.
func (t *transaction) remember(r *commandRecord, now time.Time) {
	slim := *r
	slim.Result = r.Result.slim()
	t.meta.Forgotten = later(t.meta.Forgotten, t.store.commands.add(&slim, now).UTC())
}

// slim returns the result without the start request, which can be large and which the task's row
// has too.
func (r Result) slim() Result {
	if r.StartTask != nil {
		task := *r.StartTask
		task.Request = StartRequest{}
		r.StartTask = &task
	}
	return r
}

// whole reverses slim. A start task's request changes only when the task ends: the texts for the
// agent go. It stays missing only if the task is gone.
func (r Result) whole(txn *memdb.Txn) Result {
	if r.StartTask == nil {
		return r
	}
	if row := first[StartTask](txn, tableStartTasks, indexID, []byte(r.StartTask.ID)); row != nil {
		task := *r.StartTask
		task.Request = row.Request
		r.StartTask = &task
	}
	return r
}

// expired reports whether a client's command is remembered no longer.
func (r *commandRecord) expired(now time.Time) bool { return now.Sub(r.Time) > ClientResultTTL }

// forgetExpired removes a bounded number of expired client commands.
func (t *transaction) forgetExpired(now time.Time, most int) {
	var expired []*commandRecord
	for r := range withPrefix[commandRecord](t.txn, tableClientCommands, indexTime, nil) {
		if !r.expired(now) || len(expired) == most {
			break
		}
		expired = append(expired, r)
	}
	for _, r := range expired {
		t.forget(r)
	}
}

// forgetUser removes what a user's clients were answered. What a second copy of a command may still
// repeat is remembered without the answer, so that nothing is applied twice and the next owner of the
// name learns nothing.
func (t *transaction) forgetUser(user string) {
	for _, r := range collect(withPrefix[commandRecord](t.txn, tableClientCommands, indexUser, prefixOf(user))) {
		t.forget(r)
		if t.now.Sub(r.Time) < InternalResultTTL {
			t.remember(r.blank(), t.now)
		}
	}
	t.store.commands.blank(user)
}

// blank returns the record of a command whose user was deleted.
func (r *commandRecord) blank() *commandRecord {
	b := *r
	b.Result = Result{Index: r.Result.Index}
	b.Err = Errorf(CodeOutcomeUnknown,
		"the user was deleted after this was first asked for: look what is there, "+
			"and repeat it with another Idempotency-Key if need be")
	return &b
}

// forget removes one client command.
func (t *transaction) forget(r *commandRecord) {
	must(t.txn.Delete(tableClientCommands, r))
	t.account(resourceUseOf(&t.meta, r), resourceUse{})
	u := t.store.usageOf(r.UserID)
	u.clientCommands--
	u.clientWeight -= r.weight()
}

// weight estimates the bytes that a record takes in memory. It depends on the log alone, so that
// all nodes forget the same records.
func (r *commandRecord) weight() int {
	w := 256 + len(r.ID) + len(r.UserID) + len(r.Fingerprint)
	if r.Err != nil {
		w += len(r.Err.Message)
	}
	if r.Result.Sandbox != nil {
		w += 2048
	}
	if c := r.Result.Conversation; c != nil {
		w += 2048 + len(valueOr(c.Title, ""))
	}
	if r.Result.StartTask != nil {
		w += r.Result.StartTask.Request.weight()
	}
	return w
}

package fsm

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/hashicorp/go-memdb"
)

// How long a command id is remembered. Internal ids (no fingerprint) have to
// outlive every repetition of their command that may still be applied; ids that
// clients chose keep the promise of the Idempotency-Key header.
const (
	// MaxCommandAge is how far a command's time may be from the leader's clock,
	// either way, when it is put into the log (cluster).
	MaxCommandAge = 60 * time.Second
	// InternalResultTTL is how long, in command time, an internal command is
	// remembered. The newest command time of a log is at most MaxCommandAge ahead
	// of a leader that takes none older than that.
	InternalResultTTL = 2 * MaxCommandAge
	// ClientResultTTL is how long, in command time, a client's command is
	// remembered.
	ClientResultTTL = 24 * time.Hour
	// ClientResults is how many commands of one user's clients are remembered
	// that long; younger ones than InternalResultTTL always are.
	ClientResults = 10000

	// The weights bound the memory: the oldest ids go early then. Room for some
	// two hundred thousand ordinary commands.
	maxInternalWeight = 64 << 20
	maxClientWeight   = 64 << 20
	// expirePerCommand bounds the work one client command does on expired ones.
	expirePerCommand = 16
)

// commandRecord is what is remembered of one command.
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
		// Oldest first of one user, by log index.
		newIndex(indexUser, func(r *commandRecord) []byte {
			k := binary.BigEndian.AppendUint64(prefixOf(r.UserID), r.Result.Index)
			return append(k, r.ID...)
		}),
		// Oldest first of all, by command time.
		newIndex(indexTime, func(r *commandRecord) []byte {
			return append(appendTime(nil, r.Time), r.ID...)
		}),
	)
}

// recorded answers a command whose id was seen before, and refuses one that
// may have been: what is forgotten is never silently applied again.
func (t *transaction) recorded(cmd Command) (Outcome, bool) {
	r := t.store.commands.get(cmd.ID)
	if r == nil {
		r = first[commandRecord](t.txn, tableClientCommands, indexID, []byte(cmd.ID))
		if r != nil && cmd.Time.Sub(r.Time) > ClientResultTTL {
			t.forget(r)
			return Outcome{}, false
		}
	}
	if r == nil {
		return t.forgotten(cmd)
	}
	// The same command on its way a second time is answered whatever became of its
	// key since. Another time is another request, with the client's id.
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

// forgotten refuses a command from the time whose ids are no longer remembered
// (meta.Forgotten). Far before that time it is no repetition, because no leader
// takes one that old: clocks were set back. Opening a term twice is harmless,
// and without it no term would open behind a clock that was wrong.
func (t *transaction) forgotten(cmd Command) (Outcome, bool) {
	until := t.meta.Forgotten
	if cmd.Type == TermOpen || cmd.Time.After(until) || !cmd.Time.After(until.Add(-InternalResultTTL)) {
		return Outcome{}, false
	}
	return Outcome{Result{Index: t.index}, &Error{Code: CodeOutcomeUnknown, RetryAfter: time.Second, Message: fmt.Sprintf(
		"the command is of %s and ids are remembered after %s only: it was not applied now, and may have been before; if this repeats, the nodes' clocks differ",
		cmd.Time.UTC(), until)}}, true
}

// record remembers what a command came to.
func (t *transaction) record(cmd Command, result Result, err *Error) {
	r := &commandRecord{
		ID: cmd.ID, Type: string(cmd.Type), UserID: cmd.UserID, Fingerprint: cmd.Fingerprint,
		Time: cmd.Time, Result: result, Err: err,
	}
	if r.Fingerprint == "" {
		t.remember(r, cmd.Time)
		return
	}
	must(t.txn.Insert(tableClientCommands, r))
	u := t.store.usageOf(r.UserID)
	u.clientCommands++
	u.clientWeight += r.weight()
	t.forgetExpired(cmd.Time)
	for u.clientCommands > ClientResults || u.clientWeight > maxClientWeight && u.clientCommands > 1 {
		old := firstWithPrefix[commandRecord](t.txn, tableClientCommands, indexUser, prefixOf(r.UserID))
		t.forget(old)
		// It may be on its way a second time, whatever else its user does.
		if cmd.Time.Sub(old.Time) < InternalResultTTL {
			t.remember(old, cmd.Time)
		}
	}
}

// remember keeps a record for InternalResultTTL, or as long as there is room.
func (t *transaction) remember(r *commandRecord, now time.Time) {
	slim := *r
	slim.Result = r.Result.slim()
	t.meta.Forgotten = later(t.meta.Forgotten, t.store.commands.add(&slim, now).UTC())
}

// slim gives the result without what its rows have as well and what can be
// large.
func (r Result) slim() Result {
	if r.StartTask != nil {
		task := *r.StartTask
		task.Request = StartRequest{}
		r.StartTask = &task
	}
	return r
}

// whole undoes slim. A start task's request never changes; only of a task that
// is gone it is missing.
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

// forgetExpired drops a bounded number of client commands past their time.
func (t *transaction) forgetExpired(now time.Time) {
	var expired []*commandRecord
	for r := range withPrefix[commandRecord](t.txn, tableClientCommands, indexTime, nil) {
		if now.Sub(r.Time) <= ClientResultTTL || len(expired) == expirePerCommand {
			break
		}
		expired = append(expired, r)
	}
	for _, r := range expired {
		t.forget(r)
	}
}

// forget drops one client command.
func (t *transaction) forget(r *commandRecord) {
	must(t.txn.Delete(tableClientCommands, r))
	u := t.store.usageOf(r.UserID)
	u.clientCommands--
	u.clientWeight -= r.weight()
}

// weight estimates the bytes a record keeps in memory. It depends on the log
// only, so that all nodes forget the same records.
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

package fsm

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-memdb"
)

// Entry is one command of the Raft log with its index.
type Entry struct {
	Index   uint64
	Command Command
}

// Outcome is what one Entry came to. Result.Index is set either way.
type Outcome struct {
	Result Result
	Err    *Error
}

// Apply applies one command. The error, if any, is an *Error; it is as much a
// function of the log as the result, and is kept in the command-id table like
// one. A command that fails changes nothing but that table and the index.
// Apply panics on a state that can't be, so that a node whose state may be
// wrong stops instead of serving it.
func (s *Store) Apply(index uint64, cmd Command) (Result, error) {
	o := s.ApplyBatch([]Entry{{Index: index, Command: cmd}})[0]
	if o.Err != nil {
		return o.Result, o.Err
	}
	return o.Result, nil
}

// ApplyBatch applies the entries in order and publishes one View at the end.
// Each command is atomic of its own: one that fails does not disturb the
// others.
func (s *Store) ApplyBatch(entries []Entry) []Outcome {
	if len(entries) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.View()
	t := &transaction{store: s, before: old, txn: s.db.Txn(true), meta: old.meta, index: old.index, keys: old.keys, settings: map[string]*Settings{}}
	// After a panic nothing of the batch is published.
	defer t.txn.Abort()
	outcomes := make([]Outcome, len(entries))
	for i, e := range entries {
		t.index = e.Index
		outcomes[i] = t.apply(e.Command)
		if t.meta.History != nil {
			t.meta.LastCommand = e.Index
		}
	}
	t.txn.Commit()
	s.publish(&View{index: t.index, meta: t.meta, txn: s.db.Txn(false), commands: s.commands, keys: t.keys}, t.changed)
	return outcomes
}

// transaction is one ApplyBatch in progress. Every apply function checks
// everything first and writes only when nothing can fail any more: that is what
// makes a command atomic inside the shared transaction.
type transaction struct {
	store *Store
	// before is the store as the batch found it.
	before *View
	txn    *memdb.Txn
	meta   meta
	index  uint64
	// settings are the rows that the batch has put.
	settings map[string]*Settings
	// cmd is the command in hand; now is its time.
	cmd Command
	now time.Time
	// changed is set when the scheduler has something to look at.
	changed bool
	// keys is View.keys.
	keys uint64
}

// apply runs one command through envelope checks, the command-id table and its
// apply function.
func (t *transaction) apply(cmd Command) Outcome {
	t.cmd, t.now = cmd, cmd.Time.UTC().Truncate(time.Microsecond)
	stamp := Result{Index: t.index}
	if err := cmd.check(); err != nil {
		return Outcome{stamp, err}
	}
	if o, found := t.recorded(cmd); found {
		return o
	}
	// Not recorded: the same command is welcome once the version is raised.
	if min := MinVersion(cmd.Type); t.meta.ProtocolVersion < min {
		return Outcome{stamp, Errorf(CodeProtocol, "%s needs protocol version %d and the cluster is at %d: upgrade every node",
			cmd.Type, min, t.meta.ProtocolVersion)}
	}
	// Not recorded: another key of the same user may send the same id.
	if err := t.refused(cmd); err != nil {
		return Outcome{stamp, err}
	}
	result, err := t.dispatch(cmd.Body)
	result.Index = t.index
	if err != nil {
		result = stamp
	}
	// Not recorded either: a client told to try again later sends the same id,
	// and so does a cold start after no warm one could be had.
	if err != nil && (err.Code == CodeLimit || err.Code == CodePoolEmpty) {
		return Outcome{result, err}
	}
	t.record(cmd, result, err)
	return Outcome{result, err}
}

// Validate checks what Apply does of a command without any state: the envelope and
// the body. It is for those who do something before they propose.
func (c Command) Validate() error {
	if err := c.check(); err != nil {
		return err
	}
	return c.Body.Validate()
}

// check tests the envelope. A command that fails it is answered and not
// recorded.
func (c Command) check() *Error {
	switch {
	case c.ID == "" || len(c.ID) > maxID:
		return Errorf(CodeInvalid, "a command needs an id of 1 to %d bytes", maxID)
	case c.Body == nil || c.Body.CommandType() != c.Type:
		return Errorf(CodeInvalid, "command %s has the body of another type", c.Type)
	case c.Time.IsZero() || c.Time.Year() > 9999 || c.Time.Year() < 1:
		return Errorf(CodeInvalid, "command %s needs a time", c.Type)
	case len(c.Fingerprint) > maxID:
		return Errorf(CodeInvalid, "a fingerprint has at most %d bytes", maxID)
	case c.UserID != "" && !validUserID(c.UserID):
		return Errorf(CodeInvalid, "bad user id %q", clip(c.UserID))
	case c.UserID == "" && c.Type.ofUser():
		return Errorf(CodeInvalid, "command %s needs a user", c.Type)
	}
	return nil
}

// refSet is the secret refs of one row; unused places are zero.
type refSet [4]SecretRef

// referrer is a row that holds references to secrets.
type referrer interface {
	secretRefs() refSet
}

// put stores next in place of old (nil when new) and keeps count of the secret
// refs both hold and of what limits bound.
func put[T any](t *transaction, table string, old, next *T) {
	t.recount(refsOf(old), refsOf(next))
	t.account(burdenOf(old), burdenOf(next))
	must(t.txn.Insert(table, next))
	t.mark(table)
}

// drop removes a stored row.
func drop[T any](t *transaction, table string, old *T) {
	t.recount(refsOf(old), refSet{})
	t.account(burdenOf(old), burden{})
	must(t.txn.Delete(table, old))
	t.mark(table)
}

// mark notes a change that somebody waits for.
func (t *transaction) mark(table string) {
	switch table {
	case tableSandboxes, tableStartTasks, tableSpecs, tableOrphans:
		t.changed = true
	}
}

// refsOf gives the refs of a row; rows that hold none give zero ones.
func refsOf[T any](row *T) refSet {
	if row == nil {
		return refSet{}
	}
	if r, ok := any(row).(referrer); ok {
		return r.secretRefs()
	}
	return refSet{}
}

// recount moves the reference counts from the old refs to the new ones. Most
// writes leave them alone and cost nothing here.
func (t *transaction) recount(old, next refSet) {
	if old == next {
		return
	}
	for _, r := range next {
		t.addRef(r, 1)
	}
	for _, r := range old {
		t.addRef(r, -1)
	}
}

// addRef changes one reference count.
func (t *transaction) addRef(r SecretRef, by int) {
	if r.IsZero() {
		return
	}
	row := secretRef{ref: r}
	if old := first[secretRef](t.txn, tableSecretRefs, indexID, refKey(r)); old != nil {
		row = *old
	}
	if row.count += by; by > 0 {
		row.ref = r // the newest one says when the version was made
	}
	if row.count < 0 {
		panic(fmt.Sprintf("fsm: impossible state: secret ref %s version %d released twice", r.Path, r.Version))
	}
	if row.count == 0 {
		must(t.txn.Delete(tableSecretRefs, &row))
		return
	}
	must(t.txn.Insert(tableSecretRefs, &row))
}

// asError turns what Validate returned into an *Error.
func asError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Errorf(CodeInvalid, "%v", err)
}

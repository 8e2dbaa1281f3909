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

// Outcome is the result or the error of one Entry. Result.Index is set in both cases.
type Outcome struct {
	Result Result
	Err    *Error
}

// Apply applies one command. An error is an *Error. It depends on the log alone, like the result,
// and the command-id table records it. A command that fails changes only that table and the index.
// Apply panics on an impossible state, so that a node whose state may be wrong stops instead of
// serving it.
func (s *Store) Apply(index uint64, cmd Command) (Result, error) {
	o := s.ApplyBatch([]Entry{{Index: index, Command: cmd}})[0]
	if o.Err != nil {
		return o.Result, o.Err
	}
	return o.Result, nil
}

// ApplyBatch applies the entries in order and publishes one View at the end. Each command is
// atomic: one that fails does not affect the others.
func (s *Store) ApplyBatch(entries []Entry) []Outcome {
	if len(entries) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = nil
	old := s.View()
	t := &transaction{
		store:    s,
		before:   old,
		txn:      s.db.Txn(true),
		meta:     old.meta,
		index:    old.index,
		keys:     old.keys,
		settings: map[string]*Settings{},
	}
	// After a panic nothing of the batch is published.
	defer t.txn.Abort()
	outcomes := make([]Outcome, len(entries))
	for i, e := range entries {
		t.index = e.Index
		outcomes[i] = t.apply(e.Command)
		if t.meta.active(VersionHistory) {
			t.meta.LastCommand = e.Index
		}
	}
	t.txn.Commit()
	s.publish(&View{index: t.index, meta: t.meta, txn: s.db.Txn(false), commands: s.commands, keys: t.keys}, t.epoch)
	return outcomes
}

// transaction is one ApplyBatch in progress. An apply function finishes every check before its
// first write. This makes a command atomic inside the shared transaction.
type transaction struct {
	store *Store
	// before is the View when the batch began.
	before *View
	txn    *memdb.Txn
	meta   meta
	index  uint64
	// settings are the rows that the batch wrote, nil for one that it removed.
	settings map[string]*Settings
	// cmd is the current command and now its time.
	cmd Command
	now time.Time
	// epoch is set when the scheduler has to look at the new View.
	epoch *epoch
	// keys becomes View.keys.
	keys uint64
	// sums, if not nil, gathers what the rows add to the usages until storeSums.
	sums map[string]Usage
}

// apply runs one command: envelope checks, command-id table, apply function.
func (t *transaction) apply(cmd Command) Outcome {
	t.cmd, t.now = cmd, cmd.Time.UTC().Truncate(time.Microsecond)
	stamp := Result{Index: t.index}
	if err := cmd.check(); err != nil {
		return Outcome{stamp, err}
	}
	if t.meta.active(VersionRoom) {
		t.forgetExpired(t.now, expireAlways)
		if t.index%forgetReplacedEvery == 0 {
			t.forgetReplaced(forgetReplacedMost)
		}
	}
	if o, found := t.recorded(cmd); found {
		return o
	}
	// Not recorded: the same command is accepted once the version is raised.
	if min := MinVersion(cmd.Type); !t.meta.active(min) {
		return Outcome{stamp, NeedsVersion(string(cmd.Type), min, t.meta.ProtocolVersion)}
	}
	// Not recorded: another key of the same user may send the same id.
	if err := t.refused(cmd); err != nil {
		return Outcome{stamp, err}
	}
	if err := t.unauthorised(cmd); err != nil {
		return Outcome{stamp, err}
	}
	result, err := t.dispatch(cmd.Body)
	result.Index = t.index
	if err != nil {
		result = stamp
	}
	// Not recorded either: a client that was asked to retry sends the same id, and so does a cold
	// start after the warm pool was empty.
	if err != nil && (err.Code == CodeLimit || err.Code == CodePoolEmpty) {
		return Outcome{result, err}
	}
	t.record(cmd, result, err)
	return Outcome{result, err}
}

// Validate makes the checks of Apply that need nothing of the state but its protocol version: the
// envelope and the body. Callers use it before they do something that precedes the proposal.
func (v *View) Validate(c Command) error {
	if err := c.check(); err != nil {
		return err
	}
	return validate(c.Body, v.meta.ProtocolVersion)
}

// check tests the envelope. A command that fails it is refused and not recorded.
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

// refSet holds the secret refs of one row. Unused elements are zero.
type refSet [4 + maxFormerEndpoints]SecretRef

// referrer is a row that holds references to secrets.
type referrer interface {
	secretRefs() refSet
}

// put stores next in place of old (nil for a new row). It updates the reference counts of both
// rows' secrets and the usage that limits bound.
func put[T any](t *transaction, table string, old, next *T) {
	t.recount(refsOf(old), refsOf(next))
	t.account(resourceUseOf(&t.meta, old), resourceUseOf(&t.meta, next))
	must(t.txn.Insert(table, next))
	if old != nil {
		t.keepReplaced(old, refsOf(next))
	}
	t.mark(table, next)
}

// drop removes a stored row and releases its references and usage.
func drop[T any](t *transaction, table string, old *T) {
	t.recount(refsOf(old), refSet{})
	t.account(resourceUseOf(&t.meta, old), resourceUse{})
	must(t.txn.Delete(table, old))
	t.keepReplaced(old, refSet{})
	t.mark(table, old)
}

// mark notes a change of the tables that the scheduler waits for.
func (t *transaction) mark(table string, row any) {
	switch table {
	case tableSandboxes, tableStartTasks, tableSpecs, tableOrphans, tableSetups:
		t.changed()
	}
	switch row := row.(type) {
	case *Sandbox:
		t.epoch.wrote(row.ID)
	case *Orphan:
		t.epoch.wrote(row.Sandbox)
	}
}

// changed ends the present epoch, and returns what changes with it.
func (t *transaction) changed() *Changes {
	if t.epoch == nil {
		t.epoch = new(epoch)
	}
	return &t.epoch.began
}

// refsOf returns the secret refs of a row, zero ones for a row without refs.
func refsOf[T any](row *T) refSet {
	if row == nil {
		return refSet{}
	}
	if r, ok := any(row).(referrer); ok {
		return r.secretRefs()
	}
	return refSet{}
}

// recount moves the reference counts from the old refs to the new ones. Most writes do not change
// them and return early.
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

func (t *transaction) addRef(r SecretRef, by int) {
	if r.IsZero() {
		return
	}
	row := secretRef{ref: r}
	if old := first[secretRef](t.txn, tableSecretRefs, indexID, refKey(r)); old != nil {
		row = *old
	}
	if row.count += by; by > 0 {
		row.ref = r // the newest ref holds the creation time of the version
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

// asError converts an error of Validate to an *Error.
func asError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Errorf(CodeInvalid, "%v", err)
}

package fsm

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/hashicorp/go-memdb"
)

// Usage is what limits bound, for one user or for the installation. It is derived from the
// rows of users, the reservations of start tasks and the recent starts.
type Usage struct {
	// Running, Total, CPU (MHz) and Memory (MiB) as in Limits.
	Running int
	Total   int
	CPU     int
	Memory  int
	// StateBytes sums what the rows of the state count for, in bytes.
	StateBytes int
	// EventBytes sums the bytes of the events, which are not in the state.
	EventBytes int
	// doneBytes is the part of StateBytes in finished start tasks.
	doneBytes int
	// starts counts the recent starts that are kept.
	starts int
}

// plus adds two usages.
func (u Usage) plus(o Usage) Usage {
	return Usage{
		u.Running + o.Running, u.Total + o.Total, u.CPU + o.CPU, u.Memory + o.Memory,
		u.StateBytes + o.StateBytes, u.EventBytes + o.EventBytes, u.doneBytes + o.doneBytes, u.starts + o.starts,
	}
}

// minus is the inverse of plus.
func (u Usage) minus(o Usage) Usage {
	return u.plus(Usage{
		-o.Running, -o.Total, -o.CPU, -o.Memory, -o.StateBytes, -o.EventBytes, -o.doneBytes, -o.starts,
	})
}

// usageRow is a row of tableUsage. The installation's row has the user "".
type usageRow struct {
	user string
	Usage
}

func usageTable() *memdb.TableSchema {
	return newTable(tableUsage, newIndex(indexID, func(u *usageRow) []byte { return usageKey(u.user) }))
}

// usageKey is never empty, unlike the user of the installation's row.
func usageKey(user string) []byte { return prefixOf(user) }

// resourceUse is what one row adds to the usage of its user and of the installation.
type resourceUse struct {
	user         string
	mine, theirs Usage
}

// resourceUseOf returns what a row adds; nil and rows of other tables add nothing.
func resourceUseOf[T any](m *meta, row *T) (use resourceUse) {
	if row == nil {
		return resourceUse{}
	}
	user, bytes := m.rowBytes(row)
	if user != "" {
		use = resourceUse{user: user, mine: Usage{StateBytes: bytes}}
	}
	use.theirs = Usage{StateBytes: bytes}
	switch row := any(row).(type) {
	case *Sandbox:
		use = use.plus(row.resourceUse())
	case *StartTask:
		u := row.Reservation.usage()
		if row.Done() {
			u.doneBytes = bytes
		}
		use = use.plus(resourceUse{row.UserID, u, u})
	case *Conversation:
		if row.Events != nil {
			u := Usage{EventBytes: int(row.Events.Bytes)} //nolint:gosec // bounded by the limit
			use = use.plus(resourceUse{row.UserID, u, u})
		}
	case *recentStart:
		if row.UserID == "" {
			return resourceUse{theirs: Usage{starts: 1}}
		}
		return resourceUse{user: row.UserID, mine: Usage{starts: 1}}
	}
	return use
}

// plus adds the use of the same row.
func (r resourceUse) plus(o resourceUse) resourceUse {
	return resourceUse{o.user, r.mine.plus(o.mine), r.theirs.plus(o.theirs)}
}

// resourceUse returns what a sandbox adds to the usages.
func (s *Sandbox) resourceUse() resourceUse {
	var u Usage
	if s.Desired != DesiredDeleted {
		u.Total = 1
	}
	if s.CountsAsRunning() {
		u.Running, u.CPU, u.Memory = 1, s.Template.CPU, s.Template.Memory
	}
	if s.Member() {
		return resourceUse{theirs: Usage{CPU: u.CPU, Memory: u.Memory}}
	}
	return resourceUse{user: s.UserID, mine: u, theirs: u}
}

// countAgain replaces what the rows counted for below VersionRoom with what they count for from it on.
func (t *transaction) countAgain(version int) {
	old := &meta{ProtocolVersion: version}
	t.sums = map[string]Usage{}
	countTable[Settings](t, old, tableSettings)
	countTable[CustomSecret](t, old, tableCustomSecrets)
	countTable[Provider](t, old, tableProviders)
	countTable[Conversation](t, old, tableConversations)
	countTable[Sandbox](t, old, tableSandboxes)
	countTable[StartTask](t, old, tableStartTasks)
	countTable[commandRecord](t, old, tableClientCommands)
	t.storeSums()
}

// countTable counts the rows of one table again.
func countTable[T any](t *transaction, old *meta, table string) {
	for row := range withPrefix[T](t.txn, table, indexID, nil) {
		t.account(resourceUseOf(old, row), resourceUseOf(&t.meta, row))
	}
}

// account replaces an old row's share of the usages with a new one's. Most writes do not change the
// usages and return early.
func (t *transaction) account(old, next resourceUse) {
	if old == next {
		return
	}
	if old.user == next.user {
		t.addUsage(next.user, next.mine.minus(old.mine))
	} else {
		t.addUsage(old.user, Usage{}.minus(old.mine))
		t.addUsage(next.user, next.mine)
	}
	t.addUsage("", next.theirs.minus(old.theirs))
}

func (t *transaction) addUsage(user string, by Usage) {
	if by == (Usage{}) {
		return
	}
	if t.sums != nil {
		t.sums[user] = t.sums[user].plus(by)
		return
	}
	row := usageRow{user, usageOf(t.txn, user).plus(by)}
	if u := row.Usage; min(u.Running, u.Total, u.CPU, u.Memory, u.StateBytes, u.EventBytes, u.doneBytes,
		u.starts) < 0 {
		panic(fmt.Sprintf("fsm: impossible state: the usage of user %q is %+v", user, u))
	}
	if row.Usage == (Usage{}) {
		must(t.txn.Delete(tableUsage, &row))
		return
	}
	must(t.txn.Insert(tableUsage, &row))
}

// storeSums stores the usages that were summed instead of stored at each row.
func (t *transaction) storeSums() {
	sums := t.sums
	t.sums = nil
	for user, sum := range sums {
		t.addUsage(user, sum)
	}
}

func usageOf(txn *memdb.Txn, user string) Usage {
	if row := first[usageRow](txn, tableUsage, indexID, usageKey(user)); row != nil {
		return row.Usage
	}
	return Usage{}
}

// Usage returns the usage of a user's sandboxes and reservations. userID "" is the installation.
func (v *View) Usage(userID string) Usage { return usageOf(v.txn, userID) }

// recentStart records one start, for Limits.StartsPerMinute. A start under both limits has two
// rows; the installation's has the user "". At most as many rows are kept as their limit allows.
type recentStart struct {
	UserID string    `json:"user_id,omitempty"`
	Time   time.Time `json:"time"`
	// Index is the log index of the command.
	Index uint64 `json:"index"`
}

func recentStartTable() *memdb.TableSchema {
	return newTable(tableRecentStarts,
		// The starts of one scope, oldest first.
		newIndex(indexID, (*recentStart).key))
}

func (s *recentStart) key() []byte {
	return binary.BigEndian.AppendUint64(appendTime(prefixOf(s.UserID), s.Time), s.Index)
}

package fsm

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/hashicorp/go-memdb"
)

// Usage is what limits bound, of one user or of the installation. It is
// derived from the sandboxes, those that start tasks have coming and the recent
// starts.
type Usage struct {
	// Running, Total, CPU (MHz) and Memory (MiB) as in Limits.
	Running int
	Total   int
	CPU     int
	Memory  int
	// starts counts the recent starts that are kept.
	starts int
}

// plus adds up two usages.
func (u Usage) plus(o Usage) Usage {
	return Usage{u.Running + o.Running, u.Total + o.Total, u.CPU + o.CPU, u.Memory + o.Memory, u.starts + o.starts}
}

// minus is the inverse of plus.
func (u Usage) minus(o Usage) Usage {
	return Usage{u.Running - o.Running, u.Total - o.Total, u.CPU - o.CPU, u.Memory - o.Memory, u.starts - o.starts}
}

// usageRow is a row of tableUsage; the installation's has the user "".
type usageRow struct {
	user string
	Usage
}

func usageTable() *memdb.TableSchema {
	return newTable(tableUsage, newIndex(indexID, func(u *usageRow) []byte { return usageKey(u.user) }))
}

// usageKey is never empty, unlike the installation's name.
func usageKey(user string) []byte { return prefixOf(user) }

// burden is what one row adds to the usage of its user and of the installation.
type burden struct {
	user         string
	mine, theirs Usage
}

// burdenOf gives the burden of a row; those of other tables, and nil, are none.
func burdenOf[T any](row *T) burden {
	switch row := any(row).(type) {
	case *Sandbox:
		if row != nil {
			return row.burden()
		}
	case *StartTask:
		if row != nil && row.Coming != nil {
			return burden{user: row.UserID, mine: row.Coming.usage(), theirs: row.Coming.usage()}
		}
	case *recentStart:
		switch {
		case row == nil:
		case row.UserID == "":
			return burden{theirs: Usage{starts: 1}}
		default:
			return burden{user: row.UserID, mine: Usage{starts: 1}}
		}
	}
	return burden{}
}

// burden gives what a sandbox adds to the usages.
func (s *Sandbox) burden() burden {
	var u Usage
	if s.Desired != DesiredDeleted {
		u.Total = 1
	}
	if s.Desired == DesiredRunning {
		u.Running, u.CPU, u.Memory = 1, s.Template.CPU, s.Template.Memory
	}
	if s.Member() {
		return burden{theirs: Usage{CPU: u.CPU, Memory: u.Memory}}
	}
	return burden{user: s.UserID, mine: u, theirs: u}
}

// account moves the usages from an old row's burden to a new one's. Most writes
// leave them alone and cost nothing here.
func (t *transaction) account(old, next burden) {
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

// addUsage changes one usage.
func (t *transaction) addUsage(user string, by Usage) {
	if by == (Usage{}) {
		return
	}
	row := usageRow{user, usageOf(t.txn, user).plus(by)}
	if u := row.Usage; min(u.Running, u.Total, u.CPU, u.Memory, u.starts) < 0 {
		panic(fmt.Sprintf("fsm: impossible state: the usage of user %q is %+v", user, u))
	}
	if row.Usage == (Usage{}) {
		must(t.txn.Delete(tableUsage, &row))
		return
	}
	must(t.txn.Insert(tableUsage, &row))
}

// usageOf reads one usage.
func usageOf(txn *memdb.Txn, user string) Usage {
	if row := first[usageRow](txn, tableUsage, indexID, usageKey(user)); row != nil {
		return row.Usage
	}
	return Usage{}
}

// Usage gives what a user's sandboxes, and those promised, add up to; userID "" is the installation.
func (v *View) Usage(userID string) Usage { return usageOf(v.txn, userID) }

// recentStart remembers that a sandbox was started, for Limits.StartsPerMinute.
// A start under both limits is two rows; the installation's has the user "".
// No more are kept than the limit that counts them.
type recentStart struct {
	UserID string    `json:"user_id,omitempty"`
	Time   time.Time `json:"time"`
	// Index is the log index of the command.
	Index uint64 `json:"index"`
}

func recentStartTable() *memdb.TableSchema {
	return newTable(tableRecentStarts,
		// Oldest first of one scope.
		newIndex(indexID, (*recentStart).key))
}

func (s *recentStart) key() []byte {
	return binary.BigEndian.AppendUint64(appendTime(prefixOf(s.UserID), s.Time), s.Index)
}

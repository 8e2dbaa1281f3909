package fsm

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/hashicorp/go-memdb"
)

func startTaskTable() *memdb.TableSchema {
	return newTable(tableStartTasks,
		newIndex(indexID, func(t *StartTask) []byte { return []byte(t.ID) }),
		newIndex(indexCreated, func(t *StartTask) []byte { return newestKey(t.UserID, t.CreatedAt, t.ID) }),
		// The unfinished tasks of all users, oldest first, for the leader.
		newIndex(indexOpen, func(t *StartTask) []byte {
			if t.Done() {
				return nil
			}
			return append(appendTime(nil, t.CreatedAt), t.ID...)
		}),
		// A user's finished tasks, in the order they ended.
		newIndex(indexDone, func(t *StartTask) []byte {
			if !t.Done() {
				return nil
			}
			return append(appendTime(prefixOf(t.UserID), t.UpdatedAt), t.ID...)
		}),
		// The tasks of one conversation, newest first.
		newIndex(indexConversation, func(t *StartTask) []byte {
			return append(appendTimeDesc(prefixOf(t.UserID, t.ConversationID), t.CreatedAt), t.ID...)
		}),
	)
}

// secretRefs implements referrer.
func (t *StartTask) secretRefs() refSet { return refSet{t.Secrets} }

// StartTask finds a user's start task.
func (v *View) StartTask(userID, id string) *StartTask {
	t := first[StartTask](v.txn, tableStartTasks, indexID, []byte(id))
	if t == nil || t.UserID != userID {
		return nil
	}
	return t
}

// AllStartTasks iterates every start task of every user.
func (v *View) AllStartTasks() iter.Seq[*StartTask] {
	return withPrefix[StartTask](v.txn, tableStartTasks, indexID, nil)
}

// OpenStartTasks lists the unfinished tasks of all users, oldest first.
func (v *View) OpenStartTasks() []*StartTask {
	return collect(withPrefix[StartTask](v.txn, tableStartTasks, indexOpen, nil))
}

// StartTaskByConversation finds the newest task for a user's conversation.
func (v *View) StartTaskByConversation(userID, conversationID string) *StartTask {
	return firstWithPrefix[StartTask](v.txn, tableStartTasks, indexConversation, prefixOf(userID, conversationID))
}

// StartTaskOrder is how a listing of start tasks is sorted
// (API.md, "Start tasks: search").
type StartTaskOrder string

// The orders; "" is StartTaskCreatedDesc.
const (
	StartTaskCreated     StartTaskOrder = "CREATED_AT"
	StartTaskCreatedDesc StartTaskOrder = "CREATED_AT_DESC"
	StartTaskUpdated     StartTaskOrder = "UPDATED_AT"
	StartTaskUpdatedDesc StartTaskOrder = "UPDATED_AT_DESC"
)

// StartTaskFilter narrows and sorts a listing. The zero value selects every task.
type StartTaskFilter struct {
	// ConversationID selects the READY tasks of one conversation, because a client knows the id only
	// then. "" selects all.
	ConversationID string
	CreatedGTE     *time.Time
	Order          StartTaskOrder
}

// takes reports whether the filter selects a task.
func (f *StartTaskFilter) takes(t *StartTask) bool {
	if f.ConversationID != "" && (t.ConversationID != f.ConversationID || t.Status != StartTaskReady) {
		return false
	}
	return f.CreatedGTE == nil || !t.CreatedAt.Before(*f.CreatedGTE)
}

// StartTasks lists a user's start tasks and returns the token of the next page ("" at the end).
// Orders other than the default sort in memory. MaxDoneTasks bounds the finished tasks to sort.
func (v *View) StartTasks(userID string, f StartTaskFilter, p Page) ([]*StartTask, string) {
	if f.Order == "" || f.Order == StartTaskCreatedDesc {
		return page(v.txn, tableStartTasks, indexCreated, userID, p,
			func(t *StartTask) bool { return t.UserID == userID }, f.takes,
			func(t *StartTask) []byte { return newestKey(userID, t.CreatedAt, t.ID) })
	}
	tasks := slices.DeleteFunc(v.startTasks(userID), func(t *StartTask) bool { return !f.takes(t) })
	key := f.Order.key
	slices.SortFunc(tasks, func(a, b *StartTask) int { return cmp.Compare(key(a), key(b)) })
	if after := p.key(); after != nil {
		tasks = slices.DeleteFunc(tasks, func(t *StartTask) bool { return key(t) <= string(after) })
	}
	if len(tasks) <= p.limit() {
		return tasks, ""
	}
	tasks = tasks[:p.limit()]
	return tasks, token([]byte(key(tasks[len(tasks)-1])))
}

// key returns a task's sort key in the order.
func (o StartTaskOrder) key(t *StartTask) string {
	var k []byte
	switch o {
	case StartTaskCreated:
		k = appendTime(k, t.CreatedAt)
	case StartTaskUpdated:
		k = appendTime(k, t.UpdatedAt)
	case StartTaskUpdatedDesc:
		k = appendTimeDesc(k, t.UpdatedAt)
	default:
		k = appendTimeDesc(k, t.CreatedAt)
	}
	return string(append(k, t.ID...))
}

// CountStartTasks counts what StartTasks would list on all its pages.
func (v *View) CountStartTasks(userID string, f StartTaskFilter) int {
	n := 0
	for _, t := range v.startTasks(userID) {
		if f.takes(t) {
			n++
		}
	}
	return n
}

// startTasks lists a user's start tasks, newest first.
func (v *View) startTasks(userID string) []*StartTask {
	return collect(withPrefix[StartTask](v.txn, tableStartTasks, indexCreated, prefixOf(userID)))
}

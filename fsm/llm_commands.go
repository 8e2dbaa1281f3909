package fsm

import (
	"slices"
	"strings"
	"time"
)

// ModelUsage is what models were used for, as the gateway counted it.
type ModelUsage struct {
	// Requests are those that were sent to an endpoint, Errors those of them without a good answer.
	Requests int64 `json:"requests,omitempty"`
	Errors   int64 `json:"errors,omitempty"`
	// Input, Output and Cached are tokens. Cached is a part of Input.
	Input  int64 `json:"input,omitempty"`
	Output int64 `json:"output,omitempty"`
	Cached int64 `json:"cached,omitempty"`
	// Cost is in billionths of a US dollar (Dollar), by the price table at the time.
	Cost int64 `json:"cost,omitempty"`
	// Milliseconds is how long the requests took in all, answers included.
	Milliseconds int64 `json:"milliseconds,omitempty"`
}

// Dollar is a US dollar in ModelUsage.Cost.
const Dollar = 1_000_000_000

// maxUsage bounds each number of a report and of what it is added to.
const maxUsage = 1 << 60

// Plus returns the sum, which stops at maxUsage.
func (u ModelUsage) Plus(o ModelUsage) ModelUsage {
	add := func(a, b int64) int64 { return min(a+b, maxUsage) }
	return ModelUsage{
		Requests: add(u.Requests, o.Requests), Errors: add(u.Errors, o.Errors), Input: add(u.Input, o.Input),
		Output: add(u.Output, o.Output), Cached: add(u.Cached, o.Cached), Cost: add(u.Cost, o.Cost),
		Milliseconds: add(u.Milliseconds, o.Milliseconds),
	}
}

// NamedUsage is the use of one model.
type NamedUsage struct {
	Model string     `json:"model"`
	Usage ModelUsage `json:"usage"`
}

// maxUserModels bounds the models that a user's use is kept of. OtherModel sums the rest: clients
// choose the names.
const (
	maxUserModels = 32
	OtherModel    = "other"
)

// UserModels is a user's use of models.
type UserModels struct {
	Total ModelUsage `json:"total"`
	// ByModel is the use of each model, sorted by name.
	ByModel []NamedUsage `json:"by_model,omitempty"`
	// Day is the day (UTC, "2006-01-02") that Spent is of, in billionths of a dollar.
	Day   string `json:"day"`
	Spent int64  `json:"spent"`
}

// DayOf returns the day of a budget.
func DayOf(t time.Time) string { return t.UTC().Format("2006-01-02") }

// SpentOn returns what models cost the user on a day, in billionths of a dollar. A day that a node
// with a faster clock has reached counts as well.
func (u *User) SpentOn(day string) int64 {
	if u == nil || u.Models == nil || u.Models.Day < day {
		return 0
	}
	return u.Models.Spent
}

// LLMReportBody adds what models were used for since a node's last report, at most 1,000 entries. A
// node proposes it. It skips users and conversations that do not exist.
type LLMReportBody struct {
	Entries []LLMReport `json:"entries"`
}

// LLMReport is the use of models by one conversation of a user.
type LLMReport struct {
	UserID         string `json:"user_id"`
	ConversationID string `json:"conversation_id"`
	// Model is a name of at most 128 bytes, "" if it is not known.
	Model string     `json:"model,omitempty"`
	Usage ModelUsage `json:"usage"`
}

// CommandType implements Body.
func (*LLMReportBody) CommandType() CommandType { return LLMReported }

// check implements Body.
func (b *LLMReportBody) check(r *rules) {
	r.count("entries", len(b.Entries))
	for _, e := range b.Entries {
		r.lookedUp("user_id", e.UserID)
		r.lookedUp("conversation_id", e.ConversationID)
		r.check(len(e.Model) <= maxModelName, "the name of a model is longer than %d bytes", maxModelName)
		for _, n := range []int64{
			e.Usage.Requests,
			e.Usage.Errors,
			e.Usage.Input,
			e.Usage.Output,
			e.Usage.Cached,
			e.Usage.Cost,
			e.Usage.Milliseconds,
		} {
			r.check(n >= 0 && n <= maxUsage, "a number of a usage is out of range")
		}
	}
}

func (t *transaction) applyLLMReport(b *LLMReportBody) (Result, *Error) {
	for _, e := range b.Entries {
		if old := first[User](t.txn, tableUsers, indexID, []byte(e.UserID)); old != nil {
			u, day := *old, DayOf(t.now)
			// Nodes' clocks differ and reports are late: a day never goes back, or it would be free again.
			if old.Models != nil {
				day = max(day, old.Models.Day)
			}
			m := UserModels{Day: day}
			if old.Models != nil {
				m.Total, m.Spent, m.ByModel = old.Models.Total, old.SpentOn(day), old.Models.ByModel
			}
			m.ByModel = withUsage(m.ByModel, e.Model, e.Usage)
			m.Total, m.Spent = m.Total.Plus(e.Usage), min(m.Spent+e.Usage.Cost, maxUsage)
			u.Models = &m
			put(t, tableUsers, old, &u)
		}
		if old := first[Conversation](t.txn, tableConversations, indexID, keyOf(e.UserID, e.ConversationID)); old != nil {
			c := *old
			c.Models = c.Models.Plus(e.Usage)
			put(t, tableConversations, old, &c)
		}
	}
	return Result{}, nil
}

// maxModelName bounds a model's name in a report, in bytes.
const maxModelName = 128

// withUsage returns a copy of a list with the use of a model added.
func withUsage(list []NamedUsage, model string, used ModelUsage) []NamedUsage {
	if model == "" {
		return list
	}
	find := func(name string) (int, bool) {
		return slices.BinarySearchFunc(list, name,
			func(n NamedUsage, name string) int { return strings.Compare(n.Model, name) })
	}
	at, there := find(model)
	if !there && len(list) >= maxUserModels {
		model = OtherModel
		at, there = find(model)
	}
	list = slices.Clone(list)
	if !there {
		list = slices.Insert(list, at, NamedUsage{Model: model})
	}
	list[at].Usage = list[at].Usage.Plus(used)
	return list
}

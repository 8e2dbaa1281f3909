package fsm

import "time"

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
	}
}

// UserModels is a user's use of models.
type UserModels struct {
	Total ModelUsage `json:"total"`
	// Day is the day (UTC, "2006-01-02") that Spent is of, in billionths of a dollar.
	Day   string `json:"day"`
	Spent int64  `json:"spent"`
}

// DayOf returns the day of a budget.
func DayOf(t time.Time) string { return t.UTC().Format("2006-01-02") }

// SpentOn returns what models cost the user on a day, in billionths of a dollar.
func (u *User) SpentOn(day string) int64 {
	if u == nil || u.Models == nil || u.Models.Day != day {
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
	UserID         string     `json:"user_id"`
	ConversationID string     `json:"conversation_id"`
	Usage          ModelUsage `json:"usage"`
}

// CommandType implements Body.
func (*LLMReportBody) CommandType() CommandType { return LLMReported }

// check implements Body.
func (b *LLMReportBody) check(r *rules) {
	r.count("entries", len(b.Entries))
	for _, e := range b.Entries {
		r.lookedUp("user_id", e.UserID)
		r.lookedUp("conversation_id", e.ConversationID)
		for _, n := range []int64{e.Usage.Requests, e.Usage.Errors, e.Usage.Input, e.Usage.Output, e.Usage.Cached, e.Usage.Cost} {
			r.check(n >= 0 && n <= maxUsage, "a number of a usage is out of range")
		}
	}
}

func (t *transaction) applyLLMReport(b *LLMReportBody) (Result, *Error) {
	day := DayOf(t.now)
	for _, e := range b.Entries {
		if old := first[User](t.txn, tableUsers, indexID, []byte(e.UserID)); old != nil {
			u := *old
			m := UserModels{Day: day}
			if old.Models != nil {
				m.Total, m.Spent = old.Models.Total, old.SpentOn(day)
			}
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

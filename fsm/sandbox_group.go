package fsm

import (
	"bytes"
	"slices"
)

// The values of sandbox_grouping_strategy: which of a user's sandboxes a new conversation gets, of
// those of the default spec that run. GroupNone, like no value, is a sandbox of its own.
const (
	GroupNone                = "NO_GROUPING"
	GroupNewest              = "GROUP_BY_NEWEST"
	GroupLeastRecentlyUsed   = "LEAST_RECENTLY_USED"
	GroupFewestConversations = "FEWEST_CONVERSATIONS"
	GroupAny                 = "ADD_TO_ANY"
)

// Groupings lists the values of sandbox_grouping_strategy.
func Groupings() []string {
	return []string{GroupNone, GroupNewest, GroupLeastRecentlyUsed, GroupFewestConversations, GroupAny}
}

// maxGrouped is how many conversations a sandbox has at most by grouping, with those that start.
const maxGrouped = 20

// grouping returns a user's strategy.
func (t *transaction) grouping(user string) string {
	set := t.settingsOf(user)
	if !t.meta.active(VersionAgents) || set == nil {
		return GroupNone
	}
	if strategy := valueOr(set.Values.SandboxGroupingStrategy, GroupNone); slices.Contains(Groupings(), strategy) {
		return strategy
	}
	return GroupNone
}

// grouped finds the sandbox that a start joins by the user's grouping strategy, nil for none.
func (t *transaction) grouped(user string) *Sandbox {
	strategy := t.grouping(user)
	spec, err := t.specOrDefault("")
	if err != nil || strategy == GroupNone {
		return nil
	}
	starting := t.startingIn(user)
	var best *Sandbox
	count := 0
	for s := range withPrefix[Sandbox](t.txn, tableSandboxes, indexRunning, prefixOf(user)) {
		if s.State() != SandboxRunning || s.SpecID != spec.ID {
			continue
		}
		n := starting[s.ID] + t.conversationsIn(s.ID)
		if n < maxGrouped && (best == nil || joinsBefore(strategy, s, n, best, count)) {
			best, count = s, n
		}
	}
	return best
}

// joinsBefore reports whether a start joins s, with n conversations, rather than other.
func joinsBefore(strategy string, s *Sandbox, n int, other *Sandbox, m int) bool {
	switch strategy {
	case GroupNewest:
		return bytes.Compare(newestKey("", s.CreatedAt, s.ID), newestKey("", other.CreatedAt, other.ID)) < 0
	case GroupLeastRecentlyUsed:
		return s.Status.LastActive.Before(other.Status.LastActive)
	case GroupFewestConversations:
		return n < m
	}
	return false
}

// conversationsIn counts the conversations of a sandbox, up to maxGrouped.
func (t *transaction) conversationsIn(sandboxID string) (n int) {
	for range withPrefix[Conversation](t.txn, tableConversations, indexSandbox, prefixOf(sandboxID)) {
		if n++; n == maxGrouped {
			break
		}
	}
	return n
}

// startingIn counts a user's open tasks by their sandbox.
func (t *transaction) startingIn(user string) map[string]int {
	n := map[string]int{}
	for task := range withPrefix[StartTask](t.txn, tableStartTasks, indexOpen, nil) {
		if task.UserID == user && task.SandboxID != "" {
			n[task.SandboxID]++
		}
	}
	return n
}

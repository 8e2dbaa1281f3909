// Package fsmtest checks invariants of a store at every index of its log.
package fsmtest

import (
	"fmt"
	"slices"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// LimitWatch follows a store from one log index to the next and reports a limit that was exceeded.
// It counts the rows itself, independently of the store's counters. The zero value has seen an
// empty store.
type LimitWatch struct {
	// Most is the highest use seen of each limit, by user; "" is the installation.
	Most map[string]fsm.Limits

	before picture
	starts map[string][]time.Time
	limits map[string]fsm.Limits
}

// picture is the content of a store at one index that limits depend on.
type picture struct {
	use       map[string]fsm.Limits
	sandboxes map[string]fsm.Sandbox
	promised  map[string]string // start task to user
}

// After examines the store after one command. It returns an error when a use that grew exceeds its
// limit, or when sixty seconds of command time hold more starts than allowed. A limit that was set
// below the current use is not exceeded by that use. A start task with a reservation counts as if
// it had its sandbox.
func (w *LimitWatch) After(v *fsm.View, cmd fsm.Command) error {
	if w.Most == nil {
		w.Most, w.starts, w.limits = map[string]fsm.Limits{}, map[string][]time.Time{}, map[string]fsm.Limits{}
	}
	now := take(v)
	defer func() { w.before = now }()
	for scope, use := range now.use {
		limit := v.Installation().Overall
		if scope != "" {
			limit = v.LimitsOf(scope)
		}
		if was, known := w.limits[scope]; known && was.StartsPerMinute != limit.StartsPerMinute {
			w.starts[scope] = nil // earlier starts were under another limit
		}
		w.limits[scope] = limit
		if n := w.started(scope, now, cmd); n > 0 {
			w.starts[scope] = append(w.starts[scope], slices.Repeat([]time.Time{cmd.Time}, n)...)
			use.StartsPerMinute = around(w.starts[scope], cmd.Time)
		}
		w.Most[scope] = most(w.Most[scope], use)
		if err := exceeded(w.before.use[scope], use, limit); err != nil {
			return fmt.Errorf("index %d, %s, scope %q: %w", v.Index(), cmd.Type, scope, err)
		}
	}
	return nil
}

// take counts the rows of a view.
func take(v *fsm.View) picture {
	p := picture{use: map[string]fsm.Limits{"": {}}, sandboxes: map[string]fsm.Sandbox{}, promised: map[string]string{}}
	add := func(user string, l fsm.Limits) {
		u := p.use[user]
		p.use[user] = fsm.Limits{
			Running: u.Running + l.Running,
			Total:   u.Total + l.Total,
			CPU:     u.CPU + l.CPU,
			Memory:  u.Memory + l.Memory,
		}
	}
	for s := range v.AllSandboxes() {
		var l fsm.Limits
		if s.CountsAsRunning() {
			l.CPU, l.Memory = s.Template.CPU, s.Template.Memory
		}
		if s.UserID == "" { // a warm pool's
			add("", l)
			continue
		}
		p.sandboxes[s.ID] = *s
		if s.Desired != fsm.DesiredDeleted {
			l.Total = 1
		}
		if s.CountsAsRunning() {
			l.Running = 1
		}
		add("", l)
		add(s.UserID, l)
	}
	for _, t := range v.OpenStartTasks() {
		if t.Reservation == nil {
			continue
		}
		p.promised[t.ID] = t.UserID
		l := fsm.Limits{Running: 1, Total: 1, CPU: t.Reservation.CPU, Memory: t.Reservation.Memory}
		add("", l)
		add(t.UserID, l)
	}
	return p
}

// started counts the starts of the command: sandboxes that newly run, and new reservations. A
// sandbox that was reserved before is not a start.
func (w *LimitWatch) started(scope string, now picture, cmd fsm.Command) (n int) {
	mine := func(user string) bool { return scope == "" || scope == user }
	for id, s := range now.sandboxes {
		was, there := w.before.sandboxes[id]
		if mine(s.UserID) && s.Desired == fsm.DesiredRunning && (!there || was.Generation != s.Generation) {
			n++
		}
	}
	for id, user := range now.promised {
		if _, there := w.before.promised[id]; mine(user) && !there {
			n++
		}
	}
	if b, ok := cmd.Body.(*fsm.StartTaskBindBody); ok && n > 0 {
		if user, there := w.before.promised[b.ID]; mine(user) && there {
			n--
		}
	}
	return n
}

// around returns the highest number of times in any sixty seconds that include at.
func around(times []time.Time, at time.Time) (most int) {
	for _, end := range times {
		if end.Before(at) || end.Sub(at) >= time.Minute {
			continue
		}
		n := 0
		for _, t := range times {
			if !t.After(end) && end.Sub(t) < time.Minute {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

func exceeded(was, use, limit fsm.Limits) error {
	for _, d := range []struct {
		name            string
		was, use, limit int
	}{
		{fsm.LimitRunning, was.Running, use.Running, limit.Running},
		{fsm.LimitTotal, was.Total, use.Total, limit.Total},
		{fsm.LimitStarts, 0, use.StartsPerMinute, limit.StartsPerMinute},
		{fsm.LimitCPU, was.CPU, use.CPU, limit.CPU},
		{fsm.LimitMemory, was.Memory, use.Memory, limit.Memory},
	} {
		if d.limit > 0 && d.use > d.limit && d.use > d.was {
			return fmt.Errorf("%s: %d, the limit is %d", d.name, d.use, d.limit)
		}
	}
	return nil
}

func most(a, b fsm.Limits) fsm.Limits {
	return fsm.Limits{
		Running: max(a.Running, b.Running), Total: max(a.Total, b.Total), StartsPerMinute: max(a.StartsPerMinute,
			b.StartsPerMinute),
		CPU: max(a.CPU, b.CPU), Memory: max(a.Memory, b.Memory),
	}
}

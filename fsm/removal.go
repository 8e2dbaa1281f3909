package fsm

import (
	"math"
	"slices"
	"time"
)

// removalWindow is the period in which removals count against their limit.
const removalWindow = time.Hour

// removal counts the removals of one kind that were granted in one minute of command time.
type removal struct {
	Kind  string    `json:"kind"`
	At    time.Time `json:"at"`
	Count int       `json:"count"`
}

// Brake records when a limit last stopped removals of a kind.
type Brake struct {
	Kind string `json:"kind"`
	// At is truncated to the minute. Limit is the limit that was reached.
	At    time.Time `json:"at"`
	Limit int       `json:"limit"`
}

// The kinds of removals that a leader does on its own initiative.
const (
	RemovalSandbox   = "sandbox"   // a policy deletes it
	RemovalJob       = "job"       // no sandbox owns it
	RemovalWorkspace = "workspace" // no sandbox owns it
	RemovalSecret    = "secret"    // no row refers to it
)

// RemovalReserveBody asks how many things of a kind the leader may remove now on its own
// initiative. The command is also the fence: a deposed leader can't commit it. Result.Granted is at
// most Want and keeps the grants of any hour of command time within Limit. It is 0 during a hold.
type RemovalReserveBody struct {
	// Kind is one of the Removal constants.
	Kind  string `json:"kind"`
	Want  int    `json:"want"`
	Limit int    `json:"limit"`
}

// CommandType implements Body.
func (*RemovalReserveBody) CommandType() CommandType { return RemovalReserve }

// check implements Body.
func (b *RemovalReserveBody) check(r *rules) {
	switch b.Kind {
	case RemovalSandbox, RemovalJob, RemovalWorkspace, RemovalSecret:
	default:
		r.check(false, "unknown kind of removal %q", clip(b.Kind))
	}
	r.check(b.Want >= 0 && b.Limit >= 0, "a removal needs numbers that are not negative")
}

func (t *transaction) applyRemovalReserve(b *RemovalReserveBody) (Result, *Error) {
	h := t.meta.History
	if h.Hold != nil {
		return Result{}, nil
	}
	kept := slices.DeleteFunc(slices.Clone(h.Removals), func(r removal) bool {
		return t.now.Sub(r.At) >= removalWindow
	})
	used := 0
	for _, r := range kept {
		if r.Kind == b.Kind {
			used += r.Count
		}
	}
	granted := min(b.Want, max(0, b.Limit-used))
	minute := t.now.Truncate(time.Minute)
	if granted < b.Want {
		t.noteBrake(Brake{b.Kind, minute, b.Limit})
		h = t.meta.History
	}
	if granted == 0 {
		return Result{}, nil
	}
	i := slices.IndexFunc(kept, func(r removal) bool { return r.Kind == b.Kind && r.At.Equal(minute) })
	if i < 0 {
		kept = append(kept, removal{Kind: b.Kind, At: minute, Count: granted})
	} else {
		kept[i].Count += granted
	}
	next := *h
	next.Removals = kept
	t.meta.History = &next
	return Result{Granted: int32(min(granted, math.MaxInt32))}, nil //nolint:gosec // it is bounded
}

// noteBrake records that a limit stopped removals.
func (t *transaction) noteBrake(b Brake) {
	h := t.meta.History
	if slices.Contains(h.Brakes, b) {
		return
	}
	next := *h
	next.Brakes = append(slices.DeleteFunc(slices.Clone(h.Brakes), func(o Brake) bool { return o.Kind == b.Kind }), b)
	t.meta.History = &next
}

// Brakes returns the limits that stopped removals in the hour before now.
func (v *View) Brakes(now time.Time) (brakes []Brake) {
	if v.meta.History == nil {
		return nil
	}
	for _, b := range v.meta.History.Brakes {
		if now.Sub(b.At) < removalWindow {
			brakes = append(brakes, b)
		}
	}
	return brakes
}

// Removed counts the removals of a kind that were granted in the hour before now.
func (v *View) Removed(kind string, now time.Time) (count int) {
	if v.meta.History == nil {
		return 0
	}
	for _, r := range v.meta.History.Removals {
		if r.Kind == kind && now.Sub(r.At) < removalWindow {
			count += r.Count
		}
	}
	return count
}

package fsm

import (
	"slices"
	"time"
)

// removalWindow is the time that the brake on removals looks back.
const removalWindow = time.Hour

// removal counts what was granted of one kind in one minute of command time.
type removal struct {
	Kind  string    `json:"kind"`
	At    time.Time `json:"at"`
	Count int       `json:"count"`
}

// Brake is when a limit last held removals of a kind back.
type Brake struct {
	Kind string `json:"kind"`
	// At is rounded to the minute; Limit is the one that was reached.
	At    time.Time `json:"at"`
	Limit int       `json:"limit"`
}

// The kinds of removals that a leader does of its own accord.
const (
	RemovalSandbox   = "sandbox"   // a policy deletes it
	RemovalJob       = "job"       // no sandbox owns it
	RemovalWorkspace = "workspace" // the same
	RemovalSecret    = "secret"    // nothing refers to it
)

// RemovalReserveBody asks how many things of a kind the leader may remove now,
// of its own accord. It is the fence as well: a deposed leader learns here that
// it is one. Result.Granted is at most Want, and keeps all grants of any hour of
// command time within Limit; it is 0 while there is a hold.
type RemovalReserveBody struct {
	// Kind is one of the Removal constants.
	Kind  string `json:"kind"`
	Want  int    `json:"want"`
	Limit int    `json:"limit"`
}

// CommandType implements Body.
func (*RemovalReserveBody) CommandType() CommandType { return RemovalReserve }

// Validate implements Body.
func (b *RemovalReserveBody) Validate() error {
	var r rules
	switch b.Kind {
	case RemovalSandbox, RemovalJob, RemovalWorkspace, RemovalSecret:
	default:
		r.check(false, "unknown kind of removal %q", clip(b.Kind))
	}
	r.check(b.Want >= 0 && b.Limit >= 0, "a removal needs numbers that are not negative")
	return r.result()
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
	return Result{Granted: granted}, nil
}

// noteBrake records that a limit held removals back.
func (t *transaction) noteBrake(b Brake) {
	h := t.meta.History
	if slices.Contains(h.Brakes, b) {
		return
	}
	next := *h
	next.Brakes = append(slices.DeleteFunc(slices.Clone(h.Brakes), func(o Brake) bool { return o.Kind == b.Kind }), b)
	t.meta.History = &next
}

// Brakes gives the limits that held removals back in the hour before a time.
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

// Removed counts what was granted of a kind in the hour before a time.
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

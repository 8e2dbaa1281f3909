package lincheck

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// forever is the return time of an op with an unknown outcome.
const forever = time.Duration(math.MaxInt64)

// sight is what a response says about an object's existence.
type sight int

const (
	silent sight = iota
	there
	gone
	// perhaps: a page does not show it, but might not show it anyway.
	perhaps
)

// sees returns what a known response says about the object id in its group.
func (op Op) sees(id string) sight {
	if op.Outcome != Done || op.Do == Put || op.Do == Replay {
		return silent
	}
	if op.Do != List {
		switch {
		case op.Key != id:
			return silent
		case op.Out.There || op.Do == Create:
			return there
		}
		return gone
	}
	switch {
	case slices.ContainsFunc(op.Items, func(item Item) bool { return item.ID == id }):
		return there
	case op.Page.whole():
		return gone
	}
	return perhaps
}

// sees is the op's sees, and knows on which page an object belongs.
func (g *group) sees(op Op, id string) sight {
	s := op.sees(id)
	if s != perhaps {
		return s
	}
	at, first := g.place[id], 0
	if op.Page.After != "" {
		first = g.place[op.Page.After] + 1
	}
	switch {
	case at >= g.ordered:
		return perhaps
	case at < first, op.Page.More && len(op.Items) > 0 && at > g.place[op.Items[len(op.Items)-1].ID]:
		return silent
	}
	return gone
}

// prune shortens a history without changing whether it can be explained. It drops writes of
// unknown outcome that can't matter, and bounds their time if a response shows it. Every put,
// rename and start writes a unique value.
func prune(ops []Op) []Op {
	seen, ids := map[string]time.Duration{}, map[string]string{}
	see := func(value string, by time.Duration) {
		if was, known := seen[value]; value != "" && (!known || by < was) {
			seen[value] = by
		}
	}
	for _, op := range ops {
		if op.Outcome != Done {
			continue
		}
		see(op.Out.A, op.Return)
		see(op.Out.B, op.Return)
		for _, item := range op.Items {
			if op.Do == List {
				see(item.Value, op.Return)
				ids[item.Value] = item.ID
			}
		}
	}
	g := newGroup(ops)
	var kept []Op
	box := newSandboxBounds(ops)
	for _, op := range ops {
		if op.Outcome == Unknown {
			switch {
			case op.Object == Sandbox && op.Do != Create && op.Do != Replay:
				op.Return = box.within(op)
			case op.Do == Delete && op.Of != "":
				op.Call, op.Return = g.deletedWithin(op, ops)
			case op.Do == Replay: // changes nothing
				op.Return = 0
			case op.Do == Put || op.Do == Rename || op.Do == Create:
				op.Return = seenBy(op, seen)
			default:
				op.Return = forever
			}
			if op.Do == Create {
				op.Key = cmp.Or(op.Key, ids[op.In.A]) // no client learned its id
			}
			if op.Return == 0 {
				continue
			}
		}
		kept = append(kept, op)
	}
	return kept
}

// sandboxBounds say which changes of unknown outcome of one sandbox can matter.
type sandboxBounds struct {
	// gone is when a response first says that the sandbox is gone. It never comes back.
	gone time.Duration
	// paused is when the last response that shows it PAUSED has arrived.
	paused           time.Duration
	deleted, resumed bool
}

func newSandboxBounds(ops []Op) *sandboxBounds {
	b := &sandboxBounds{gone: forever}
	for _, op := range ops {
		if op.Object != Sandbox || op.Outcome != Done || op.Stale || op.Do == Replay {
			continue
		}
		if !op.Out.There {
			b.gone = min(b.gone, op.Return)
		}
		if op.Do == Read && op.Out.A == shownPaused {
			b.paused = max(b.paused, op.Return)
		}
	}
	return b
}

// within returns the end of the time in which the change may take effect, 0 for one that can't matter:
// it is called when the sandbox is gone; it is a pause, and nothing shows PAUSED any more; or it is the
// second deletion, or the second resume after the last PAUSED, and the first may take effect whenever it
// may. The ops come in the order of their calls.
func (b *sandboxBounds) within(op Op) time.Duration {
	switch {
	case op.Call >= b.gone, op.Do == Pause && op.Call >= b.paused:
		return 0
	case op.Do == Delete:
		if b.deleted {
			return 0
		}
		b.deleted = true
	case op.Do == Resume && op.Call >= b.paused:
		if b.resumed {
			return 0
		}
		b.resumed = true
	}
	return forever
}

// seenBy returns the end of the first response that shows the value of a write of unknown
// outcome. It is 0 if there is none: a history that can be explained with the write can then be
// explained without it.
func seenBy(op Op, seen map[string]time.Duration) time.Duration {
	by := forever
	for _, value := range []string{op.In.A, op.In.B} {
		if at, known := seen[value]; known && value != "" && !(op.In.Keep && value == op.In.A) {
			by = min(by, at)
		}
	}
	if by == forever {
		return 0
	}
	return by
}

// deletedWithin bounds the time at which a delete of unknown outcome took effect. Ids are not
// reused: a read that shows the object was before the delete, and a read that lacks it after it
// existed was after. The end is 0 if the delete had no visible effect.
func (g *group) deletedWithin(del Op, ops []Op) (from, to time.Duration) {
	lastThere, firstThere := time.Duration(0), forever
	for _, op := range ops {
		another := op.Do == Delete && op.Key == del.Key
		switch {
		case another && op.Outcome == Done && op.Out.There,
			another && op.Outcome == Unknown && (op.Call < del.Call || op.Call == del.Call && op.Client < del.Client):
			return 0, 0 // the other delete did it, or could have
		case g.sees(op, del.Key) == there:
			lastThere, firstThere = max(lastThere, op.Call), min(firstThere, op.Return)
		}
	}
	from, to = max(del.Call, lastThere), forever
	doubt := false
	for _, op := range ops {
		s := g.sees(op, del.Key)
		if s == gone && op.Call > firstThere {
			to = min(to, op.Return)
		}
		doubt = doubt || (s == gone || s == perhaps) && op.Return > del.Call
	}
	switch {
	case !doubt:
		return 0, 0
	case from > to: // there is no explanation; porcupine will report it
		return del.Call, forever
	}
	return from, to
}

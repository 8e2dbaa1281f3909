package history

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// forever is the end of what may take effect at any time.
const forever = time.Duration(math.MaxInt64)

// sight is what an answer says of whether an object was there.
type sight int

const (
	silent sight = iota
	there
	gone
	// perhaps is a page that does not show it, and nobody can say whether it would.
	perhaps
)

// sees gives what a known answer says of the object id in its group.
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

// sees is the op's sees, and knows which page an object belongs on.
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

// prune makes a history short to search, and keeps whether it can be explained:
// every write of unknown outcome is dropped where it can't matter, and gets a
// time by which it had happened where an answer tells. Every put, rename and
// start has a value of its own to be seen by.
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
	for _, op := range ops {
		if op.Outcome == Unknown {
			switch {
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
				op.Key = cmp.Or(op.Key, ids[op.In.A]) // whoever asked for it was never told
			}
			if op.Return == 0 {
				continue
			}
		}
		kept = append(kept, op)
	}
	return kept
}

// seenBy is the end of the first answer that shows what a write of unknown
// outcome wrote. 0 when none does: a history that can be explained with it can
// then be explained without it.
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

// deletedWithin bounds when a delete of unknown outcome took effect, by what is
// known of the object: ids are not used twice, so whoever saw it there looked
// before, and whoever saw it gone after it had been there looked behind. Its end
// is 0 when it had no effect, or none that anybody could have seen.
func (g *group) deletedWithin(del Op, ops []Op) (from, to time.Duration) {
	lastThere, firstThere := time.Duration(0), forever
	for _, op := range ops {
		another := op.Do == Delete && op.Key == del.Key
		switch {
		case another && op.Outcome == Done && op.Out.There,
			another && op.Outcome == Unknown && (op.Call < del.Call || op.Call == del.Call && op.Client < del.Client):
			return 0, 0 // that one did it, or could have as well
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
	case from > to: // there is no explanation; porcupine shall say so
		return del.Call, forever
	}
	return from, to
}

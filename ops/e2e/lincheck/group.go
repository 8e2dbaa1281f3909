package lincheck

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// group is the model of objects that are listed together: a user's conversations, whose value
// is the title, or specs that one request can write together. Its state holds a value per id,
// "" for a missing object, in the listing's order, so every response is checked as one read of
// all of them. A page is a read of its own: the API only promises that the second page begins
// after the last item of the first.
type group struct {
	place map[string]int
	// ordered is how many of the ids have a place in the listing's order. The ids after them
	// were never listed.
	ordered int
	// hidden is the call of the first start whose id no client learned. prune drops that start,
	// but it may be why a page says that more follows.
	hidden time.Duration
}

// newGroup collects the ids and their order from all ops, before prune.
func newGroup(ops []Op) *group {
	born := map[string]time.Time{}
	g := &group{place: map[string]int{}, hidden: forever}
	for _, op := range ops {
		if _, known := born[op.Key]; op.Key != "" && !known {
			born[op.Key] = time.Time{}
		}
		if op.Do == Create && op.Key == "" {
			g.hidden = min(g.hidden, op.Call)
		}
		for _, item := range op.Items {
			if born[item.ID].IsZero() {
				born[item.ID] = item.Born
			}
		}
	}
	var ids []string
	for id, at := range born {
		ids = append(ids, id)
		if !at.IsZero() {
			g.ordered++
		}
	}
	slices.SortFunc(ids,
		func(a, b string) int { return ListedBefore(Item{ID: a, Born: born[a]}, Item{ID: b, Born: born[b]}) })
	for i, id := range ids {
		g.place[id] = i
	}
	return g
}

// ListedBefore is a listing's order: newest first, then by id. Ids that were never listed come
// last.
func ListedBefore(a, b Item) int {
	if c := b.Born.Compare(a.Born); c != 0 {
		return c
	}
	return strings.Compare(a.ID, b.ID)
}

func (g *group) model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return make([]string, len(g.place)) },
		Step: func(state, in, out any) (bool, any) {
			op, o := in.(input).op, out.(output)
			return g.step(state.([]string), op, o.known)
		},
		Equal:             func(a, b any) bool { return slices.Equal(a.([]string), b.([]string)) },
		DescribeOperation: describe,
		DescribeState: func(state any) string {
			var there []string
			for id, i := range g.place {
				if value := state.([]string)[i]; value != "" {
					there = append(there, fmt.Sprintf("%.8s=%s", id, value))
				}
			}
			slices.Sort(there)
			return strings.Join(there, " ")
		},
	}
}

// step is the stepFunc of the whole group.
func (g *group) step(state []string, op Op, known bool) (bool, []string) {
	switch op.Do {
	case Replay:
		return true, state
	case List:
		return !known || g.explains(state, op), state
	case Put:
		next := slices.Clone(state)
		for _, item := range op.Items {
			next[g.place[item.ID]] = item.Value
		}
		return true, next
	}
	at := g.place[op.Key]
	there := state[at] != ""
	write := func(value string) []string {
		next := slices.Clone(state)
		next[at] = value
		return next
	}
	switch {
	case op.Do == Read:
		return !known || op.Out == Value{There: there, A: state[at]}, state
	case op.Do == Create:
		return !there, write(op.In.A)
	case !there:
		return !known || !op.Out.There, state
	case op.Do == Rename:
		return !known || op.Out == Value{There: true, A: op.In.A}, write(op.In.A)
	default: // Delete
		return !known || op.Out.There, write("")
	}
}

// explains reports whether a listing of the state gives the op's response.
func (g *group) explains(state []string, op Op) bool {
	shown := 0
	for _, item := range op.Items {
		if state[g.place[item.ID]] != item.Value {
			return false
		}
	}
	if op.Page.whole() {
		for _, value := range state {
			if value != "" {
				shown++
			}
		}
		return shown == len(op.Items)
	}
	first, unlisted := 0, slices.ContainsFunc(state[g.ordered:], func(value string) bool { return value != "" })
	if op.Page.After != "" {
		first = g.place[op.Page.After] + 1
	}
	for at := first; at < g.ordered; at++ {
		switch {
		case state[at] == "":
		case shown == len(op.Items):
			return op.Page.More
		case g.place[op.Items[shown].ID] != at:
			return false
		default:
			shown++
		}
	}
	return shown == len(op.Items) && (!op.Page.More || unlisted || op.Return > g.hidden)
}

// listings checks the form of listings, stale ones included: their order, the length of a page,
// and that no item moves.
func (v *Verdict) listings(ops []Op) {
	type objectID struct {
		object Object
		id     string
	}
	born := map[objectID]time.Time{}
	for _, op := range ops {
		if op.Do != List || op.Outcome != Done {
			continue
		}
		if limit := op.Page.Limit; limit > 0 && (len(op.Items) > limit || op.Page.More && len(op.Items) < limit) {
			v.wrong("%s list of %s on %s at %s: %d items on a page of %d, more: %t", op.Object, op.Of, op.Node, op.Call,
				len(op.Items), limit, op.Page.More)
		}
		if !slices.IsSortedFunc(op.Items, ListedBefore) {
			v.wrong("%s list of %s on %s at %s is not in order: %v", op.Object, op.Of, op.Node, op.Call, op.Items)
		}
		ids := map[string]bool{op.Page.After: true}
		for _, item := range op.Items {
			if ids[item.ID] {
				v.wrong("%s list of %s on %s at %s shows %s again", op.Object, op.Of, op.Node, op.Call, item.ID)
			}
			ids[item.ID] = true
			k := objectID{op.Object, item.ID}
			if was, known := born[k]; known && !was.Equal(item.Born) {
				v.wrong("%s %s was made at %s, and on %s at %s", op.Object, item.ID, was, op.Node, item.Born)
			}
			born[k] = item.Born
		}
	}
}

package lincheck

import "slices"

// write is one write to a member of a group, with bounds of its log index. It is above floor,
// the highest index in any response before its call, and at most ceil, the index in its own
// response.
type write struct {
	Op
	floor, ceil uint64
}

// after reports whether w is certainly later than other.
func (w write) after(other write) bool {
	return w.floor >= other.ceil || other.Outcome == Done && other.Return < w.Call
}

// shelf holds a group's writes: those of each object, and the write of each value.
type shelf struct {
	writes map[string][]write // by id
	values map[string]write
}

// shown checks reads and listings of groups, stale ones included, against the log. At index i
// they show nothing that was written after i, and nothing older than what was acknowledged at
// or before i.
func (v *Verdict) shown(ops []Op) {
	groups := shelves(ops)
	for _, op := range ops {
		if op.Of == "" || !op.reads() || op.Outcome != Done || op.Index == 0 {
			continue
		}
		s := groups[objectKey{op.Object, op.Of}]
		if s == nil {
			s = &shelf{}
		}
		items := op.Items
		if op.Do == Read && op.Out.There {
			items = []Item{{ID: op.Key, Value: op.Out.A}}
		}
		for _, item := range items {
			if fault := s.faultOf(op, item); fault != "" {
				v.wrong("%s %s of %s: at index %d on %s at %s %s is %q, %s",
					op.Object, op.Do, op.Of, op.Index, op.Node, op.Call, item.ID, item.Value, fault)
			}
		}
		for id := range s.writes {
			if op.sees(id) == gone && s.isThere(id, op.Index) {
				v.wrong("%s %s of %s: at index %d on %s at %s %s is missing", op.Object, op.Do, op.Of, op.Index, op.Node, op.Call,
					id)
			}
		}
	}
}

// shelves collects the writes; ops are sorted by Call.
func shelves(ops []Op) map[objectKey]*shelf {
	told := slices.DeleteFunc(slices.Clone(ops), func(op Op) bool { return op.Outcome != Done })
	slices.SortStableFunc(told, func(a, b Op) int { return int(a.Return - b.Return) })
	groups := map[objectKey]*shelf{}
	floor, next := uint64(0), 0
	for _, op := range ops {
		for ; next < len(told) && told[next].Return < op.Call; next++ {
			floor = max(floor, told[next].Index)
		}
		refused := op.Outcome == Done && (op.Do == Rename || op.Do == Delete) && !op.Out.There
		if op.Of == "" || op.reads() || op.Do == Replay || refused {
			continue
		}
		w := write{op, floor, ^uint64(0)}
		if op.Outcome == Done && op.Index > 0 {
			w.ceil = op.Index
		}
		k := objectKey{op.Object, op.Of}
		if groups[k] == nil {
			groups[k] = &shelf{map[string][]write{}, map[string]write{}}
		}
		if op.Do != Delete {
			groups[k].values[op.In.A] = w
		}
		ids := []string{op.Key}
		if op.Do == Put {
			ids = nil
			for _, item := range op.Items {
				ids = append(ids, item.ID)
			}
		}
		for _, id := range ids {
			if op.Outcome != Nothing {
				groups[k].writes[id] = append(groups[k].writes[id], w)
			}
		}
	}
	return groups
}

// faultOf returns what is wrong with a value in a read, "" for nothing.
func (s *shelf) faultOf(read Op, item Item) string {
	writer, known := s.values[item.Value]
	switch {
	case !known || writer.Call > read.Return:
		return "which was never written"
	case writer.Outcome == Nothing:
		return "which was refused: " + writer.Error
	case writer.floor >= read.Index:
		return "which was written behind that index"
	}
	for _, w := range s.writes[item.ID] {
		if w.ceil <= read.Index && (w.Do == Delete || w.after(writer)) {
			return "which is older than the " + w.Do + " " + w.In.A + " before that index"
		}
	}
	return ""
}

// isThere reports whether an object certainly existed at an index.
func (s *shelf) isThere(id string, index uint64) bool {
	made := false
	for _, w := range s.writes[id] {
		if w.Do == Delete && w.floor < index {
			return false
		}
		made = made || w.Do != Delete && w.ceil <= index
	}
	return made
}

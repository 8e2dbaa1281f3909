package fsm

import "cmp"

// SpecApplyBody stores specs and replaces those with the same id. With Replace the order of the
// list becomes their position; without, new specs come last. A spec without a pool size keeps its
// current size.
type SpecApplyBody struct {
	Specs []Spec `json:"specs"`
	// Replace removes every spec that is not in the list.
	Replace bool `json:"replace,omitempty"`
	// OnlyIfNone does nothing when any spec is stored. It is for the first start of the embedded
	// default.
	OnlyIfNone bool `json:"only_if_none,omitempty"`
}

// CommandType implements Body.
func (*SpecApplyBody) CommandType() CommandType { return SpecApply }

// SpecDeleteBody removes a spec. Sandboxes created from it keep their template. An unknown id is
// CodeNotFound "Sandbox Spec not found".
type SpecDeleteBody struct {
	ID string `json:"id"`
}

// CommandType implements Body.
func (*SpecDeleteBody) CommandType() CommandType { return SpecDelete }

// check implements Body.
func (b *SpecApplyBody) check(r *rules) {
	r.count("specs", len(b.Specs))
	seen := make(map[string]bool, len(b.Specs))
	for i := range b.Specs {
		s := &b.Specs[i]
		r.name("a spec's id", s.ID, MaxName)
		r.check(!seen[s.ID], "the spec %q is given twice", clip(s.ID))
		seen[s.ID] = true
		r.poolSize(s.ID, s.Pool)
		s.Template.check(r, s.ID)
		s.checkAgents(r)
	}
}

func (t *transaction) applySpecApply(b *SpecApplyBody) (Result, *Error) {
	stored := collect(withPrefix[Spec](t.txn, tableSpecs, indexPosition, nil))
	if b.OnlyIfNone && len(stored) > 0 {
		return Result{}, nil
	}
	byID := make(map[string]*Spec, len(stored))
	next := 0
	for _, s := range stored {
		byID[s.ID] = s
		next = max(next, s.Position+1)
	}
	if !b.Replace && len(stored)+len(b.Specs) > maxList {
		return Result{}, Errorf(CodeInvalid, "there are at most %d specs", maxList)
	}
	for i := range b.Specs {
		s := b.Specs[i]
		old := byID[s.ID]
		delete(byID, s.ID)
		s.CreatedAt = t.now
		if !t.meta.active(VersionAccess) {
			s.Template = s.Template.withoutConfinement()
		}
		if !t.meta.active(VersionAgents) {
			s.Agents, s.AllowAgentCommand = nil, false
		}
		if old != nil {
			s.CreatedAt = old.CreatedAt
			s.Pool = cmp.Or(s.Pool, old.Pool)
		}
		switch {
		case b.Replace:
			s.Position = i
		case old != nil:
			s.Position = old.Position
		default:
			s.Position = next
			next++
		}
		put(t, tableSpecs, old, &s)
	}
	if b.Replace {
		for _, s := range stored {
			if byID[s.ID] != nil {
				drop(t, tableSpecs, s)
			}
		}
	}
	return Result{}, nil
}

// check implements Body.
func (b *SpecDeleteBody) check(r *rules) {
	r.name("id", b.ID, MaxName)
}

func (t *transaction) applySpecDelete(b *SpecDeleteBody) (Result, *Error) {
	old := first[Spec](t.txn, tableSpecs, indexID, []byte(b.ID))
	if old == nil {
		return Result{}, errSpecNotFound()
	}
	drop(t, tableSpecs, old)
	return Result{}, nil
}

// errSpecNotFound is the error for an unknown spec id (API.md, "Sandboxes: start").
func errSpecNotFound() *Error { return Errorf(CodeNotFound, "Sandbox Spec not found") }

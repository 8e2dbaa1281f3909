package httpapi

import (
	"slices"
	"unicode/utf8"
)

// Bounds of one member. Texts are in characters.
const (
	maxText      = 64 << 10
	maxLongText  = 1 << 20
	maxPictures  = 2 << 20  // of one request that goes into the log
	maxAnyText   = 64 << 20 // bounded by the body's size
	maxListItems = 1000
	maxMapItems  = 1000
	maxNameText  = 255
)

// object reads the members of one JSON object and notes what is wrong with
// them. A method named after a type reads a member that may be null or absent
// and gives nil for both; require makes absence a problem.
type object struct {
	m    map[string]any
	loc  []string
	errs *problems
	// secret masks whatever is echoed from here on down.
	secret bool
	// broken means that there was no object at all, which has been noted: its
	// members are not missed.
	broken bool
}

// has reports whether the member was sent, null included.
func (o object) has(name string) bool {
	_, ok := o.m[name]
	return ok
}

// value gives the member; absent and null are both nil.
func (o object) value(name string) any { return o.m[name] }

// masked is the same object with nothing of it echoed.
func (o object) masked() object {
	o.secret = true
	return o
}

// require notes a problem when the member is absent, and reports whether it is
// there.
func (o object) require(name string) bool {
	if o.has(name) {
		return true
	}
	if !o.broken {
		o.errs.missing(at(o.loc, name), echo(o.m, true))
	}
	return false
}

// notNull notes a problem when the member was sent as null, and reports whether
// there is a value to read.
func (o object) notNull(name string, k kind) bool {
	if !o.has(name) {
		return false
	}
	if o.value(name) == nil {
		wrongKind(o.errs, at(o.loc, name), k, nil)
		return false
	}
	return true
}

// strict notes every member that is not among the known ones. Among secrets a
// name that is none of ours may be one itself.
func (o object) strict(known ...string) {
	for _, k := range sortedKeys(o.m) {
		if slices.Contains(known, k) {
			continue
		}
		shown := truncate(k, 64)
		if o.secret {
			shown = plainOr(k)
		}
		o.errs.add("extra_forbidden", at(o.loc, shown), "Extra inputs are not permitted", echo(o.m[k], true), nil)
	}
}

// fail notes what is wrong with a member's value.
func (o object) fail(name string, v any, f *fault) {
	o.errs.add(f.typ, at(o.loc, name), f.msg, echo(v, o.secret), f.ctx)
}

// text reads a string of at most limit characters.
func (o object) text(name string, limit int) *string {
	v := o.value(name)
	if v == nil {
		return nil
	}
	s, ok := v.(string)
	if !ok {
		o.fail(name, v, kindString.fault())
		return nil
	}
	if len(s) > limit && utf8.RuneCountInString(s) > limit {
		o.fail(name, v, tooLongText(limit))
		return nil
	}
	return &s
}

// mustText reads a string that has to be there and not null.
func (o object) mustText(name string, limit int) string {
	if !o.require(name) || !o.notNull(name, kindString) {
		return ""
	}
	return deref(o.text(name, limit))
}

// integer reads an integer.
func (o object) integer(name string) *int64 {
	v := o.value(name)
	if v == nil {
		return nil
	}
	n, f := toInt(v)
	if f != nil {
		o.fail(name, v, f)
		return nil
	}
	return &n
}

// mustInteger reads an integer that has to be there and not null.
func (o object) mustInteger(name string) int64 {
	if !o.require(name) || !o.notNull(name, kindInt) {
		return 0
	}
	return deref(o.integer(name))
}

// number reads a number.
func (o object) number(name string) *float64 {
	v := o.value(name)
	if v == nil {
		return nil
	}
	n, f := toFloat(v)
	if f != nil {
		o.fail(name, v, f)
		return nil
	}
	return &n
}

// boolean reads a boolean.
func (o object) boolean(name string) *bool {
	v := o.value(name)
	if v == nil {
		return nil
	}
	b, f := toBool(v)
	if f != nil {
		o.fail(name, v, f)
		return nil
	}
	return &b
}

// booleanOr reads a boolean that may be absent but not null.
func (o object) booleanOr(name string, otherwise bool) bool {
	if !o.notNull(name, kindBool) {
		return otherwise
	}
	if b := o.boolean(name); b != nil {
		return *b
	}
	return otherwise
}

// enum reads one of the allowed texts.
func (o object) enum(name string, allowed []string) *string {
	v := o.value(name)
	if v == nil {
		return nil
	}
	s, ok := v.(string)
	if !ok || !slices.Contains(allowed, s) {
		o.fail(name, v, enumFault(allowed))
		return nil
	}
	return &s
}

// uuid reads a UUID as 32 hex characters.
func (o object) uuid(name string) *string {
	v := o.value(name)
	if v == nil {
		return nil
	}
	s, ok := v.(string)
	if !ok {
		o.fail(name, v, &fault{typ: "uuid_type", msg: "UUID input should be a string, bytes or UUID object"})
		return nil
	}
	hex, f := toUUID(s)
	if f != nil {
		o.fail(name, v, f)
		return nil
	}
	return &hex
}

// object reads a nested object; ok is false when it is absent, null or none.
func (o object) object(name string) (nested object, ok bool) {
	v := o.value(name)
	if v == nil {
		return object{}, false
	}
	m, ok := v.(map[string]any)
	if !ok {
		o.fail(name, v, kindObject.fault())
		return object{}, false
	}
	return object{m: m, loc: at(o.loc, name), errs: o.errs, secret: o.secret}, true
}

// dict is object for a map whose names are the client's.
func (o object) dict(name string) (nested object, ok bool) {
	v := o.value(name)
	if v == nil {
		return object{}, false
	}
	m, ok := v.(map[string]any)
	if !ok {
		o.fail(name, v, kindDict.fault())
		return object{}, false
	}
	if len(m) > maxMapItems {
		o.fail(name, v, tooMany("Dictionary", maxMapItems, len(m)))
		return object{}, false
	}
	return object{m: m, loc: at(o.loc, name), errs: o.errs, secret: o.secret}, true
}

// texts reads a list of strings; nil when absent or null.
func (o object) texts(name string, limit int) []string {
	items, ok := o.list(name)
	if !ok {
		return nil
	}
	out := make([]string, 0, len(items.m))
	for _, i := range items.indexes() {
		if !items.notNull(i, kindString) {
			continue
		}
		if s := items.text(i, limit); s != nil {
			out = append(out, *s)
		}
	}
	return out
}

// list gives a list's elements as an object whose members are "0", "1", …, so
// that locations and readers are the same everywhere.
func (o object) list(name string) (items object, ok bool) {
	v := o.value(name)
	if v == nil {
		return object{}, false
	}
	l, ok := v.([]any)
	if !ok {
		o.fail(name, v, kindList.fault())
		return object{}, false
	}
	if len(l) > maxListItems {
		o.fail(name, v, tooMany("List", maxListItems, len(l)))
		return object{}, false
	}
	m := make(map[string]any, len(l))
	for i, e := range l {
		m[itoa(i)] = e
	}
	return object{m: m, loc: at(o.loc, name), errs: o.errs, secret: o.secret}, true
}

// indexes gives the member names of what list made, in order.
func (o object) indexes() []string {
	out := make([]string, len(o.m))
	for i := range out {
		out[i] = itoa(i)
	}
	return out
}

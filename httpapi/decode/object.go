package decode

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Limits of one member.
const (
	MaxListItems = 1000
	MaxMapItems  = 1000
	// MaxAnyText limits a text that only the body's size limits. The bounds of other texts are fsm's.
	MaxAnyText = 64 << 20
)

// OrZero returns what p points at, the zero value for nil.
func OrZero[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// Object reads the members of one JSON object and collects what is wrong with them. A method named
// after a type returns nil for a member that is null or absent. Require makes absence a problem.
type Object struct {
	Members map[string]any
	// Loc is the object's location in the request.
	Loc      []string
	Problems *Problems
	// secret masks everything echoed from this object and below.
	secret bool
	// broken means that the body was not an object. That is already a problem, so absent members
	// are not.
	broken bool
	// record is where the readers are recorded, nil for a request that is served.
	record *Member
}

// Has reports whether the member was sent, even as null.
func (o Object) Has(name string) bool {
	if o.record != nil {
		return true
	}
	_, ok := o.Members[name]
	return ok
}

// Value returns the member, nil if absent or null.
func (o Object) Value(name string) any {
	if o.record != nil {
		return unread{}
	}
	return o.Members[name]
}

// Masked returns the same object; problems then echo none of its values.
func (o Object) Masked() Object {
	o.secret = true
	return o
}

// Require adds a problem if the member is absent, and reports whether it is present.
func (o Object) Require(name string) bool {
	if o.record != nil {
		o.record.member(name).Required = true
		return true
	}
	if o.Has(name) {
		return true
	}
	if !o.broken {
		o.Problems.Missing(At(o.Loc, name), Echo(o.Members, true))
	}
	return false
}

// NotNull adds a problem if the member is null, and reports whether there is a value.
func (o Object) NotNull(name string, k Kind) bool {
	if o.record != nil {
		o.record.member(name).NotNull = true
		return true
	}
	if !o.Has(name) {
		return false
	}
	if o.Value(name) == nil {
		wrongKind(o.Problems, At(o.Loc, name), k, nil)
		return false
	}
	return true
}

// Strict adds a problem for every unknown member. In a masked object it masks unknown names too,
// which may be secrets.
func (o Object) Strict(known ...string) {
	if o.record != nil {
		o.record.Strict = true
		return
	}
	for _, k := range SortedKeys(o.Members) {
		if slices.Contains(known, k) {
			continue
		}
		shown := Truncate(k, 64)
		if o.secret {
			shown = PlainOr(k)
		}
		o.Problems.Add("extra_forbidden", At(o.Loc, shown), "Extra inputs are not permitted", Echo(o.Members[k], true), nil)
	}
}

// Fail adds a problem for a member's value.
func (o Object) Fail(name string, v any, f *Fault) {
	if o.record != nil {
		return
	}
	o.Problems.Add(f.Type, At(o.Loc, name), f.Message, Echo(v, o.secret), f.Context)
}

// Text reads a string of at most limit characters.
func (o Object) Text(name string, limit int) *string {
	if o.record != nil {
		return o.record.of(name, "string", "").text(limit)
	}
	v := o.Value(name)
	if v == nil {
		return nil
	}
	s, ok := v.(string)
	if !ok {
		o.Fail(name, v, KindString.Fault())
		return nil
	}
	if isLonger(s, limit) {
		o.Fail(name, v, tooLong(limit))
		return nil
	}
	return &s
}

// Title reads a text that is shown in one line among others. Controls of direction would reorder what
// stands around it.
func (o Object) Title(name string, limit int) *string {
	s := o.Text(name, limit)
	if s != nil && strings.ContainsFunc(*s, func(r rune) bool { return unicode.Is(unicode.Bidi_Control, r) }) {
		o.Rule(name, "must not hold controls of the text's direction")
	}
	return s
}

// MustText reads a required string.
func (o Object) MustText(name string, limit int) string {
	if !o.Require(name) || !o.NotNull(name, KindString) {
		return ""
	}
	if s := o.Text(name, limit); s != nil {
		return *s
	}
	return ""
}

// Integer reads an integer.
func (o Object) Integer(name string) *int64 {
	if o.record != nil {
		o.record.of(name, "integer", "int64")
		return new(int64)
	}
	v := o.Value(name)
	if v == nil {
		return nil
	}
	n, f := toInt(v)
	if f != nil {
		o.Fail(name, v, f)
		return nil
	}
	return &n
}

// MustInteger reads a required integer.
func (o Object) MustInteger(name string) int64 {
	if !o.Require(name) || !o.NotNull(name, KindInt) {
		return 0
	}
	if n := o.Integer(name); n != nil {
		return *n
	}
	return 0
}

// Number reads a number.
func (o Object) Number(name string) *float64 {
	if o.record != nil {
		o.record.of(name, "number", "")
		return new(float64)
	}
	v := o.Value(name)
	if v == nil {
		return nil
	}
	n, f := toFloat(v)
	if f != nil {
		o.Fail(name, v, f)
		return nil
	}
	return &n
}

// Boolean reads a boolean.
func (o Object) Boolean(name string) *bool {
	if o.record != nil {
		o.record.of(name, "boolean", "")
		return new(bool)
	}
	v := o.Value(name)
	if v == nil {
		return nil
	}
	b, f := ToBool(v)
	if f != nil {
		o.Fail(name, v, f)
		return nil
	}
	return &b
}

// BooleanOr reads a boolean that may be absent but not null.
func (o Object) BooleanOr(name string, otherwise bool) bool {
	if o.record != nil {
		o.record.member(name).Default = otherwise
	}
	if !o.NotNull(name, kindBool) {
		return otherwise
	}
	if b := o.Boolean(name); b != nil {
		return *b
	}
	return otherwise
}

// Enum reads one of the allowed strings.
func (o Object) Enum(name string, allowed []string) *string {
	if o.record != nil {
		return o.record.of(name, "string", "").enum(name, allowed)
	}
	v := o.Value(name)
	if v == nil {
		return nil
	}
	s, ok := v.(string)
	if !ok || !slices.Contains(allowed, s) {
		o.Fail(name, v, NotOneOf(allowed))
		return nil
	}
	return &s
}

// UUID reads a UUID and returns 32 hex characters.
func (o Object) UUID(name string) *string {
	if o.record != nil {
		o.record.of(name, "string", "uuid")
		return new(strings.Repeat("0", 32))
	}
	v := o.Value(name)
	if v == nil {
		return nil
	}
	s, ok := v.(string)
	if !ok {
		o.Fail(name, v, &Fault{Type: "uuid_type", Message: "UUID input should be a string, bytes or UUID object"})
		return nil
	}
	hex, f := ToUUID(s)
	if f != nil {
		o.Fail(name, v, f)
		return nil
	}
	return &hex
}

// Object reads a nested object. ok is false if it is absent, null or not an object.
func (o Object) Object(name string) (nested Object, ok bool) {
	if o.record != nil {
		return Object{Loc: At(o.Loc, name), Problems: o.Problems, record: o.record.of(name, "object", "")}, true
	}
	v := o.Value(name)
	if v == nil {
		return Object{}, false
	}
	m, ok := v.(map[string]any)
	if !ok {
		o.Fail(name, v, KindObject.Fault())
		return Object{}, false
	}
	return Object{Members: m, Loc: At(o.Loc, name), Problems: o.Problems, secret: o.secret}, true
}

// Dict is Object for a map whose names the client chooses; it limits their number.
func (o Object) Dict(name string) (nested Object, ok bool) {
	if o.record != nil {
		return o.record.each(name, "object", o.record.reads.Key, o), true
	}
	v := o.Value(name)
	if v == nil {
		return Object{}, false
	}
	m, ok := v.(map[string]any)
	if !ok {
		o.Fail(name, v, KindDict.Fault())
		return Object{}, false
	}
	if len(m) > MaxMapItems {
		o.Fail(name, v, tooMany("Dictionary", MaxMapItems, len(m)))
		return Object{}, false
	}
	return Object{Members: m, Loc: At(o.Loc, name), Problems: o.Problems, secret: o.secret}, true
}

// Texts reads a list of strings of at most limit characters; nil if absent or null.
func (o Object) Texts(name string, limit int) []string {
	items, ok := o.List(name)
	if !ok {
		return nil
	}
	out := make([]string, 0, len(items.Members))
	for _, i := range items.Indexes() {
		if !items.NotNull(i, KindString) {
			continue
		}
		if s := items.Text(i, limit); s != nil {
			out = append(out, *s)
		}
	}
	return out
}

// List returns a list's elements as an object with the members "0", "1", …, so that the readers and
// locations of members apply.
func (o Object) List(name string) (items Object, ok bool) {
	if o.record != nil {
		items = o.record.each(name, "array", "0", o)
		items.record.MaxItems = MaxListItems
		return items, true
	}
	v := o.Value(name)
	if v == nil {
		return Object{}, false
	}
	l, ok := v.([]any)
	if !ok {
		o.Fail(name, v, KindList.Fault())
		return Object{}, false
	}
	if len(l) > MaxListItems {
		o.Fail(name, v, tooMany("List", MaxListItems, len(l)))
		return Object{}, false
	}
	m := make(map[string]any, len(l))
	for i, e := range l {
		m[strconv.Itoa(i)] = e
	}
	return Object{Members: m, Loc: At(o.Loc, name), Problems: o.Problems, secret: o.secret}, true
}

// Indexes returns the member names of a List's result, in order.
func (o Object) Indexes() []string {
	out := make([]string, len(o.Members))
	for i := range out {
		out[i] = strconv.Itoa(i)
	}
	return out
}

// Elements returns the objects of a list that must not be null. With urls, a string stands for
// {"url": string}.
func (o Object) Elements(name string, urls bool) []Object {
	if !o.NotNull(name, KindList) {
		return nil
	}
	items, ok := o.List(name)
	if !ok {
		return nil
	}
	var out []Object
	for _, i := range items.Indexes() {
		if s, isText := items.Value(i).(string); isText && urls {
			items.Members[i] = map[string]any{"url": s}
		}
		if !items.NotNull(i, KindObject) {
			continue
		}
		if e, ok := items.Object(i); ok {
			out = append(out, e)
		}
	}
	return out
}

// TextMap reads a map of strings of at most limit characters. A name has at most nameLimit.
func (o Object) TextMap(nameLimit, limit int) map[string]string {
	out := make(map[string]string, len(o.Members))
	for _, k := range SortedKeys(o.Members) {
		if isLonger(k, nameLimit) {
			f := tooLong(nameLimit)
			o.Problems.Add(f.Type, At(o.Loc, Truncate(k, 64), "[key]"), f.Message, Masked, f.Context)
			continue
		}
		if !o.NotNull(k, KindString) {
			continue
		}
		if v := o.Text(k, limit); v != nil {
			out[k] = *v
		}
	}
	return out
}

// Rule adds a problem for a member that breaks a custom rule.
func (o Object) Rule(name, text string) {
	if o.record != nil {
		return
	}
	o.Problems.Value(At(o.Loc, name), text, Echo(o.Value(name), o.secret))
}

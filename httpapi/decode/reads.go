package decode

// Reads records what the readers of a request ask for: the parameters and the members of the body,
// with their types and bounds. The description of the API is made of it (openapi.json). Readers of a
// Problems with Reads see no request: every member is there and valid, and Err ends the request.
type Reads struct {
	Body Member
	// Parameters are those of the query, by name.
	Parameters map[string]*Member
	// Key is the name of the one member that every Dict has.
	Key string
	// Picks are what Enum returns for members, by name; the first of the allowed values otherwise.
	Picks map[string]string
}

// Member is a value that readers ask for. Its zero value is one that no typed reader has read.
type Member struct {
	// Type and Format are OpenAPI's.
	Type, Format string
	MaxLength    int
	MaxItems     int
	Minimum      *int64
	Maximum      *int64
	Enum         []string
	Default      any
	// Required members must be sent; NotNull ones must not be null.
	Required, NotNull bool
	// Strict is set for an object without other members.
	Strict  bool
	Members map[string]*Member
	// Each is every item of a list, or every value of a Dict.
	Each  *Member
	reads *Reads
}

// unread is the value of every member while Reads records.
type unread struct{}

// member returns the record of a member, an item or a value of a Dict.
func (m *Member) member(name string) *Member {
	if m.Each != nil {
		return m.Each
	}
	if m.Members == nil {
		m.Members = map[string]*Member{}
	}
	one := m.Members[name]
	if one == nil {
		one = &Member{reads: m.reads}
		m.Members[name] = one
	}
	return one
}

// of sets the type of a member.
func (m *Member) of(name, typ, format string) *Member {
	one := m.member(name)
	one.Type, one.Format = typ, format
	return one
}

// each makes the member a list or a Dict, whose only element has the name key.
func (m *Member) each(name, typ, key string, o Object) Object {
	one := m.of(name, typ, "")
	if one.Each == nil {
		one.Each = &Member{reads: m.reads}
	}
	return Object{Members: map[string]any{key: unread{}}, Loc: At(o.Loc, name), Problems: o.Problems, record: one}
}

// body returns the object that records the members of the body.
func (r *Reads) body(p *Problems, root []string) Object {
	r.Body.Type, r.Body.reads = "object", r
	return Object{Problems: p, Loc: root, record: &r.Body}
}

// parameter returns the record of a parameter of the query.
func (r *Reads) parameter(name, typ, format string) *Member {
	one := r.Parameters[name]
	if one == nil {
		one = &Member{reads: r}
		if r.Parameters == nil {
			r.Parameters = map[string]*Member{}
		}
		r.Parameters[name] = one
	}
	one.Type, one.Format = typ, format
	return one
}

// text records a string of at most limit characters. What only the body's size limits has no bound.
func (m *Member) text(limit int) *string {
	if limit < MaxAnyText {
		m.MaxLength = limit
	}
	return new("")
}

// enum records one of some texts, and returns the one to go on with.
func (m *Member) enum(name string, allowed []string) *string {
	m.Enum = allowed
	if pick, ok := m.reads.Picks[name]; ok {
		return &pick
	}
	return &allowed[0]
}

package fsm

import "bytes"

// ProfilePutBody saves a profile of Command.UserID, in place of one with the same kind and name:
// its id stays, its revision rises, and it stays active. Settings that an active LLM profile was
// applied to follow it. More than MaxProfiles are CodeConflict.
type ProfilePutBody struct {
	// Profile has no UserID, Revision or Active.
	Profile Profile `json:"profile"`
	// KeepKey keeps the stored key of a profile that is there, and Profile has none.
	KeepKey bool `json:"keep_key,omitempty"`
	// FromSettings takes model, base URL and, unless KeepKey finds one, the key from the settings,
	// which must be there (CodeNotFound).
	FromSettings bool `json:"from_settings,omitempty"`
}

// CommandType implements Body.
func (*ProfilePutBody) CommandType() CommandType { return ProfilePut }

// check implements Body.
func (b *ProfilePutBody) check(r *rules) {
	p := &b.Profile
	r.profile(p.Kind, p.Name)
	r.id("a profile's id", p.ID)
	r.text("model", p.Model, MaxLine)
	r.text("base_url", p.BaseURL, MaxLine)
	r.ref("a profile", p.Key)
	r.check(p.UserID == "" && p.Revision == 0 && !p.Active, "a profile that is saved has no user, revision or mark")
	r.check(!b.KeepKey || p.Key.IsZero(), "a profile has a new key or keeps its own")
	if p.Kind == ProfileLLM {
		r.check(len(p.Document) == 0, "an LLM profile has no document")
		return
	}
	r.check(p.Model == "" && p.BaseURL == "" && p.Key.IsZero() && !b.FromSettings && !b.KeepKey,
		"an agent profile names no model: it refers to an LLM profile")
	r.check(len(p.Document) <= MaxProfileDocument, "an agent profile has at most %d bytes", MaxProfileDocument)
	r.check(bytes.HasPrefix(p.Document, []byte("{")), "an agent profile is an object")
	if len(p.Document) > 0 {
		r.raw("an agent profile", p.Document)
	}
}

// profile checks what names a profile.
func (r *rules) profile(kind ProfileKind, name string) {
	r.check(kind == ProfileLLM || kind == ProfileAgent, "unknown kind of profile %q", clip(string(kind)))
	r.check(ValidProfileName(name), "bad name of a profile %q: use 1 to %d of A-Z a-z 0-9 . _ -", clip(name),
		MaxProfileName)
}

func (t *transaction) applyProfilePut(b *ProfilePutBody) (Result, *Error) {
	c, err := t.changeOfProfile(b)
	if err != nil {
		return Result{}, err
	}
	put(t, tableProfiles, c.old, c.next)
	t.storeSettings(c.oldSettings, c.settings)
	return Result{}, nil
}

// profileChange is what a save or an activation writes.
type profileChange struct {
	old, next *Profile
	// settings take the place of oldSettings; nil leaves them.
	oldSettings, settings *Settings
}

// changeOfProfile checks a save against the state.
func (t *transaction) changeOfProfile(b *ProfilePutBody) (c profileChange, err *Error) {
	user, p := t.cmd.UserID, b.Profile
	c.old = first[Profile](t.txn, tableProfiles, indexID, keyOf(user, string(p.Kind), p.Name))
	c.oldSettings = t.settingsOf(user)
	p.UserID = user
	if b.FromSettings {
		if c.oldSettings == nil {
			return c, Errorf(CodeNotFound, "Settings not found")
		}
		now := c.oldSettings.present()
		p.Model, p.BaseURL, p.Key = now.Model, now.BaseURL, c.oldSettings.LLMAPIKey
	}
	switch {
	case c.old != nil:
		p.ID, p.Revision, p.Active = c.old.ID, c.old.Revision+1, c.old.Active
		if b.KeepKey {
			p.Key = c.old.Key
		}
	case first[Profile](t.txn, tableProfiles, indexLookup, keyOf(user, p.ID)) != nil:
		return c, Errorf(CodeConflict, "the profile id %s is taken", clip(p.ID))
	case len(t.view().Profiles(user, p.Kind)) >= MaxProfiles:
		return c, Errorf(CodeConflict, "a user has at most %d profiles: delete one first", MaxProfiles)
	}
	c.next = &p
	if c.old != nil && c.old.Active && p.Kind == ProfileLLM && c.old.AppliedTo(c.oldSettings) {
		c.settings = p.applyTo(c.oldSettings, user)
	}
	return c, t.mayGrow(user, t.growthOfProfile(c))
}

// growthOfProfile returns how much a change adds to the state.
func (t *transaction) growthOfProfile(c profileChange) int {
	n := growthOf(&t.meta, c.old, c.next)
	if c.settings != nil {
		n += growthOf(&t.meta, c.oldSettings, c.settings)
	}
	return n
}

// storeSettings stores settings that a command of another noun changes; nil changes none.
func (t *transaction) storeSettings(old, next *Settings) {
	if next == nil {
		return
	}
	next.UpdatedAt = t.now
	put(t, tableSettings, old, next)
	t.settings[next.UserID] = next
}

// ProfileDeleteBody deletes a profile of Command.UserID. One that is not there is deleted already.
// Settings that it was applied to stay.
type ProfileDeleteBody struct {
	Kind ProfileKind `json:"kind"`
	Name string      `json:"name"`
}

// CommandType implements Body.
func (*ProfileDeleteBody) CommandType() CommandType { return ProfileDelete }

// check implements Body.
func (b *ProfileDeleteBody) check(r *rules) { r.profile(b.Kind, b.Name) }

func (t *transaction) applyProfileDelete(b *ProfileDeleteBody) (Result, *Error) {
	key := keyOf(t.cmd.UserID, string(b.Kind), b.Name)
	if old := first[Profile](t.txn, tableProfiles, indexID, key); old != nil {
		drop(t, tableProfiles, old)
	}
	return Result{}, nil
}

// ProfileRenameBody gives a profile of Command.UserID another name. An unknown one is CodeNotFound,
// a name that another profile has CodeConflict.
type ProfileRenameBody struct {
	Kind    ProfileKind `json:"kind"`
	Name    string      `json:"name"`
	NewName string      `json:"new_name"`
}

// CommandType implements Body.
func (*ProfileRenameBody) CommandType() CommandType { return ProfileRename }

// check implements Body.
func (b *ProfileRenameBody) check(r *rules) {
	r.profile(b.Kind, b.Name)
	r.profile(b.Kind, b.NewName)
}

func (t *transaction) applyProfileRename(b *ProfileRenameBody) (Result, *Error) {
	user := t.cmd.UserID
	old := first[Profile](t.txn, tableProfiles, indexID, keyOf(user, string(b.Kind), b.Name))
	switch {
	case old == nil:
		return Result{}, ErrProfileNotFound(b.Kind, b.Name)
	case b.Name == b.NewName:
		return Result{}, nil
	case first[Profile](t.txn, tableProfiles, indexID, keyOf(user, string(b.Kind), b.NewName)) != nil:
		return Result{}, Errorf(CodeConflict, "%s '%s' already exists", b.Kind.Title(), b.NewName)
	}
	p := *old
	p.Name = b.NewName
	if err := t.mayGrow(user, growthOf(&t.meta, old, &p)); err != nil {
		return Result{}, err
	}
	// The id stays: the old row must leave its index before the new one enters it. The key has a
	// reference all the while, so that it does not count as replaced.
	t.addRef(p.Key, 1)
	drop(t, tableProfiles, old)
	put(t, tableProfiles, nil, &p)
	t.addRef(p.Key, -1)
	return Result{}, nil
}

// ProfileActivateBody makes a profile of Command.UserID the active one of its kind. An LLM profile
// is applied to the settings, so that conversations that begin later use it. An unknown one is
// CodeNotFound. It sets Result.Profile, without the document.
type ProfileActivateBody struct {
	Kind ProfileKind `json:"kind"`
	// Name is that of an LLM profile, ID that of an agent profile.
	Name string `json:"name,omitempty"`
	ID   string `json:"id,omitempty"`
}

// CommandType implements Body.
func (*ProfileActivateBody) CommandType() CommandType { return ProfileActivate }

// check implements Body.
func (b *ProfileActivateBody) check(r *rules) {
	if b.Kind == ProfileAgent {
		r.lookedUp("id", b.ID)
		r.check(b.Name == "", "an agent profile is activated by its id")
		return
	}
	r.profile(b.Kind, b.Name)
	r.check(b.ID == "", "an LLM profile is activated by its name")
}

func (t *transaction) applyProfileActivate(b *ProfileActivateBody) (Result, *Error) {
	user := t.cmd.UserID
	old := profileByID(t.txn, user, b.Kind, b.ID)
	if b.Kind == ProfileLLM {
		old = first[Profile](t.txn, tableProfiles, indexID, keyOf(user, string(b.Kind), b.Name))
	}
	if old == nil {
		return Result{}, ErrProfileNotFound(b.Kind, b.Name+b.ID)
	}
	p := *old
	p.Active = true
	c := profileChange{old: old, next: &p, oldSettings: t.settingsOf(user)}
	if p.Kind == ProfileLLM && !p.AppliedTo(c.oldSettings) {
		c.settings = p.applyTo(c.oldSettings, user)
	}
	if err := t.mayGrow(user, t.growthOfProfile(c)); err != nil {
		return Result{}, err
	}
	for _, other := range t.view().Profiles(user, p.Kind) {
		if other.Active && other.ID != p.ID {
			off := *other
			off.Active = false
			put(t, tableProfiles, other, &off)
		}
	}
	put(t, tableProfiles, old, &p)
	t.storeSettings(c.oldSettings, c.settings)
	shown := p
	shown.Document, shown.Key = nil, SecretRef{}
	return Result{Profile: &shown}, nil
}

// Title begins a sentence about a profile of the kind.
func (k ProfileKind) Title() string {
	if k == ProfileAgent {
		return "Agent profile"
	}
	return "Profile"
}

// ErrProfileNotFound is CodeNotFound for a profile.
func ErrProfileNotFound(kind ProfileKind, name string) *Error {
	return Errorf(CodeNotFound, "%s '%s' not found", kind.Title(), clip(name))
}

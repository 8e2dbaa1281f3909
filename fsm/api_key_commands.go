package fsm

import "time"

// APIKeyCreateBody issues a key. The proposer generates the key and sends its hash. The command
// also creates the key's user if there is none. A lookup that is taken is CodeConflict: the
// proposer generates another key.
type APIKeyCreateBody struct {
	Lookup string `json:"lookup"`
	Hash   string `json:"hash"`
	Name   string `json:"name"`
	UserID string `json:"user_id"`
	// Operator asks for RoleOperator. It is the only role that is known below VersionAccess.
	Operator bool `json:"operator,omitempty"`
	// ExpiresAt is from VersionAccess on; below it Apply drops it. A time that is not after
	// Command.Time is CodeInvalid.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	// Bootstrap is set by `bivouac keys bootstrap` and `bivouac dev`. Apply refuses it with
	// CodeConflict while a valid operator key exists; below protocol version 3, once any key was
	// issued. The same key a second time returns the first result.
	Bootstrap bool `json:"bootstrap,omitempty"`
	// Reset lets a bootstrap pass beside operator keys, for an operator who lost them. The leader
	// asks for a file on its disk first. Below VersionAccess Apply ignores it.
	Reset bool `json:"reset,omitempty"`
}

// CommandType implements Body.
func (*APIKeyCreateBody) CommandType() CommandType { return APIKeyCreate }

// check implements Body.
func (b *APIKeyCreateBody) check(r *rules) {
	r.id("lookup", b.Lookup)
	r.hash("hash", b.Hash)
	r.text("name", b.Name, MaxName)
	r.check(validUserID(b.UserID), "user_id %q is not of the form [a-z0-9][a-z0-9._-]{0,62}", clip(b.UserID))
	if e := b.ExpiresAt; e != nil {
		r.check(e.Year() >= 1 && e.Year() <= 9999, "expires_at is out of range")
	}
}

func (t *transaction) applyAPIKeyCreate(b *APIKeyCreateBody) (Result, *Error) {
	if same := t.bootstrapped(b); same != nil {
		return Result{APIKey: same}, nil
	}
	reset := b.Reset && t.meta.active(VersionAccess)
	if b.Bootstrap && !reset && !t.mayBootstrap() {
		return Result{}, Errorf(CodeConflict,
			"a key was issued before: use an operator key with `bivouac keys create`")
	}
	if b.ExpiresAt != nil && t.meta.active(VersionAccess) && !b.ExpiresAt.After(t.now) {
		return Result{}, Errorf(CodeInvalid, "expires_at is in the past")
	}
	if first[APIKey](t.txn, tableAPIKeys, indexLookup, []byte(b.Lookup)) != nil {
		return Result{}, Errorf(CodeConflict, "the key's lookup part is taken: draw another key")
	}
	if first[User](t.txn, tableUsers, indexID, []byte(b.UserID)) == nil {
		put(t, tableUsers, nil, &User{ID: b.UserID, CreatedAt: t.now})
	}
	if b.Bootstrap {
		t.readmit(b.UserID)
	}
	t.meta.LastAPIKeyID++
	k := &APIKey{
		ID: t.meta.LastAPIKeyID, Lookup: b.Lookup, Hash: b.Hash, Name: b.Name, UserID: b.UserID,
		Operator: b.Operator, CreatedAt: t.now,
	}
	if t.meta.active(VersionAccess) {
		k.giveRole()
		if b.ExpiresAt != nil {
			at := b.ExpiresAt.UTC().Truncate(time.Microsecond)
			k.ExpiresAt = &at
		}
	}
	put(t, tableAPIKeys, nil, k)
	t.collectEndedKeys(k.UserID)
	return Result{APIKey: k}, nil
}

// giveRole sets the role of a key that has Operator.
func (k *APIKey) giveRole() { k.Role, k.Operator = k.RoleOf(), false }

// giveRoles gives every key its role when the cluster reaches VersionAccess.
func (t *transaction) giveRoles() {
	for _, old := range collect(withPrefix[APIKey](t.txn, tableAPIKeys, indexID, nil)) {
		k := *old
		k.giveRole()
		put(t, tableAPIKeys, old, &k)
	}
}

// bootstrapped returns the key that a repeated bootstrap asks for, or nil. A client that lost the
// response repeats the request.
func (t *transaction) bootstrapped(b *APIKeyCreateBody) *APIKey {
	if !b.Bootstrap || !t.meta.active(VersionHistory) {
		return nil
	}
	k := first[APIKey](t.txn, tableAPIKeys, indexLookup, []byte(b.Lookup))
	if k == nil || k.Hash != b.Hash || !k.IsOperator() || k.UserID != b.UserID || !t.usable(k) {
		return nil
	}
	return k
}

// usable reports whether a key may be used now, by its own state and its user's.
func (t *transaction) usable(k *APIKey) bool {
	return t.view().Good(k.UserID, Credential{Lookup: k.Lookup}, t.now)
}

// mayBootstrap reports whether a first operator key may be issued: there is no usable one. Beside one
// that was lost APIKeyCreateBody.Reset issues another.
func (t *transaction) mayBootstrap() bool {
	if !t.meta.active(VersionHistory) {
		return t.meta.LastAPIKeyID == 0
	}
	for k := range withPrefix[APIKey](t.txn, tableAPIKeys, indexID, nil) {
		if k.IsOperator() && t.usable(k) {
			return false
		}
	}
	return true
}

// APIKeyRevokeBody revokes a key permanently. An unknown id is CodeNotFound. Revoking twice is not
// an error.
type APIKeyRevokeBody struct {
	ID int `json:"id"`
}

// CommandType implements Body.
func (*APIKeyRevokeBody) CommandType() CommandType { return APIKeyRevoke }

// check implements Body.
func (b *APIKeyRevokeBody) check(r *rules) {
	r.check(b.ID >= 1, "id must be at least 1")
}

func (t *transaction) applyAPIKeyRevoke(b *APIKeyRevokeBody) (Result, *Error) {
	old := first[APIKey](t.txn, tableAPIKeys, indexID, intKey(b.ID))
	if old == nil {
		return Result{}, Errorf(CodeNotFound, "API key not found")
	}
	if old.RevokedAt != nil {
		return Result{APIKey: old}, nil
	}
	k := *old
	now := t.now
	k.RevokedAt = &now
	put(t, tableAPIKeys, old, &k)
	t.endSessions(k.UserID, k.ID)
	t.collectEndedKeys(k.UserID)
	t.changed()
	t.keys = t.index // proxies close the streams that were opened with the key
	return Result{APIKey: &k}, nil
}

// APIKeyDisableBody makes a key unusable until api_key.enable. An operator proposes it. An unknown
// id is CodeNotFound. Disabling twice is not an error.
type APIKeyDisableBody struct {
	ID int `json:"id"`
}

// CommandType implements Body.
func (*APIKeyDisableBody) CommandType() CommandType { return APIKeyDisable }

// check implements Body.
func (b *APIKeyDisableBody) check(r *rules) {
	r.check(b.ID >= 1, "id must be at least 1")
}

func (t *transaction) applyAPIKeyDisable(b *APIKeyDisableBody) (Result, *Error) {
	old := first[APIKey](t.txn, tableAPIKeys, indexID, intKey(b.ID))
	if old == nil {
		return Result{}, Errorf(CodeNotFound, "API key not found")
	}
	if old.Disabled {
		return Result{APIKey: old}, nil
	}
	k := *old
	k.Disabled = true
	put(t, tableAPIKeys, old, &k)
	t.endSessions(k.UserID, k.ID)
	t.changed()
	t.keys = t.index
	return Result{APIKey: &k}, nil
}

// APIKeyEnableBody makes a key usable again that a restore suspended or api_key.disable disabled.
// An operator proposes it. An unknown id is CodeNotFound and a revoked key CodeConflict. Another key
// stays as it is.
type APIKeyEnableBody struct {
	ID int `json:"id"`
}

// CommandType implements Body.
func (*APIKeyEnableBody) CommandType() CommandType { return APIKeyEnable }

// check implements Body.
func (b *APIKeyEnableBody) check(r *rules) {
	r.check(b.ID >= 1, "id must be at least 1")
}

func (t *transaction) applyAPIKeyEnable(b *APIKeyEnableBody) (Result, *Error) {
	old := first[APIKey](t.txn, tableAPIKeys, indexID, intKey(b.ID))
	switch {
	case old == nil:
		return Result{}, Errorf(CodeNotFound, "API key not found")
	case old.RevokedAt != nil:
		return Result{}, Errorf(CodeConflict, "the API key is revoked, for good: issue another")
	case old.SuspendedAt == nil && !old.Disabled:
		return Result{APIKey: old}, nil
	}
	k := *old
	k.SuspendedAt, k.Disabled = nil, false
	put(t, tableAPIKeys, old, &k)
	return Result{APIKey: &k}, nil
}

// APIKeyUseStep is the smallest change of APIKey.LastUsedAt that is written.
const APIKeyUseStep = time.Hour

// APIKeyUsedBody notes when keys were last used, at most 1,000 in one command. A node proposes it for
// the requests that it admitted. It never moves LastUsedAt backwards or beyond Command.Time. It
// skips unknown keys and changes under APIKeyUseStep.
type APIKeyUsedBody struct {
	Uses []APIKeyUse `json:"uses"`
}

// APIKeyUse is the last use of one key.
type APIKeyUse struct {
	ID int       `json:"id"`
	At time.Time `json:"at"`
}

// CommandType implements Body.
func (*APIKeyUsedBody) CommandType() CommandType { return APIKeyUsed }

// check implements Body.
func (b *APIKeyUsedBody) check(r *rules) {
	r.count("uses", len(b.Uses))
	for _, u := range b.Uses {
		r.check(u.ID >= 1, "id must be at least 1")
		r.check(u.At.Year() >= 1 && u.At.Year() <= 9999, "the time of a use is out of range")
	}
}

func (t *transaction) applyAPIKeyUsed(b *APIKeyUsedBody) (Result, *Error) {
	for _, use := range b.Uses {
		old := first[APIKey](t.txn, tableAPIKeys, indexID, intKey(use.ID))
		if old == nil {
			continue
		}
		at := use.At.UTC().Truncate(time.Microsecond)
		if at.After(t.now) {
			at = t.now
		}
		if old.LastUsedAt != nil && at.Sub(*old.LastUsedAt) < APIKeyUseStep {
			continue
		}
		k := *old
		k.LastUsedAt = &at
		put(t, tableAPIKeys, old, &k)
	}
	return Result{}, nil
}

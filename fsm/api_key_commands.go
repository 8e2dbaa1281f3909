package fsm

// APIKeyCreateBody issues a key. The proposer generates the key and sends its hash. The command
// also creates the key's user if there is none. A lookup that is taken is CodeConflict: the
// proposer generates another key.
type APIKeyCreateBody struct {
	Lookup   string `json:"lookup"`
	Hash     string `json:"hash"`
	Name     string `json:"name"`
	UserID   string `json:"user_id"`
	Operator bool   `json:"operator,omitempty"`
	// Bootstrap is set by `bivouac keys bootstrap` and `bivouac dev`. Apply refuses it with
	// CodeConflict while a valid operator key exists; below protocol version 3, once any key was
	// issued. The same key a second time returns the first result.
	Bootstrap bool `json:"bootstrap,omitempty"`
}

// CommandType implements Body.
func (*APIKeyCreateBody) CommandType() CommandType { return APIKeyCreate }

// check implements Body.
func (b *APIKeyCreateBody) check(r *rules) {
	r.id("lookup", b.Lookup)
	r.hash("hash", b.Hash)
	r.text("name", b.Name, MaxName)
	r.check(validUserID(b.UserID), "user_id %q is not of the form [a-z0-9][a-z0-9._-]{0,62}", clip(b.UserID))
}

func (t *transaction) applyAPIKeyCreate(b *APIKeyCreateBody) (Result, *Error) {
	if same := t.bootstrapped(b); same != nil {
		return Result{APIKey: same}, nil
	}
	if b.Bootstrap && !t.mayBootstrap() {
		return Result{}, Errorf(CodeConflict,
			"a key was issued before: use an operator key with `bivouac keys create`")
	}
	if first[APIKey](t.txn, tableAPIKeys, indexLookup, []byte(b.Lookup)) != nil {
		return Result{}, Errorf(CodeConflict, "the key's lookup part is taken: draw another key")
	}
	if first[User](t.txn, tableUsers, indexID, []byte(b.UserID)) == nil {
		put(t, tableUsers, nil, &User{ID: b.UserID, CreatedAt: t.now})
	}
	t.meta.LastAPIKeyID++
	k := &APIKey{
		ID: t.meta.LastAPIKeyID, Lookup: b.Lookup, Hash: b.Hash, Name: b.Name, UserID: b.UserID,
		Operator: b.Operator, CreatedAt: t.now,
	}
	put(t, tableAPIKeys, nil, k)
	return Result{APIKey: k}, nil
}

// bootstrapped returns the key that a repeated bootstrap asks for, or nil. A client that lost the
// response repeats the request.
func (t *transaction) bootstrapped(b *APIKeyCreateBody) *APIKey {
	if !b.Bootstrap || !t.meta.active(VersionHistory) {
		return nil
	}
	k := first[APIKey](t.txn, tableAPIKeys, indexLookup, []byte(b.Lookup))
	if k == nil || k.Hash != b.Hash || !k.Operator || k.UserID != b.UserID || !k.Valid() {
		return nil
	}
	return k
}

// mayBootstrap reports whether a first operator key may be issued: there is no valid one. An
// operator key that was lost has to be revoked first.
func (t *transaction) mayBootstrap() bool {
	if !t.meta.active(VersionHistory) {
		return t.meta.LastAPIKeyID == 0
	}
	for k := range withPrefix[APIKey](t.txn, tableAPIKeys, indexID, nil) {
		if k.Operator && k.Valid() {
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
	t.changed, t.keys = true, t.index // proxies close the streams that were opened with the key
	return Result{APIKey: &k}, nil
}

// APIKeyEnableBody makes a key usable again that a restore suspended. An operator proposes it. An
// unknown id is CodeNotFound and a revoked key CodeConflict. A key that is not suspended stays as
// it is.
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
	case old.SuspendedAt == nil:
		return Result{APIKey: old}, nil
	}
	k := *old
	k.SuspendedAt = nil
	put(t, tableAPIKeys, old, &k)
	return Result{APIKey: &k}, nil
}

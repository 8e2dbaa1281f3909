package fsm

// APIKeyCreateBody issues a key. The proposer made the key and sends its hash.
// The key's user begins to exist with it. A lookup that is taken is
// CodeConflict: the proposer draws another.
type APIKeyCreateBody struct {
	Lookup   string `json:"lookup"`
	Hash     string `json:"hash"`
	Name     string `json:"name"`
	UserID   string `json:"user_id"`
	Operator bool   `json:"operator,omitempty"`
	// Bootstrap is set by `bivouac keys bootstrap` and `bivouac dev`: Apply
	// refuses it with CodeConflict while there is an operator's key that may be
	// used, below protocol version 3 once any key was ever issued. The same key
	// again is answered as the first time.
	Bootstrap bool `json:"bootstrap,omitempty"`
}

// CommandType implements Body.
func (*APIKeyCreateBody) CommandType() CommandType { return APIKeyCreate }

// Validate implements Body.
func (b *APIKeyCreateBody) Validate() error {
	var r rules
	r.id("lookup", b.Lookup)
	r.hash("hash", b.Hash)
	r.text("name", b.Name, maxName)
	r.check(validUserID(b.UserID), "user_id %q is not of the form [a-z0-9][a-z0-9._-]{0,62}", clip(b.UserID))
	return r.result()
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

// bootstrapped finds the key that a bootstrap asks for a second time, nil when it
// does not: whoever lost the answer asks again.
func (t *transaction) bootstrapped(b *APIKeyCreateBody) *APIKey {
	if !b.Bootstrap || t.meta.ProtocolVersion < credentialVersion {
		return nil
	}
	k := first[APIKey](t.txn, tableAPIKeys, indexLookup, []byte(b.Lookup))
	if k == nil || k.Hash != b.Hash || !k.Operator || k.UserID != b.UserID || !k.Valid() {
		return nil
	}
	return k
}

// mayBootstrap reports whether a first key may be issued: nobody has an operator's
// key. One that was lost before anybody saw it is revoked by whoever lost it.
func (t *transaction) mayBootstrap() bool {
	if t.meta.ProtocolVersion < credentialVersion {
		return t.meta.LastAPIKeyID == 0
	}
	for k := range withPrefix[APIKey](t.txn, tableAPIKeys, indexID, nil) {
		if k.Operator && k.Valid() {
			return false
		}
	}
	return true
}

// APIKeyRevokeBody revokes a key for good. Unknown ids are CodeNotFound;
// revoking twice is fine.
type APIKeyRevokeBody struct {
	ID int `json:"id"`
}

// CommandType implements Body.
func (*APIKeyRevokeBody) CommandType() CommandType { return APIKeyRevoke }

// Validate implements Body.
func (b *APIKeyRevokeBody) Validate() error {
	var r rules
	r.check(b.ID >= 1, "id must be at least 1")
	return r.result()
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
	t.changed, t.keys = true, t.index // for the proxies, whose open streams are a key's
	return Result{APIKey: &k}, nil
}

// APIKeyEnableBody makes a key usable that a restore has suspended. The
// operator's. An unknown id is CodeNotFound, a revoked key CodeConflict; one that
// is not suspended stays as it is.
type APIKeyEnableBody struct {
	ID int `json:"id"`
}

// CommandType implements Body.
func (*APIKeyEnableBody) CommandType() CommandType { return APIKeyEnable }

// Validate implements Body.
func (b *APIKeyEnableBody) Validate() error {
	var r rules
	r.check(b.ID >= 1, "id must be at least 1")
	return r.result()
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

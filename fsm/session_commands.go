package fsm

import "time"

// SessionCreateBody signs Command.UserID in with one of the user's API keys, which the command was
// asked with. A key that is not good is CodeUnauthorized. It sets Result.User.
type SessionCreateBody struct {
	// Hash is the SHA-256 of the session's token in hex.
	Hash  string `json:"hash"`
	KeyID int    `json:"key_id"`
}

// CommandType implements Body.
func (*SessionCreateBody) CommandType() CommandType { return SessionCreate }

// check implements Body.
func (b *SessionCreateBody) check(r *rules) {
	r.hash("hash", b.Hash)
	r.check(b.KeyID >= 1, "key_id must be at least 1")
}

func (t *transaction) applySessionCreate(b *SessionCreateBody) (Result, *Error) {
	key, err := t.signingKey(b.KeyID)
	if err != nil {
		return Result{}, err
	}
	return t.openSession(b.Hash, key)
}

// signingKey returns the key of Command.UserID that a session or a code is made with. A session
// makes neither: it would outlive SessionAge.
func (t *transaction) signingKey(id int) (*APIKey, *Error) {
	if t.cmd.Credential.ofSession() {
		return nil, Errorf(CodeForbidden, "this needs an API key")
	}
	key := t.view().signsIn(id, t.cmd.UserID, t.now)
	if key == nil {
		return nil, Errorf(CodeUnauthorized, "the key is not the user's, or is no longer good")
	}
	return key, nil
}

// openSession stores a new session of a key that is good.
func (t *transaction) openSession(hash string, key *APIKey) (Result, *Error) {
	if t.view().Session(hash) != nil {
		return Result{}, Errorf(CodeConflict, "the session's token is taken: draw another")
	}
	makeRoom(t, tableSessions, key.UserID, (*Session).End, t.endSession)
	s := &Session{Hash: hash, UserID: key.UserID, KeyID: key.ID, CreatedAt: t.now, SeenAt: t.now}
	put(t, tableSessions, nil, s)
	return Result{User: t.view().User(key.UserID)}, nil
}

// SessionOfferBody makes a code that opens one session of Command.UserID within SignInCodeAge. The
// rules are those of SessionCreateBody.
type SessionOfferBody struct {
	// Hash is the SHA-256 of the code in hex.
	Hash  string `json:"hash"`
	KeyID int    `json:"key_id"`
}

// CommandType implements Body.
func (*SessionOfferBody) CommandType() CommandType { return SessionOffer }

// check implements Body.
func (b *SessionOfferBody) check(r *rules) {
	r.hash("hash", b.Hash)
	r.check(b.KeyID >= 1, "key_id must be at least 1")
}

func (t *transaction) applySessionOffer(b *SessionOfferBody) (Result, *Error) {
	key, err := t.signingKey(b.KeyID)
	switch {
	case err != nil:
		return Result{}, err
	case t.view().SignInCode(b.Hash) != nil:
		return Result{}, Errorf(CodeConflict, "the code is taken: draw another")
	}
	makeRoom(t, tableSignInCodes, key.UserID, func(c *SignInCode) time.Time { return c.Until },
		func(c *SignInCode) { drop(t, tableSignInCodes, c) })
	put(t, tableSignInCodes, nil,
		&SignInCode{Hash: b.Hash, UserID: key.UserID, KeyID: key.ID, Until: t.now.Add(SignInCodeAge)})
	return Result{}, nil
}

// SessionRedeemBody uses a code up and opens its session. A code that was used, has expired or
// never was is CodeNotFound, on every node. It sets Result.User.
type SessionRedeemBody struct {
	// Code is the SHA-256 of the code in hex, Hash that of the session's token.
	Code string `json:"code"`
	Hash string `json:"hash"`
}

// CommandType implements Body.
func (*SessionRedeemBody) CommandType() CommandType { return SessionRedeem }

// check implements Body.
func (b *SessionRedeemBody) check(r *rules) {
	r.hash("code", b.Code)
	r.hash("hash", b.Hash)
}

func (t *transaction) applySessionRedeem(b *SessionRedeemBody) (Result, *Error) {
	v := t.view()
	code := v.SignInCode(b.Code)
	key := v.GoodSignInCode(code, t.now)
	if key == nil {
		return Result{}, Errorf(CodeNotFound, "the code was used, has expired or is wrong: ask for another")
	}
	res, err := t.openSession(b.Hash, key)
	if err == nil {
		drop(t, tableSignInCodes, code)
	}
	return res, err
}

// SessionEndBody ends a session of Command.UserID. One that is gone is no error.
type SessionEndBody struct {
	Hash string `json:"hash"`
}

// CommandType implements Body.
func (*SessionEndBody) CommandType() CommandType { return SessionEnd }

// check implements Body.
func (b *SessionEndBody) check(r *rules) { r.hash("hash", b.Hash) }

func (t *transaction) applySessionEnd(b *SessionEndBody) (Result, *Error) {
	if s := t.view().Session(b.Hash); s != nil && s.UserID == t.cmd.UserID {
		t.endSession(s)
	}
	return Result{}, nil
}

// SessionSeenBody notes when sessions were last used, at most 1,000 in one command. A node proposes
// it for the requests that it admitted. It never moves SeenAt backwards or beyond Command.Time,
// revives no session, and skips unknown ones and changes under SessionSeenStep.
type SessionSeenBody struct {
	Uses []SessionUse `json:"uses"`
}

// SessionUse is the last use of one session.
type SessionUse struct {
	Hash string    `json:"hash"`
	At   time.Time `json:"at"`
}

// CommandType implements Body.
func (*SessionSeenBody) CommandType() CommandType { return SessionSeen }

// check implements Body.
func (b *SessionSeenBody) check(r *rules) {
	r.count("uses", len(b.Uses))
	for _, u := range b.Uses {
		r.hash("hash", u.Hash)
		r.check(u.At.Year() >= 1 && u.At.Year() <= 9999, "the time of a use is out of range")
	}
}

func (t *transaction) applySessionSeen(b *SessionSeenBody) (Result, *Error) {
	for _, use := range b.Uses {
		old := t.view().Session(use.Hash)
		if old == nil {
			continue
		}
		at := use.At.UTC().Truncate(time.Microsecond)
		if at.After(t.now) {
			at = t.now
		}
		if at.Sub(old.SeenAt) < SessionSeenStep || !at.Before(old.End()) {
			continue
		}
		s := *old
		s.SeenAt = at
		put(t, tableSessions, old, &s)
	}
	return Result{}, nil
}

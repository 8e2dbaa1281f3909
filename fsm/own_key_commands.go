package fsm

import (
	"cmp"
	"time"
)

// MaxOwnKeys is how many valid keys a user may have and still make another. Operators may make more.
const MaxOwnKeys = 100

// OwnKeyCreateBody makes a key of Command.UserID that acts for the user and never as an operator. A
// lookup that is taken, and a user with MaxOwnKeys, are CodeConflict. It sets Result.APIKey.
type OwnKeyCreateBody struct {
	Lookup string `json:"lookup"`
	Hash   string `json:"hash"`
	Name   string `json:"name"`
	// ExpiresAt is as in APIKeyCreateBody, and no later than what the command was asked with lasts at
	// most (CodeInvalid); absent it is that end.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// CommandType implements Body.
func (*OwnKeyCreateBody) CommandType() CommandType { return OwnKeyCreate }

// check implements Body. The envelope has the user.
func (b *OwnKeyCreateBody) check(r *rules) {
	r.id("lookup", b.Lookup)
	r.hash("hash", b.Hash)
	r.text("name", b.Name, MaxName)
	if e := b.ExpiresAt; e != nil {
		r.check(e.Year() >= 1 && e.Year() <= 9999, "expires_at is out of range")
	}
}

func (t *transaction) applyOwnKeyCreate(b *OwnKeyCreateBody) (Result, *Error) {
	if err := t.roomForOwnKey(t.cmd.UserID); err != nil {
		return Result{}, err
	}
	end := b.ExpiresAt
	if most := t.endOfCredential(); most != nil {
		if end != nil && end.After(*most) {
			return Result{}, Errorf(CodeInvalid, "expires_at is after the end of the key or session that this was asked with")
		}
		end = cmp.Or(end, most)
	}
	return t.applyAPIKeyCreate(&APIKeyCreateBody{
		Lookup: b.Lookup, Hash: b.Hash, Name: b.Name, UserID: t.cmd.UserID, ExpiresAt: end,
	})
}

// roomForOwnKey refuses one more key of a user who has MaxOwnKeys.
func (t *transaction) roomForOwnKey(user string) *Error {
	valid := 0
	for k := range withPrefix[APIKey](t.txn, tableAPIKeys, indexUser, prefixOf(user)) {
		if k.Valid(t.now) {
			valid++
		}
	}
	if valid >= MaxOwnKeys {
		return Errorf(CodeConflict, "you have %d API keys, and may have %d: delete one", valid, MaxOwnKeys)
	}
	return nil
}

// endOfCredential returns when the key or session that the command was asked with ends at the latest,
// nil for never.
func (t *transaction) endOfCredential() (end *time.Time) {
	by, v := t.cmd.Credential, t.view()
	if key := v.APIKeyByLookup(by.Lookup); key != nil {
		end = key.ExpiresAt
	}
	if s := v.Session(by.KeyHash); s != nil && by.ofSession() {
		if most := s.CreatedAt.Add(SessionAge); end == nil || most.Before(*end) {
			end = &most
		}
	}
	return end
}

// OwnKeyRevokeBody revokes a key of Command.UserID permanently. One that is unknown, revoked or another
// user's is CodeNotFound, and an operator's CodeForbidden unless an operator's key asks: who has stolen a
// user's key must not shut the operator out.
type OwnKeyRevokeBody struct {
	ID int `json:"id"`
}

// CommandType implements Body.
func (*OwnKeyRevokeBody) CommandType() CommandType { return OwnKeyRevoke }

// check implements Body.
func (b *OwnKeyRevokeBody) check(r *rules) {
	r.check(b.ID >= 1, "id must be at least 1")
}

func (t *transaction) applyOwnKeyRevoke(b *OwnKeyRevokeBody) (Result, *Error) {
	k := first[APIKey](t.txn, tableAPIKeys, indexID, intKey(b.ID))
	if k == nil || k.UserID != t.cmd.UserID || k.RevokedAt != nil {
		return Result{}, Errorf(CodeNotFound, "API key not found")
	}
	if k.IsOperator() {
		if err := t.operators(); err != nil {
			return Result{}, err
		}
	}
	return t.applyAPIKeyRevoke(&APIKeyRevokeBody{b.ID})
}

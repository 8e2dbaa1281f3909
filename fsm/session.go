package fsm

import (
	"time"

	"github.com/hashicorp/go-memdb"
)

// The bounds of sessions and of the codes that open one.
const (
	// SessionIdle is how long a session lasts after it was last seen, SessionAge how long at most.
	SessionIdle = 12 * time.Hour
	SessionAge  = 7 * 24 * time.Hour
	// SessionSeenStep is the smallest change of Session.SeenAt that is written.
	SessionSeenStep = time.Hour
	// SignInCodeAge is how long a code opens a session.
	SignInCodeAge = 10 * time.Minute
	// MaxSessions is how many sessions one user has, and how many codes. The one that ends first
	// makes room for another.
	MaxSessions = 10
	// collectSessions bounds how many rows that have ended one command removes.
	collectSessions = 1000
)

// Session is a browser that acts for a user. Its token is in the browser's cookie alone.
type Session struct {
	// Hash is the SHA-256 of the token in hex.
	Hash   string `json:"hash"`
	UserID string `json:"user_id"`
	// KeyID is the API key that the user signed in with. The session ends with it.
	KeyID     int       `json:"key_id"`
	CreatedAt time.Time `json:"created_at"`
	// SeenAt is the last use that was noted, at most SessionSeenStep and a minute late.
	SeenAt time.Time `json:"seen_at"`
}

// End returns the time from which on the session opens nothing, unless it is seen before.
func (s *Session) End() time.Time {
	idle, most := s.SeenAt.Add(SessionIdle), s.CreatedAt.Add(SessionAge)
	if idle.Before(most) {
		return idle
	}
	return most
}

// opens reports whether the session is one of a key and has not ended. A nil session does not.
func (s *Session) opens(key *APIKey, now time.Time) bool {
	return s != nil && s.KeyID == key.ID && now.Before(s.End())
}

// SignInCode opens one session, once. The code itself is stored nowhere.
type SignInCode struct {
	// Hash is the SHA-256 of the code in hex.
	Hash   string `json:"hash"`
	UserID string `json:"user_id"`
	// KeyID is the API key that the code was asked with. The session gets it.
	KeyID int       `json:"key_id"`
	Until time.Time `json:"until"`
}

func sessionTable() *memdb.TableSchema {
	return endingTable(tableSessions, func(s *Session) (hash, user string, end time.Time) {
		return s.Hash, s.UserID, s.End()
	})
}

func signInCodeTable() *memdb.TableSchema {
	return endingTable(tableSignInCodes, func(c *SignInCode) (hash, user string, end time.Time) {
		return c.Hash, c.UserID, c.Until
	})
}

// endingTable is a table of rows that are found by a hash, and by their end: of all users, and of
// one.
func endingTable[T any](name string, of func(*T) (hash, user string, end time.Time)) *memdb.TableSchema {
	return newTable(name,
		newIndex(indexID, func(row *T) []byte {
			hash, _, _ := of(row)
			return []byte(hash)
		}),
		newIndex(indexTime, func(row *T) []byte {
			hash, _, end := of(row)
			return append(appendTime(nil, end), hash...)
		}),
		newIndex(indexUser, func(row *T) []byte {
			hash, user, end := of(row)
			return append(appendTime(prefixOf(user), end), hash...)
		}))
}

// Session finds a session by its hash, nil for none. It may have ended.
func (v *View) Session(hash string) *Session {
	return first[Session](v.txn, tableSessions, indexID, []byte(hash))
}

// Sessions lists a user's sessions, the one that ends first before the others.
func (v *View) Sessions(userID string) []*Session {
	return collect(withPrefix[Session](v.txn, tableSessions, indexUser, prefixOf(userID)))
}

// SignInCode finds a code by its hash, nil for none. It may have expired.
func (v *View) SignInCode(hash string) *SignInCode {
	return first[SignInCode](v.txn, tableSignInCodes, indexID, []byte(hash))
}

// GoodSession returns the key of a session that may be used at a time, nil for one that may not.
func (v *View) GoodSession(s *Session, now time.Time) *APIKey {
	if s == nil || !now.Before(s.End()) {
		return nil
	}
	return v.signsIn(s.KeyID, s.UserID, now)
}

// GoodSignInCode is GoodSession for a code.
func (v *View) GoodSignInCode(c *SignInCode, now time.Time) *APIKey {
	if c == nil || !now.Before(c.Until) {
		return nil
	}
	return v.signsIn(c.KeyID, c.UserID, now)
}

// signsIn returns a user's key if it may be used, else nil.
func (v *View) signsIn(id int, userID string, now time.Time) *APIKey {
	key := first[APIKey](v.txn, tableAPIKeys, indexID, intKey(id))
	if key == nil || key.UserID != userID || !v.GoodKey(key, now) {
		return nil
	}
	return key
}

// endSession removes a session. Every node ends what is open with it.
func (t *transaction) endSession(s *Session) {
	drop(t, tableSessions, s)
	t.changed()
	t.keys = t.index
}

// endSessions removes the sessions and codes of one key of a user, with 0 of all of the user's
// keys.
func (t *transaction) endSessions(user string, keyID int) {
	for _, s := range collect(withPrefix[Session](t.txn, tableSessions, indexUser, prefixOf(user))) {
		if keyID == 0 || s.KeyID == keyID {
			t.endSession(s)
		}
	}
	for _, c := range collect(withPrefix[SignInCode](t.txn, tableSignInCodes, indexUser, prefixOf(user))) {
		if keyID == 0 || c.KeyID == keyID {
			drop(t, tableSignInCodes, c)
		}
	}
	for _, d := range collect(withPrefix[Device](t.txn, tableDevices, indexUser, prefixOf(user))) {
		if keyID == 0 || d.KeyID == keyID {
			drop(t, tableDevices, d)
		}
	}
}

// endAllSessions removes every session and code, for a new history: one may have ended since.
func (t *transaction) endAllSessions() {
	for _, s := range collect(withPrefix[Session](t.txn, tableSessions, indexID, nil)) {
		t.endSession(s)
	}
	dropAll[SignInCode](t, tableSignInCodes, indexID, nil)
	dropAll[Device](t, tableDevices, indexID, nil)
}

// makeRoom removes the rows that have ended, and of a user those that end first, so that one more
// has its place.
func makeRoom[T any](t *transaction, table, user string, end func(*T) time.Time, remove func(*T)) {
	var gone []*T
	for row := range withPrefix[T](t.txn, table, indexTime, nil) {
		if t.now.Before(end(row)) || len(gone) == collectSessions {
			break
		}
		gone = append(gone, row)
	}
	for _, row := range gone {
		remove(row)
	}
	mine := collect(withPrefix[T](t.txn, table, indexUser, prefixOf(user)))
	for _, row := range mine[:max(0, len(mine)-MaxSessions+1)] {
		remove(row)
	}
}

package fsm

import (
	"time"

	"pgregory.net/rapid"
)

// genToken returns the hash of a session's token or of a code.
func genToken() *rapid.Generator[string] { return oneOf(sha("x1"), sha("x2"), sha("x3")) }

// genSessionBody is genBody for sessions.
func genSessionBody(t *rapid.T, c CommandType) (string, Body) {
	user, hash := genUser().Draw(t, "who signs in"), genToken().Draw(t, "token")
	key := rapid.IntRange(0, 4).Draw(t, "key")
	switch c {
	case SessionCreate:
		return user, &SessionCreateBody{Hash: hash, KeyID: key}
	case SessionOffer:
		return user, &SessionOfferBody{Hash: hash, KeyID: key}
	case SessionRedeem:
		return "", &SessionRedeemBody{Code: genToken().Draw(t, "code"), Hash: hash}
	case SessionEnd:
		return user, &SessionEndBody{Hash: hash}
	}
	at := testEpoch.Add(time.Duration(rapid.IntRange(-1, 30).Draw(t, "hours")) * time.Hour)
	return "", &SessionSeenBody{Uses: []SessionUse{{Hash: hash, At: at}}}
}

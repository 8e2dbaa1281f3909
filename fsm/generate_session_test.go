package fsm

import (
	"time"

	"pgregory.net/rapid"
)

// genToken returns the hash of a session's token or of a code.
func genToken() *rapid.Generator[string] { return oneOf(sha("x1"), sha("x2"), sha("x3")) }

// genDeviceBody is genBody for the requests of devices.
func genDeviceBody(t *rapid.T, c CommandType) (string, Body) {
	hash, code := genToken().Draw(t, "device"), genToken().Draw(t, "user code")
	switch c {
	case DeviceAsk:
		return "", &DeviceAskBody{Hash: hash, UserCode: code, Name: "terminal", Address: "10.0.0.1"}
	case DeviceAllow:
		key := rapid.IntRange(0, 4).Draw(t, "key")
		return genUser().Draw(t, "who allows"), &DeviceAllowBody{UserCode: code, KeyID: key}
	}
	lookup := oneOf("k1", "k2", "k3", "k4").Draw(t, "device's lookup")
	return "", &DeviceRedeemBody{Hash: hash, Lookup: lookup, KeyHash: sha(lookup)}
}

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

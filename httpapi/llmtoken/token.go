// Package llmtoken makes and checks the tokens with which conversations use the model gateway. A
// token is good for one conversation and for the gateway alone. It is derived from the sandbox's
// own key, so every node can make and check it and the state has nothing of it.
package llmtoken

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"

	"bivouac.dev/bivouac/fsm"
)

// prefix tells a token from other credentials.
const prefix = "bvllm"

// purpose separates the tokens' key from what else is derived from a sandbox's key.
const purpose = "bivouac model gateway token v1"

// macLen is the length of a token's MAC, in bytes.
const macLen = sha256.Size

// Claim is what a token says, checked or not.
type Claim struct {
	Sandbox, Conversation string
	mac                   []byte
}

// New returns the token of a conversation in a sandbox. key is the sandbox's own key. The token is
// good until the sandbox is paused, deleted or gets another key: each is another generation of the
// row or another key.
func New(key string, row *fsm.Sandbox, conversation string) string {
	sum := mac(key, row, conversation)
	return strings.Join([]string{prefix, row.ID, conversation, base64.RawURLEncoding.EncodeToString(sum)}, ".")
}

// Parse reads a token without checking it; false for what can't be one.
func Parse(token string) (Claim, bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 4 || parts[0] != prefix || parts[1] == "" || parts[2] == "" || len(parts[3]) > 2*macLen {
		return Claim{}, false
	}
	sum, err := base64.RawURLEncoding.DecodeString(parts[3])
	return Claim{Sandbox: parts[1], Conversation: parts[2], mac: sum}, err == nil && len(sum) == macLen
}

// Valid reports whether the claim's token was made with this key for the present start of the
// sandbox. It takes the same time for every claim.
func (c Claim) Valid(key string, row *fsm.Sandbox) bool {
	return hmac.Equal(mac(key, row, c.Conversation), c.mac) && key != "" && row.ID == c.Sandbox &&
		row.Desired == fsm.DesiredRunning
}

// mac authenticates a conversation at one generation of its sandbox.
func mac(key string, row *fsm.Sandbox, conversation string) []byte {
	derived, err := hkdf.Key(sha256.New, []byte(key), nil, purpose, sha256.Size)
	if err != nil {
		panic("deriving a key of constant length: " + err.Error())
	}
	m := hmac.New(sha256.New, derived)
	// The lengths keep the boundary between the texts.
	m.Write(binary.BigEndian.AppendUint64(nil, row.Generation))
	for _, text := range []string{row.ID, row.UserID, conversation} {
		m.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
		m.Write([]byte(text))
	}
	return m.Sum(nil)
}

package fsm

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// maxProof bounds a proof, in bytes. It is as long as the key.
const maxProof = 4 * sha256.Size

// OperatorProof shows that the caller has a key, for one message: the key, masked with what follows
// from the key's hash and the message (as in SCRAM, RFC 5802). Who has the hash can check it. Who
// does not have the hash learns nothing of the key, and can't use the proof for another message.
func OperatorProof(key string, message []byte) []byte {
	if key == "" || len(key) > maxProof {
		return nil
	}
	sum := sha256.Sum256([]byte(key))
	return masked([]byte(key), hex.EncodeToString(sum[:]), message)
}

// masked applies the mask to a key or to a proof. It is its own inverse.
func masked(text []byte, hash string, message []byte) []byte {
	digest := sha256.Sum256(message)
	out := make([]byte, 0, len(text))
	for block := byte(0); len(out) < len(text); block++ {
		mac := hmac.New(sha256.New, []byte(hash))
		mac.Write([]byte("bivouac operator proof v1\n"))
		mac.Write(append(digest[:], block))
		mask := mac.Sum(nil)
		rest := text[len(out):]
		rest = rest[:min(len(rest), len(mask))]
		for i, b := range rest {
			out = append(out, b^mask[i])
		}
	}
	return out
}

// OperatorProves reports whether the proof is one of an operator's key for the message, and the key
// is good now.
func (v *View) OperatorProves(lookup string, message, proof []byte, now time.Time) bool {
	key := v.APIKeyByLookup(lookup)
	if key == nil || !v.operates(key, now) || len(proof) == 0 || len(proof) > maxProof {
		return false
	}
	sum := sha256.Sum256(masked(proof, key.Hash, message))
	return hmac.Equal([]byte(hex.EncodeToString(sum[:])), []byte(key.Hash))
}

// AnyOperatorKey reports whether the cluster has an operator's key that may be used. Before it has
// one, the certificate of a node is enough for what else needs such a key.
func (v *View) AnyOperatorKey(now time.Time) bool {
	for k := range withPrefix[APIKey](v.txn, tableAPIKeys, indexID, nil) {
		if v.operates(k, now) {
			return true
		}
	}
	return false
}

// operates reports whether a key is an operator's and may be used.
func (v *View) operates(key *APIKey, now time.Time) bool {
	return key.IsOperator() && v.Good(key.UserID, Credential{Lookup: key.Lookup}, now)
}

// unauthorised returns the error for an operator's command with the key of somebody else, or nil.
// The leader's own commands have none, and the leader takes no such command of another node.
func (t *transaction) unauthorised(cmd Command) *Error {
	if !t.meta.active(VersionAccess) || !cmd.Type.OfOperator() || cmd.Credential.IsZero() {
		return nil
	}
	key := first[APIKey](t.txn, tableAPIKeys, indexLookup, []byte(cmd.Credential.Lookup))
	if key != nil && !cmd.Credential.ofSession() && t.view().operates(key, t.now) {
		return nil
	}
	return Errorf(CodeForbidden, "%s needs an operator's key", cmd.Type)
}

package agent

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
)

// ProofPath is the route at which the built-in server proves that it has a key, and needs none
// (PROTOCOL.md, "Proof").
const ProofPath = "/proof"

// proofNonce is the length of a nonce, in bytes.
const proofNonce = 32

// ProofBody is the answer at ProofPath: one proof for each key of the server.
type ProofBody struct {
	Proofs []string `json:"proofs"`
}

// ProofOf returns the proof of a key for a nonce, in hex: an HMAC that shows the key to nobody. ok is
// false for a text that is no nonce.
func ProofOf(key, nonce string) (proof string, ok bool) {
	raw, err := hex.DecodeString(nonce)
	if err != nil || len(raw) != proofNonce {
		return "", false
	}
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte("bivouac sandbox proof v1\n"))
	mac.Write(raw)
	return hex.EncodeToString(mac.Sum(nil)), true
}

// challenge asks the server to prove that it has the key, without showing it. known is false for a
// server without the route, as upstream's is. A wrong proof is ErrNotOurs.
func (c *Client) challenge(ctx context.Context, baseURL, key string) (known bool, err error) {
	var raw [proofNonce]byte
	_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
	nonce := hex.EncodeToString(raw[:])
	var got ProofBody
	r := request{op: "challenge", method: http.MethodGet, url: baseURL + ProofPath + "?nonce=" + nonce}
	err = c.call(ctx, c.cfg.ProbeTimeout, r, &got)
	switch {
	case errors.Is(err, ErrUnavailable), errors.Is(err, ErrUnreachable), ctx.Err() != nil:
		return true, err
	case err != nil, got.Proofs == nil:
		// Another program answers: upstream's with 404, or with a page.
		return false, nil //nolint:nilerr // the server does not know the route
	}
	want, _ := ProofOf(key, nonce)
	for _, one := range got.Proofs {
		if hmac.Equal([]byte(one), []byte(want)) {
			return true, nil
		}
	}
	return true, &Error{Op: r.op, Kind: ErrNotOurs, Detail: "the server does not have the sandbox's key"}
}

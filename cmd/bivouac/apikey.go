package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"time"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/fsm"
)

// apiKey is a key that was just made. The value is shown once and kept
// nowhere but in its owner's hands.
type apiKey struct {
	value, lookup, hash string
}

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// newAPIKey makes a key "bvk_<12 base62>_<43 base62>": 256 bits that nobody
// can guess, behind 12 characters by which it is found.
func newAPIKey() (apiKey, error) {
	lookup, err := randomBase62(12)
	if err != nil {
		return apiKey{}, err
	}
	secret, err := randomBase62(43)
	if err != nil {
		return apiKey{}, err
	}
	value := "bvk_" + lookup + "_" + secret
	sum := sha256.Sum256([]byte(value))
	return apiKey{value: value, lookup: lookup, hash: hex.EncodeToString(sum[:])}, nil
}

func randomBase62(n int) (string, error) {
	b := make([]byte, n)
	for i := range b {
		d, err := rand.Int(rand.Reader, big.NewInt(int64(len(base62))))
		if err != nil {
			return "", fmt.Errorf("making a key: %w", err)
		}
		b[i] = base62[d.Int64()]
	}
	return string(b), nil
}

// bootstrapCommand is the command that issues the first key of a cluster.
func bootstrapCommand(key apiKey, user, name string) fsm.Command {
	return fsm.NewCommand(uuid.NewString(), time.Now(), "", &fsm.APIKeyCreateBody{
		Lookup: key.lookup, Hash: key.hash, Name: name, UserID: user, Operator: true, Bootstrap: true,
	})
}

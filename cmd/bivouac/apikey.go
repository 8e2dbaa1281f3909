package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"strings"

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
	return parseAPIKey("bvk_" + lookup + "_" + secret)
}

// parseAPIKey takes a key apart. Its error does not show the key.
func parseAPIKey(value string) (apiKey, error) {
	parts := strings.Split(value, "_")
	if len(parts) != 3 || parts[0] != "bvk" || len(parts[1]) != 12 || len(parts[2]) != 43 {
		return apiKey{}, errors.New("this is not an API key of Bivouac")
	}
	sum := sha256.Sum256([]byte(value))
	return apiKey{value: value, lookup: parts[1], hash: hex.EncodeToString(sum[:])}, nil
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

// bootstrapBody is the body of the command that issues the first key of a
// cluster, an operator's.
func bootstrapBody(key apiKey, user, name string) *fsm.APIKeyCreateBody {
	return &fsm.APIKeyCreateBody{
		Lookup: key.lookup, Hash: key.hash, Name: name, UserID: user, Operator: true, Bootstrap: true,
	}
}

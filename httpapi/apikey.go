package httpapi

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
)

// The parts of an API key, "bvk_<lookup>_<secret>".
const (
	keyPrefix = "bvk_"
	lookupLen = 12
	secretLen = 43
	keyLen    = len(keyPrefix) + lookupLen + 1 + secretLen
)

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// APIKey is an API key taken apart. Value is the key itself, which only its owner
// keeps; Lookup and Hash are what the cluster stores of it.
type APIKey struct {
	Value, Lookup, Hash string
}

// NewAPIKey makes a key out of random (256 bits of it in the secret part). Its
// errors are those of random.
func NewAPIKey(random io.Reader) (APIKey, error) {
	lookup, err := base62Text(random, lookupLen)
	if err != nil {
		return APIKey{}, fmt.Errorf("making a key: %w", err)
	}
	secret, err := base62Text(random, secretLen)
	if err != nil {
		return APIKey{}, fmt.Errorf("making a key: %w", err)
	}
	value := keyPrefix + lookup + "_" + secret
	return APIKey{Value: value, Lookup: lookup, Hash: hashKey(value)}, nil
}

// ParseAPIKey takes a key apart. Its error does not show the key.
func ParseAPIKey(value string) (APIKey, error) {
	lookup := lookupOf(value)
	if lookup == "" {
		return APIKey{}, errors.New("this is not an API key of Bivouac")
	}
	return APIKey{Value: value, Lookup: lookup, Hash: hashKey(value)}, nil
}

// hashKey is what is stored of a key.
func hashKey(value string) string {
	sum := sha256.Sum256([]byte(value))
	return hex.EncodeToString(sum[:])
}

// lookupOf gives the part of a key by which it is found, "" when the text is
// no key.
func lookupOf(value string) string {
	if len(value) != keyLen || !strings.HasPrefix(value, keyPrefix) || value[len(keyPrefix)+lookupLen] != '_' {
		return ""
	}
	lookup := value[len(keyPrefix) : len(keyPrefix)+lookupLen]
	for i := range len(lookup) {
		if strings.IndexByte(base62, lookup[i]) < 0 {
			return ""
		}
	}
	return lookup
}

// base62Text draws n letters and digits, all equally likely.
func base62Text(random io.Reader, n int) (string, error) {
	out := make([]byte, 0, n)
	var one [64]byte
	for len(out) < n {
		if _, err := io.ReadFull(random, one[:]); err != nil {
			return "", err
		}
		for _, b := range one {
			// 248 = 4 * 62: what is above would make some letters likelier.
			if b < 248 && len(out) < n {
				out = append(out, base62[b%62])
			}
		}
	}
	return string(out), nil
}

// randomBase62 is base62Text from the system's randomness, which does not fail.
func randomBase62(n int) string {
	s, err := base62Text(rand.Reader, n)
	if err != nil {
		panic("reading randomness: " + err.Error())
	}
	return s
}

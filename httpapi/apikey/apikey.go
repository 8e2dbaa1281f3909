package apikey

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// The format of an API key: "bvk_<lookup>_<secret>". Lengths are in characters.
const (
	Prefix    = "bvk_"
	LookupLen = 12
	SecretLen = 43
	keyLen    = len(Prefix) + LookupLen + 1 + SecretLen
)

// Lengths of a new sandbox's id and key: 16 and 32 random bytes in base62.
const (
	SandboxIDLen  = 22
	SandboxKeyLen = 43
)

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// Key is a parsed API key. Value is the key itself, which only its owner keeps. The cluster stores
// Lookup and Hash.
type Key struct {
	Value, Lookup, Hash string
}

// New creates a key from random, which should be crypto/rand. The secret part has 256 bits. It
// fails only if random does.
func New(random io.Reader) (Key, error) {
	lookup, err := base62Text(random, LookupLen)
	if err != nil {
		return Key{}, fmt.Errorf("making a key: %w", err)
	}
	secret, err := base62Text(random, SecretLen)
	if err != nil {
		return Key{}, fmt.Errorf("making a key: %w", err)
	}
	value := Prefix + lookup + "_" + secret
	return Key{Value: value, Lookup: lookup, Hash: Hash(value)}, nil
}

// Parse parses a key. Its error does not contain the key.
func Parse(value string) (Key, error) {
	lookup := LookupOf(value)
	if lookup == "" {
		return Key{}, errors.New("this is not an API key of Bivouac")
	}
	return Key{Value: value, Lookup: lookup, Hash: Hash(value)}, nil
}

// Hash is the stored form of a key: the hex SHA-256.
func Hash(value string) string {
	sum := sha256.Sum256([]byte(value))
	return hex.EncodeToString(sum[:])
}

// LookupOf returns the part of a key that it is looked up by, "" if the text is not a key.
func LookupOf(value string) string {
	if len(value) != keyLen || !strings.HasPrefix(value, Prefix) || value[len(Prefix)+LookupLen] != '_' {
		return ""
	}
	lookup := value[len(Prefix) : len(Prefix)+LookupLen]
	for i := range len(lookup) {
		if strings.IndexByte(base62, lookup[i]) < 0 {
			return ""
		}
	}
	return lookup
}

// base62Text returns n letters and digits, uniformly distributed.
func base62Text(random io.Reader, n int) (string, error) {
	out := make([]byte, 0, n)
	var one [64]byte
	for len(out) < n {
		if _, err := io.ReadFull(random, one[:]); err != nil {
			return "", err
		}
		for _, b := range one {
			// 248 = 4 * 62: larger bytes would make some characters more likely.
			if b < 248 && len(out) < n {
				out = append(out, base62[b%62])
			}
		}
	}
	return string(out), nil
}

// Random returns n letters and digits from crypto/rand, which does not fail.
func Random(n int) string {
	s, err := base62Text(rand.Reader, n)
	if err != nil {
		panic("reading randomness: " + err.Error())
	}
	return s
}

// Bearer returns the bearer token. The bool reports whether the request has an Authorization header
// of that scheme, even an empty one.
func Bearer(r *http.Request) (string, bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return strings.TrimSpace(token), true
}

// CredentialOf returns the credential that commands and views check for an API key.
func CredentialOf(key *fsm.APIKey) fsm.Credential { return fsm.Credential{Lookup: key.Lookup} }

// Matches reports whether value is the key and the key is valid now. Whether the key's user may act
// is the caller's question (fsm.View.Good).
func Matches(key *fsm.APIKey, value string) bool {
	return Is(key, value) && key.Valid(time.Now())
}

// noHash stands for the hash of a key that does not exist. No text has this hash.
const noHash = "0000000000000000000000000000000000000000000000000000000000000000"

// Is reports whether value is the key, valid or not. It compares in constant time and does the same
// work for a nil key.
func Is(key *fsm.APIKey, value string) bool {
	stored := noHash
	if key != nil {
		stored = key.Hash
	}
	same := subtle.ConstantTimeCompare([]byte(Hash(value)), []byte(stored)) == 1
	return same && key != nil
}

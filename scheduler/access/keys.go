package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"math/big"

	"bivouac.dev/bivouac/fsm"
)

// Writer stores a new version of an entry and returns its reference.
type Writer interface {
	Write(ctx context.Context, path string, data map[string]string) (fsm.SecretRef, error)
}

// WriteKeys draws the two keys of a sandbox and stores them. It returns the hash of the session
// key.
func WriteKeys(ctx context.Context, secrets Writer, id string) (ref fsm.SecretRef, hash string, err error) {
	key, secret := Base62(32), Base62(32)
	ref, err = secrets.Write(ctx, fsm.SandboxKeyPath(id),
		map[string]string{fsm.MemberKey: key, fsm.MemberSecretKey: secret})
	return ref, Hash(key), err
}

// Hash returns a text's SHA-256 in hex.
func Hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

const base62Digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// Base62 returns n random bytes as digits and letters.
func Base62(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	x, base, rem := new(big.Int).SetBytes(b), big.NewInt(62), new(big.Int)
	var out []byte
	for x.Sign() > 0 {
		x.DivMod(x, base, rem)
		out = append(out, base62Digits[rem.Int64()])
	}
	if len(out) == 0 {
		return "0"
	}
	return string(out)
}

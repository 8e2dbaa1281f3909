package secrets

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
)

// errDamaged: a record can't be opened although the key is right.
var errDamaged = errors.New("the sealed record is damaged")

// keyBytes is the length of an AES-256 key.
const keyBytes = 32

// sealer seals with AES-256-GCM. A sealed text is nonce, ciphertext, tag. The nonce is random, 96
// bits, which is safe for about 2^32 texts under one key.
type sealer struct{ aead cipher.AEAD }

// loadSealer reads the key file: 64 hex digits and a line end. If fresh is set it creates a missing
// file; an existing store without its key is an error.
func loadSealer(path string, fresh bool) (*sealer, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if !fresh {
			return nil, fmt.Errorf("%s is missing; without it the secrets can't be opened", filepath.Base(path))
		}
		raw, err = makeKey(path)
	}
	if err != nil {
		return nil, err
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(raw)))
	if err != nil || len(key) != keyBytes {
		return nil, fmt.Errorf("%s does not hold a key (%d hex digits)", filepath.Base(path), 2*keyBytes)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	return &sealer{aead}, nil
}

// makeKey writes a new key file atomically and durably.
func makeKey(path string) ([]byte, error) {
	key := make([]byte, keyBytes)
	if _, err := rand.Read(key); err != nil {
		return nil, err
	}
	text := []byte(hex.EncodeToString(key) + "\n")
	dir := filepath.Dir(path)
	if err := renameio.WriteFile(path, text, 0o600, renameio.WithTempDir(dir),
		renameio.WithStaticPermissions(0o600)); err != nil {
		return nil, err
	}
	return text, syncDir(dir)
}

// syncDir makes a rename in dir last over a power failure, which renameio leaves to its caller.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// seal encrypts plain and authenticates where, the place that it belongs to.
func (s *sealer) seal(plain, where []byte) []byte {
	return s.aead.Seal(nil, nil, plain, where)
}

// open decrypts what was sealed for where. Otherwise it returns errDamaged.
func (s *sealer) open(sealed, where []byte) ([]byte, error) {
	plain, err := s.aead.Open(nil, nil, sealed, where)
	if err != nil {
		return nil, errDamaged
	}
	return plain, nil
}

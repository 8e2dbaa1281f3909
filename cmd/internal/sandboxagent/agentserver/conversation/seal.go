package conversation

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
)

// sealer encrypts a conversation's create request for the disk: AES-256-GCM with a key derived from
// OH_SECRET_KEY, bound to the conversation's id. A nil sealer stores nothing.
type sealer struct {
	aead cipher.AEAD
}

const sealInfo = "bivouac sandbox-agent conversation request v1"

func newSealer(secretKey string) *sealer {
	if secretKey == "" {
		return nil
	}
	key, err := hkdf.Key(sha256.New, []byte(secretKey), nil, sealInfo, 32)
	if err != nil {
		panic(err) // only for lengths that SHA-256 does not support
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // only for key sizes that AES does not support
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // only for other block sizes than AES's
	}
	return &sealer{aead: aead}
}

// seal returns nonce and ciphertext.
func (s *sealer) seal(id string, plain []byte) []byte {
	nonce := make([]byte, s.aead.NonceSize())
	_, _ = rand.Read(nonce) // never fails (crypto/rand)
	return s.aead.Seal(nonce, nonce, plain, []byte(id))
}

// open decrypts seal's result for the same id and secret key.
func (s *sealer) open(id string, sealed []byte) ([]byte, error) {
	n := s.aead.NonceSize()
	if len(sealed) < n {
		return nil, errors.New("sealed request is too short")
	}
	plain, err := s.aead.Open(nil, sealed[:n], sealed[n:], []byte(id))
	if err != nil {
		return nil, fmt.Errorf("opening sealed request: %w", err)
	}
	return plain, nil
}

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
)

// errDamaged: a record does not open although the key is right.
var errDamaged = errors.New("the sealed record is damaged")

// keyBytes is the length of an AES-256 key.
const keyBytes = 32

// sealer seals with AES-256-GCM. A sealed text is nonce, ciphertext, tag; the
// nonce is random (96 bits: safe for some 2^32 texts under one key).
type sealer struct{ aead cipher.AEAD }

// loadSealer reads the key file, 64 hex digits and a line end. When fresh it
// makes the file if it is missing; an old store without its key is an error.
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

// makeKey writes a new key file that is whole and on disk, or not there.
func makeKey(path string) ([]byte, error) {
	key := make([]byte, keyBytes)
	if _, err := rand.Read(key); err != nil {
		return nil, err
	}
	text := []byte(hex.EncodeToString(key) + "\n")
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return nil, err
	}
	return text, syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// seal binds plain to where it belongs.
func (s *sealer) seal(plain, where []byte) []byte {
	return s.aead.Seal(nil, nil, plain, where)
}

// open gives back what was sealed for that place; otherwise errDamaged.
func (s *sealer) open(sealed, where []byte) ([]byte, error) {
	plain, err := s.aead.Open(nil, nil, sealed, where)
	if err != nil {
		return nil, errDamaged
	}
	return plain, nil
}

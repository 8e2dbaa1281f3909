// Package eventseal seals the bodies of events with a key for each user, which the secret store has.
// Logs, backups and disks hold what it seals; destroying the key purges all of them.
package eventseal

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/request"
)

// keyBytes is the size of a key. form is the first byte of a sealed body: AES-256-GCM with a random
// nonce in front.
const (
	keyBytes = 32
	form     = 0x01
)

// Key seals and opens the events of one user.
type Key struct{ aead cipher.AEAD }

// newKey makes the key of its bytes.
func newKey(raw []byte) (Key, error) {
	if len(raw) != keyBytes {
		return Key{}, errors.New("the key of a user's events has another length")
	}
	block, err := aes.NewCipher(raw)
	if err != nil {
		return Key{}, err
	}
	aead, err := cipher.NewGCM(block)
	return Key{aead}, err
}

// Seal returns the stored form of an event of a conversation.
func (k Key) Seal(conversationID string, head fsm.EventHead, text []byte) []byte {
	body := make([]byte, 1+k.aead.NonceSize(), 1+k.aead.NonceSize()+len(text)+k.aead.Overhead())
	body[0] = form
	nonce := body[1:]
	_, _ = rand.Read(nonce) // it never fails
	return fsm.AppendEvent(nil, head, k.aead.Seal(body, nonce, text, about(conversationID, head)))
}

// errSealed: a body was sealed otherwise, with another key, or for another event.
var errSealed = errors.New("the body of an event can't be opened: its key is another, or it is damaged")

// Open returns the head and the text of a stored event of a conversation.
func (k Key) Open(conversationID string, stored []byte) (fsm.EventHead, []byte, error) {
	head, body, err := fsm.CutEvent(stored)
	if err != nil {
		return head, nil, err
	}
	size := k.aead.NonceSize()
	if len(body) < 1+size || body[0] != form {
		return head, nil, errSealed
	}
	text, err := k.aead.Open(nil, body[1:1+size], body[1+size:], about(conversationID, head))
	if err != nil {
		return head, nil, errSealed
	}
	return head, text, nil
}

// about binds a body to its place.
func about(conversationID string, head fsm.EventHead) []byte {
	return fsm.AppendEvent(nil, head, []byte(conversationID))
}

// Secrets is the secret store. A version that no longer exists is fsm.CodeNotFound.
type Secrets interface {
	Write(ctx context.Context, path string, data map[string]string) (fsm.SecretRef, error)
	Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error)
}

// Of returns the key that a user's row names. A key that was destroyed is fsm.CodeNotFound.
func Of(ctx context.Context, secrets Secrets, ref fsm.SecretRef) (Key, error) {
	entry, err := secrets.Read(ctx, ref)
	if err != nil {
		return Key{}, err
	}
	raw, err := base64.StdEncoding.DecodeString(entry[fsm.MemberEventKey])
	if err != nil {
		return Key{}, fmt.Errorf("the entry %s is no key of events", ref.Path)
	}
	return newKey(raw)
}

// Ensure returns where the key of a user's events is. It makes the first one, which counts when propose has
// recorded it.
func Ensure(
	ctx context.Context, secrets Secrets, u *fsm.User, propose func(fsm.Body) (fsm.Result, error),
) (fsm.SecretRef, error) {
	if !u.EventKey.IsZero() {
		return u.EventKey, nil
	}
	raw := make([]byte, keyBytes)
	_, _ = rand.Read(raw) // it never fails
	made, err := secrets.Write(ctx, fsm.EventKeyPath(u.ID), map[string]string{
		fsm.MemberEventKey: base64.StdEncoding.EncodeToString(raw),
	})
	if err != nil {
		return made, request.SecretFailure(err)
	}
	res, err := propose(&fsm.EventsKeyBody{Key: made})
	if err != nil {
		return made, err
	}
	return res.User.EventKey, nil // another node may have been faster
}

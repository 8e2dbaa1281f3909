package copies

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"

	"filippo.io/age"
)

// Keys are the keys that copies are encrypted with. They are not in the store.
type Keys interface {
	// Recipient returns what new copies are encrypted for, nil while the cluster encrypts none.
	Recipient(ctx context.Context) (age.Recipient, error)
	// Identities returns every key that a copy may be encrypted with.
	Identities(ctx context.Context) ([]age.Identity, error)
}

// sealedSuffix ends the names of encrypted objects of data. Content can't tell: it may be any.
const sealedSuffix = ".age"

// seal encrypts what is written, unless to is nil. Closing it leaves out open.
func seal(to age.Recipient, out io.Writer) (io.WriteCloser, error) {
	if to == nil {
		return unsealed{out}, nil
	}
	return age.Encrypt(out, to)
}

// unsealed is a writer without encryption.
type unsealed struct{ io.Writer }

// Close implements io.Closer.
func (unsealed) Close() error { return nil }

// identities returns the keys. None is an error.
func (s *Store) identities(ctx context.Context) ([]age.Identity, error) {
	if s.keys == nil {
		return nil, damaged("it is encrypted, and this node has no keys of copies")
	}
	ids, err := s.keys.Identities(ctx)
	if err == nil && len(ids) == 0 {
		err = damaged("it is encrypted, and the secret store has no keys of copies")
	}
	return ids, err
}

// opened decrypts what seal has encrypted. The checksums of the manifest, and that of the manifest in
// the state, say whose content it is.
func opened(in io.Reader, ids []age.Identity) (io.Reader, error) {
	r, err := age.Decrypt(in, ids...)
	var none *age.NoIdentityMatchError
	if errors.As(err, &none) {
		return nil, damaged("none of the %d keys in the secret store opens it", len(ids))
	}
	return r, err
}

// openedManifest decrypts a manifest, if it is encrypted: without that it begins as gzip does.
func (s *Store) openedManifest(ctx context.Context, in io.Reader) (io.Reader, error) {
	b := bufio.NewReader(in)
	if head, _ := b.Peek(2); bytes.Equal(head, []byte{0x1f, 0x8b}) {
		return b, nil
	}
	ids, err := s.identities(ctx)
	if err != nil {
		return nil, err
	}
	return opened(b, ids)
}

// sealed encrypts an object of data.
func sealed(to age.Recipient, data []byte) ([]byte, error) {
	if to == nil {
		return data, nil
	}
	var out bytes.Buffer
	w, err := seal(to, &out)
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = w.Close()
	}
	return out.Bytes(), err
}

package request

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/response"
)

// secretWriters is how many entries one request writes in parallel.
const secretWriters = 8

// SecretWrites are the secrets to store before the request's command refers to them. The zero value
// is empty.
type SecretWrites struct {
	list []secretWrite
}

type secretWrite struct {
	path string
	data map[string]string
	ref  *fsm.SecretRef
	// alone means that the path was made for this request and nothing else uses it.
	alone bool
}

// Add adds an entry to write. It sets ref to the path and a provisional version, so that the
// command can be validated before anything is stored; write sets the real version.
func (w *SecretWrites) Add(path, member, value string, ref *fsm.SecretRef) {
	*ref = fsm.SecretRef{Path: path, Version: 1}
	w.list = append(w.list, secretWrite{path: path, data: map[string]string{member: value}, ref: ref})
}

// write stores every entry and sets the refs. After an error some entries may exist; the collector
// removes them, because no row refers to them.
func (w *SecretWrites) write(ctx context.Context, store Secrets) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(secretWriters)
	for _, one := range w.list {
		group.Go(func() error {
			ref, err := store.Write(ctx, one.path, one.data)
			if err != nil {
				return SecretFailure(err)
			}
			ref.Bytes = one.ref.Bytes
			*one.ref = ref
			return nil
		})
	}
	return group.Wait()
}

func (w *SecretWrites) check() error {
	for i := range w.list {
		if w.list[i].size() > fsm.MaxSecretBytes {
			return fsm.Errorf(fsm.CodeInvalid, "a secret holds more than %d bytes", fsm.MaxSecretBytes)
		}
	}
	return nil
}

// count notes the sizes in the references, which count for the user.
func (w *SecretWrites) count() {
	for i := range w.list {
		w.list[i].ref.Bytes = w.list[i].size()
	}
}

// size returns the bytes of the values.
func (one *secretWrite) size() (n int) {
	for _, v := range one.data {
		n += len(v)
	}
	return n
}

// SecretFailure gives an uncoded error CodeSecretStore, so that it does not count as an internal
// error.
func SecretFailure(err error) error {
	var coded *fsm.Error
	if errors.As(err, &coded) && coded.Code != fsm.CodeInternal {
		return fmt.Errorf("secret store: %w", err)
	}
	return errors.Join(fsm.Errorf(fsm.CodeSecretStore, "secret store"), err)
}

// ReadSecret returns one member of an entry.
func (s *Server) ReadSecret(ctx context.Context, ref fsm.SecretRef, member string) (string, error) {
	data, err := s.ReadEntry(ctx, ref)
	return data[member], err
}

// ReadEntry returns an entry with all its members.
func (s *Server) ReadEntry(ctx context.Context, ref fsm.SecretRef) (map[string]string, error) {
	data, err := s.Secrets.Read(ctx, ref)
	switch {
	case fsm.CodeOf(err) == fsm.CodeNotFound:
		// A row refers to it, so this is not the client's error.
		return nil, ErrSecretGone(ref, err)
	case err != nil:
		return nil, SecretFailure(err)
	}
	return data, nil
}

// ErrSecretGone is the failure of an entry that a row refers to and the store does not have.
func ErrSecretGone(ref fsm.SecretRef, err error) error {
	return &response.HTTPError{
		Status: http.StatusInternalServerError,
		Text: "The secret store has lost a secret that this needs: save it again, " +
			"or have the operator bring the store's data back",
		Cause: fmt.Errorf("secret %s version %d is gone: %w", ref.Path, ref.Version, err),
	}
}

// Alone marks the last entry: its path was made for this request.
func (w *SecretWrites) Alone() { w.list[len(w.list)-1].alone = true }

func (w *SecretWrites) discard(ctx context.Context, store Secrets) error {
	var errs []error
	for _, one := range w.list {
		errs = append(errs, store.Delete(ctx, one.path))
	}
	return errors.Join(errs...)
}

// Also adds a member to the last entry.
func (w *SecretWrites) Also(member, value string) {
	w.list[len(w.list)-1].data[member] = value
}

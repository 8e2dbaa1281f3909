package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/secrets"
)

// secretRetryAfter is the Retry-After of responses while the secret store is sealed or
// unavailable.
const secretRetryAfter = 5 * time.Second

// secretStore adapts a secrets.Store to the types and errors of the other packages, for one
// node. It implements scheduler.Secrets and request.Secrets and stores the node's mark.
type secretStore struct {
	store *secrets.Guard
	// view returns the node's newest view, for births and the cluster's id.
	view func() *fsm.View
	// backups knows which versions backups refer to; nil if no backups are made.
	backups namer
	log     *slog.Logger
}

// namer is implemented by *backup.Runner.
type namer interface {
	Named(ctx context.Context) (func(path string, version int) bool, error)
}

var _ scheduler.Marks = secretStore{}

// newSecretStore wraps a store for one node.
func newSecretStore(store secrets.Store, view func() *fsm.View, log *slog.Logger) secretStore {
	return secretStore{
		store: secrets.NewGuard(store, func() string { return view().ClusterID() }, log),
		view:  view,
		log:   log,
	}
}

// Write stores a new version with the current birth and returns its reference. Below protocol
// version 3 the reference has no creation time, because older nodes would drop it.
func (s secretStore) Write(ctx context.Context, path string, data map[string]string) (fsm.SecretRef, error) {
	birth := s.view().Birth()
	version, err := s.store.Write(ctx, path, data, secrets.Birth(birth))
	if err != nil {
		return fsm.SecretRef{}, secretError(err)
	}
	ref := fsm.SecretRef{Path: path, Version: version.Number}
	if !birth.IsZero() {
		ref.Created = createdText(version.Created)
	}
	return ref, nil
}

// Read returns the data of one version.
func (s secretStore) Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error) {
	return readSecret(ctx, s.store, ref)
}

// Newest returns the number of an entry's newest version, 0 for none.
func (s secretStore) Newest(ctx context.Context, path string) (int, error) {
	newest, err := s.store.Newest(ctx, path)
	return newest, secretError(err)
}

// Delete removes an entry.
func (s secretStore) Delete(ctx context.Context, path string) error {
	return secretError(s.store.Delete(ctx, path))
}

// Undelete restores a version that was deleted as unreferenced.
func (s secretStore) Undelete(ctx context.Context, path string, version int) error {
	return secretError(s.store.Undelete(ctx, path, version))
}

// Collect asks judge about old versions. It does not destroy a version that a backup refers to, because a
// restore would need it, and the store keeps later writes from pushing it out. While the backups can't be
// read that holds for every version.
func (s secretStore) Collect(
	ctx context.Context,
	judge func(scheduler.SecretEntry) scheduler.SecretVerdict,
) (scheduler.SecretsCollected, error) {
	named := s.named(ctx)
	did, err := s.store.Collect(ctx, secrets.Birth(s.view().Birth()), func(e secrets.Entry) secrets.Verdict {
		verdict := judge(scheduler.SecretEntry{
			Ref:   fsm.SecretRef{Path: e.Path, Version: e.Version, Created: createdText(e.Created)},
			Birth: fsm.Birth(e.Birth), DeletedAt: e.DeletedAt, Due: dueOf(e.Due),
		})
		if e.Version > 0 && named(e.Path, e.Version) {
			return verdictOf(verdict) | secrets.Named
		}
		return verdictOf(verdict)
	})
	return scheduler.SecretsCollected(did), secretError(err)
}

// named returns whether backups refer to a version: all versions if that is unknown.
func (s secretStore) named(ctx context.Context) func(path string, version int) bool {
	if s.backups == nil {
		return func(string, int) bool { return false }
	}
	named, err := s.backups.Named(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.log.Warn("no secret is destroyed: what the backups name is not known", "error", err)
		}
		return func(string, int) bool { return true }
	}
	return named
}

// verdictOf translates the scheduler's verdict.
func verdictOf(v scheduler.SecretVerdict) secrets.Verdict {
	//exhaustive:enforce
	switch v {
	case scheduler.SecretKeep:
		return secrets.Keep
	case scheduler.SecretStranger:
		return secrets.Stranger
	case scheduler.SecretUnreferenced:
		return secrets.Unreferenced
	case scheduler.SecretLeave:
	}
	return secrets.Leave
}

// dueOf translates what is due to an entry.
func dueOf(d secrets.Due) scheduler.SecretDue {
	//exhaustive:enforce
	switch d {
	case secrets.DueDelete:
		return scheduler.SecretDueDelete
	case secrets.DueDestroy:
		return scheduler.SecretDueDestroy
	case secrets.DueNothing:
	}
	return scheduler.SecretDueNothing
}

// ReadMark returns the mark in the secret store, whether there is one, and the cas for
// WriteMark.
func (s secretStore) ReadMark(ctx context.Context) (mark fsm.Mark, cas uint64, found bool, err error) {
	read, cas, found, err := s.store.ReadMark(ctx)
	return fsm.Mark(read), cas, found, secretError(err)
}

// WriteMark replaces the mark that was read with cas. It fails with CodeConflict if the mark
// has changed.
func (s secretStore) WriteMark(ctx context.Context, mark fsm.Mark, cas uint64) error {
	return secretError(s.store.WriteMark(ctx, secrets.Mark(mark), cas))
}

// sharedSecrets reads secrets for the shared runner of a development cluster.
type sharedSecrets struct{ store *secrets.Guard }

// Read returns the data of one version.
func (s sharedSecrets) Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error) {
	return readSecret(ctx, s.store, ref)
}

func readSecret(ctx context.Context, store *secrets.Guard, ref fsm.SecretRef) (map[string]string, error) {
	created, err := parseCreated(ref.Created)
	if err != nil {
		return nil, fsm.Errorf(fsm.CodeNotFound,
			"the reference to the secret says that it was written at %.40q, which is no time", ref.Created)
	}
	data, err := store.Read(ctx, ref.Path, ref.Version, created)
	return data, secretError(err)
}

// deniedError says that the secret store denied a call because a permission is missing. It is
// an *fsm.Error and a *scheduler.Denied.
type deniedError struct {
	coded  fsm.Error
	denied scheduler.Denied
}

// Error implements error.
func (e *deniedError) Error() string { return e.coded.Error() }

// Unwrap returns both. The first one's code is the error's code.
func (e *deniedError) Unwrap() []error { return []error{&e.coded, &e.denied} }

// createdText formats the creation time for fsm.SecretRef.
func createdText(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// parseCreated parses createdText's format; "" is the zero time.
func parseCreated(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	return time.Parse(time.RFC3339Nano, text)
}

// secretError translates the errors of package secrets. It drops the text of most causes, which
// may contain foreign data and belongs in the log.
func secretError(err error) error {
	var foreign *secrets.ForeignError
	var denied *secrets.DeniedError
	var reused *secrets.ReusedError
	unavailable := func(words string) error {
		return &fsm.Error{Code: fsm.CodeSecretStore, Message: words, RetryAfter: secretRetryAfter}
	}
	switch {
	case err == nil:
		return nil
	case errors.As(err, &foreign):
		return unavailable(foreign.Error())
	case errors.As(err, &denied):
		return &deniedError{
			coded:  fsm.Error{Code: fsm.CodeSecretStore, Message: denied.Error(), RetryAfter: secretRetryAfter},
			denied: scheduler.Denied{Path: denied.Path, Capability: denied.Capability, Detail: denied.Error()},
		}
	case errors.As(err, &reused):
		return fsm.Errorf(fsm.CodeNotFound, "%s", reused.Error())
	case errors.Is(err, secrets.ErrFull):
		return fsm.Errorf(fsm.CodeConflict, "too many versions of this secret were written: "+
			"remove the secret and save it again; "+
			"if that does not help, wait until no backup names the old ones")
	case errors.Is(err, secrets.ErrConflict):
		return fsm.Errorf(fsm.CodeConflict, "the mark in the secret store was written by another leader")
	case errors.Is(err, secrets.ErrNotFound):
		return fsm.Errorf(fsm.CodeNotFound, "the secret is not in the secret store")
	case errors.Is(err, secrets.ErrInvalid):
		return fsm.Errorf(fsm.CodeInvalid, "the secret is too large or its name can't be stored")
	case errors.Is(err, secrets.ErrUnavailable):
		return unavailable("the secret store is sealed or away; nothing was stored")
	}
	return err
}

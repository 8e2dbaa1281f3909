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

// secretRetryAfter is what a client is told to wait when the secret store is
// sealed or away.
const secretRetryAfter = 5 * time.Second

// secretStore gives a secrets.Store the types and the error vocabulary of the
// other packages: it implements scheduler.Secrets and httpapi.Secrets,
// for one node, and keeps the node's mark there.
type secretStore struct {
	store *secrets.Guard
	// view is the node's newest view; it gives births and the cluster's id.
	view func() *fsm.View
	// backups tells which versions backups name; nil where none are made.
	backups namer
	log     *slog.Logger
}

// namer is a *backup.Runner.
type namer interface {
	Named(ctx context.Context) (func(path string, version int) bool, error)
}

var _ scheduler.Marks = secretStore{}

// newSecretStore guards a store for one node.
func newSecretStore(store secrets.Store, view func() *fsm.View, log *slog.Logger) secretStore {
	return secretStore{store: secrets.NewGuard(store, func() string { return view().ClusterID() }, log), view: view, log: log}
}

// Write stores a new version, with the birth of now, and refers to it. Below
// protocol version 3 the reference says nothing of when it was written: older
// nodes would not keep it.
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

// Read gives one version.
func (s secretStore) Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error) {
	return readSecret(ctx, s.store, ref)
}

// Newest is the number of the newest version of an entry, 0 for none.
func (s secretStore) Newest(ctx context.Context, path string) (int, error) {
	newest, err := s.store.Newest(ctx, path)
	return newest, secretError(err)
}

// Delete removes an entry.
func (s secretStore) Delete(ctx context.Context, path string) error {
	return secretError(s.store.Delete(ctx, path))
}

// Undelete brings a version back that was deleted as unreferenced.
func (s secretStore) Undelete(ctx context.Context, path string, version int) error {
	return secretError(s.store.Undelete(ctx, path, version))
}

// Collect asks judge about what is old. What a backup names is not destroyed,
// and nothing is while the backups can't be read: a restore would want it back.
func (s secretStore) Collect(ctx context.Context, judge func(scheduler.SecretEntry) scheduler.SecretVerdict) (scheduler.SecretsCollected, error) {
	named := s.named(ctx)
	did, err := s.store.Collect(ctx, secrets.Birth(s.view().Birth()), func(e secrets.Entry) secrets.Verdict {
		verdict := judge(scheduler.SecretEntry{
			Ref:   fsm.SecretRef{Path: e.Path, Version: e.Version, Created: createdText(e.Created)},
			Birth: fsm.Birth(e.Birth), DeletedAt: e.DeletedAt, Due: dues[e.Due],
		})
		if verdict == scheduler.SecretUnreferenced && e.Due == secrets.DueDestroy && named(e.Path, e.Version) {
			verdict = scheduler.SecretLeave
		}
		return verdicts[verdict]
	})
	return scheduler.SecretsCollected(did), secretError(err)
}

// named tells which versions backups name: all, when that can't be found out.
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

// verdicts and dues are the same words in the two packages.
var (
	verdicts = map[scheduler.SecretVerdict]secrets.Verdict{
		scheduler.SecretLeave: secrets.Leave, scheduler.SecretKeep: secrets.Keep,
		scheduler.SecretStranger: secrets.Stranger, scheduler.SecretUnreferenced: secrets.Unreferenced,
	}
	dues = map[secrets.Due]scheduler.SecretDue{
		secrets.DueNothing: scheduler.SecretDueNothing, secrets.DueDelete: scheduler.SecretDueDelete,
		secrets.DueDestroy: scheduler.SecretDueDestroy,
	}
)

// ReadMark gives the mark in the secret store, whether there is one, and what
// WriteMark needs to replace it.
func (s secretStore) ReadMark(ctx context.Context) (mark fsm.Mark, cas uint64, found bool, err error) {
	read, cas, found, err := s.store.ReadMark(ctx)
	return fsm.Mark(read), cas, found, secretError(err)
}

// WriteMark replaces the mark that was read with cas; CodeConflict when it is
// another by now.
func (s secretStore) WriteMark(ctx context.Context, mark fsm.Mark, cas uint64) error {
	return secretError(s.store.WriteMark(ctx, secrets.Mark(mark), cas))
}

// sharedSecrets reads secrets for what the nodes of a development cluster share.
type sharedSecrets struct{ store *secrets.Guard }

// Read gives one version.
func (s sharedSecrets) Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error) {
	return readSecret(ctx, s.store, ref)
}

func readSecret(ctx context.Context, store *secrets.Guard, ref fsm.SecretRef) (map[string]string, error) {
	created, err := parseCreated(ref.Created)
	if err != nil {
		return nil, fsm.Errorf(fsm.CodeNotFound, "the reference to the secret says that it was written at %.40q, which is no time", ref.Created)
	}
	data, err := store.Read(ctx, ref.Path, ref.Version, created)
	return data, secretError(err)
}

// deniedError says that the secret store refuses a call for want of a
// permission: an *fsm.Error to most, a *scheduler.Denied to who asks for it.
type deniedError struct {
	coded  fsm.Error
	denied scheduler.Denied
}

// Error implements error.
func (e *deniedError) Error() string { return e.coded.Error() }

// Unwrap gives both; the code that callers see is the first one's.
func (e *deniedError) Unwrap() []error { return []error{&e.coded, &e.denied} }

// createdText is the time of writing as fsm.SecretRef keeps it.
func createdText(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// parseCreated is its reverse; "" is the zero time.
func parseCreated(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	return time.Parse(time.RFC3339Nano, text)
}

// secretError translates the errors of package secrets. The text of most causes
// stays behind: it is for the log, and what it holds is not ours.
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

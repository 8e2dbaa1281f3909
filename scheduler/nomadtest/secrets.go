package nomadtest

import (
	"context"
	"maps"
	"sync"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// Secrets is a secret store in memory. It implements scheduler.Secrets.
type Secrets struct {
	// Birth returns the birth that new versions carry; nil for none.
	Birth func() fsm.Birth

	mu      sync.Mutex
	entries map[string][]*secret
	sealed  bool
	hung    func(path string) bool
}

// secret is one version. data is nil after it was destroyed.
type secret struct {
	data             map[string]string
	written, deleted time.Time
	birth            fsm.Birth
}

// Grace is the age below which Collect keeps an unreferenced version: it may belong to a
// command that is still being proposed. Retention is the time between deletion and destruction.
const (
	Grace     = 15 * time.Minute
	Retention = 24 * time.Hour
)

var _ scheduler.Secrets = (*Secrets)(nil)

// NewSecrets makes an empty store.
func NewSecrets() *Secrets { return &Secrets{entries: map[string][]*secret{}} }

// Seal makes every call fail. Seal(false) ends that.
func (s *Secrets) Seal(sealed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sealed = sealed
}

// Hang makes reads of the paths for which fn is true wait until their context ends. nil ends
// that.
func (s *Secrets) Hang(fn func(path string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hung = fn
}

// Has reports whether there is an entry at the path.
func (s *Secrets) Has(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries[path]) > 0
}

// given returns the key that a task received when it started. The task keeps it while the store
// is sealed.
func (s *Secrets) given(ref fsm.SecretRef) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if versions := s.entries[ref.Path]; ref.Version >= 1 && ref.Version <= len(versions) {
		return versions[ref.Version-1].data
	}
	return nil
}

func (s *Secrets) check() error {
	if s.sealed {
		return fsm.Errorf(fsm.CodeSecretStore, "the secret store is sealed")
	}
	return nil
}

// Write implements scheduler.Secrets.
func (s *Secrets) Write(_ context.Context, path string, data map[string]string) (fsm.SecretRef, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(); err != nil {
		return fsm.SecretRef{}, err
	}
	made := &secret{data: maps.Clone(data), written: time.Now()}
	if s.Birth != nil {
		made.birth = s.Birth()
	}
	s.entries[path] = append(s.entries[path], made)
	return made.ref(path, len(s.entries[path])), nil
}

// ref returns the reference to a version.
func (s *secret) ref(path string, version int) fsm.SecretRef {
	ref := fsm.SecretRef{Path: path, Version: version}
	if !s.birth.IsZero() {
		ref.Created = s.written.UTC().Format(time.RFC3339Nano)
	}
	return ref
}

// Read implements scheduler.Secrets. A deleted version is undeleted.
func (s *Secrets) Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hung != nil && s.hung(ref.Path) {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return nil, fsm.Errorf(fsm.CodeSecretStore, "the secret store does not answer: %v", ctx.Err())
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	path, version := ref.Path, ref.Version
	if version < 1 || version > len(s.entries[path]) || s.entries[path][version-1].data == nil {
		return nil, fsm.Errorf(fsm.CodeNotFound, "no version %d of %s", version, path)
	}
	found := s.entries[path][version-1]
	if ref.Created != "" && ref != found.ref(path, version) {
		return nil, fsm.Errorf(fsm.CodeNotFound, "version %d of %s is another one", version, path)
	}
	found.deleted = time.Time{}
	return maps.Clone(found.data), nil
}

// Deleted reports whether a version is deleted and can be undeleted.
func (s *Secrets) Deleted(path string, version int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[path]
	return version >= 1 && version <= len(e) && e[version-1].data != nil && !e[version-1].deleted.IsZero()
}

// Delete implements scheduler.Secrets.
func (s *Secrets) Delete(_ context.Context, path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(); err != nil {
		return err
	}
	delete(s.entries, path)
	return nil
}

// Collect implements scheduler.Secrets.
func (s *Secrets) Collect(
	_ context.Context,
	judge func(scheduler.SecretEntry) scheduler.SecretVerdict,
) (did scheduler.SecretsCollected, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(); err != nil {
		return did, err
	}
	for path, versions := range s.entries {
		for i, v := range versions {
			if v.data != nil && time.Since(v.written) > Grace {
				e := scheduler.SecretEntry{Ref: v.ref(path, i+1), Birth: v.birth, DeletedAt: v.deleted, Due: v.due()}
				v.obey(judge(e), e, &did)
			}
		}
	}
	return did, nil
}

// due returns what SecretUnreferenced does to the version.
func (s *secret) due() scheduler.SecretDue {
	switch {
	case s.deleted.IsZero():
		return scheduler.SecretDueDelete
	case time.Since(s.deleted) > Retention:
		return scheduler.SecretDueDestroy
	}
	return scheduler.SecretDueNothing
}

// obey carries out a verdict.
func (s *secret) obey(v scheduler.SecretVerdict, e scheduler.SecretEntry, did *scheduler.SecretsCollected) {
	switch {
	case v == scheduler.SecretStranger:
		did.Strangers++
		did.StrangerPaths = append(did.StrangerPaths, e.Ref.Path)
	case v == scheduler.SecretKeep && !s.deleted.IsZero():
		s.deleted = time.Time{}
		did.Undeleted++
	case v == scheduler.SecretUnreferenced && e.Due == scheduler.SecretDueDelete:
		s.deleted = time.Now()
		did.Deleted++
	case v == scheduler.SecretUnreferenced && e.Due == scheduler.SecretDueDestroy:
		s.data = nil
		did.Destroyed++
	}
}

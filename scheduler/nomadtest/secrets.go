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
	mu      sync.Mutex
	entries map[string][]*secret
	sealed  bool
}

// secret is one version; its data are nil once it was destroyed.
type secret struct {
	data    map[string]string
	written time.Time
}

// Grace is how old a version must be before Collect destroys it: it may belong
// to a command that is still on its way.
const Grace = 15 * time.Minute

var _ scheduler.Secrets = (*Secrets)(nil)

// NewSecrets makes an empty store.
func NewSecrets() *Secrets { return &Secrets{entries: map[string][]*secret{}} }

// Seal makes every call fail until it is called with false.
func (s *Secrets) Seal(sealed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sealed = sealed
}

// Has reports whether there is an entry at path.
func (s *Secrets) Has(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries[path]) > 0
}

// given is what a task was given when it started: it has it even while the store
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
func (s *Secrets) Write(_ context.Context, path string, data map[string]string) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(); err != nil {
		return 0, err
	}
	s.entries[path] = append(s.entries[path], &secret{data: maps.Clone(data), written: time.Now()})
	return len(s.entries[path]), nil
}

// Read implements scheduler.Secrets.
func (s *Secrets) Read(_ context.Context, path string, version int) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(); err != nil {
		return nil, err
	}
	if version < 1 || version > len(s.entries[path]) || s.entries[path][version-1].data == nil {
		return nil, fsm.Errorf(fsm.CodeNotFound, "no version %d of %s", version, path)
	}
	return maps.Clone(s.entries[path][version-1].data), nil
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
func (s *Secrets) Collect(_ context.Context, live func(path string, version int) bool) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(); err != nil {
		return 0, err
	}
	n := 0
	for path, versions := range s.entries {
		for i, v := range versions {
			if v.data != nil && time.Since(v.written) > Grace && !live(path, i+1) {
				v.data = nil
				n++
			}
		}
	}
	return n, nil
}

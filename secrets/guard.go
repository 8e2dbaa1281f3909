package secrets

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// guardTTL is how long a mark that lets this cluster write is believed.
	guardTTL = 30 * time.Second
	// foreignTTL is how long one of another cluster is.
	foreignTTL = 5 * time.Second
)

// ForeignError says that the store holds another cluster's mark. It is
// ErrUnavailable.
type ForeignError struct {
	// Place is the store's; Cluster is the id of the other cluster.
	Place, Cluster string
}

// Error implements error.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s belongs to cluster %s: this cluster writes and deletes nothing there; give it another vault { prefix }, or see ops/runbooks/vault-restored.md",
		e.Place, e.Cluster)
}

// Is implements errors.Is.
func (e *ForeignError) Is(target error) bool { return target == ErrUnavailable }

// Guard is a Store for one cluster: it refuses every change while the store
// holds another cluster's mark, and a Read of a deleted version undeletes it.
// Every node has its own, because every node writes secrets.
type Guard struct {
	Store
	cluster func() string
	log     *slog.Logger
	now     func() time.Time

	mu sync.Mutex
	// of is the cluster that the rest is about: a restore makes the node another's.
	of      string
	until   time.Time
	verdict error
	// looked: the mark was read once.
	looked bool
}

// NewGuard guards a store. cluster gives the id of the node's cluster, "" while
// the node does not know it; a nil function guards nothing. logger may be nil.
func NewGuard(store Store, cluster func() string, logger *slog.Logger) *Guard {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Guard{Store: store, cluster: cluster, log: logger, now: time.Now}
}

// Check is nil when this cluster may change the store.
func (g *Guard) Check(ctx context.Context) error {
	if g.cluster == nil {
		return nil
	}
	id := g.cluster()
	if id == "" {
		return unavailable("this node does not know its cluster yet")
	}
	g.mu.Lock()
	if g.of != id {
		g.of, g.until, g.verdict, g.looked = id, time.Time{}, nil, false
	}
	verdict, fresh := g.verdict, g.now().Before(g.until)
	g.mu.Unlock()
	if fresh {
		return verdict
	}
	mark, _, found, err := g.Store.ReadMark(ctx)
	if err != nil {
		return err
	}
	ttl := guardTTL
	verdict = nil
	if found && mark.Cluster != id {
		ttl, verdict = foreignTTL, &ForeignError{Place: g.Store.Place(), Cluster: mark.Cluster}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.of == id {
		g.verdict, g.until, g.looked = verdict, g.now().Add(ttl), true
	}
	return verdict
}

// ask is Check for what a user asked for. A mark that this cluster could write
// beside when it was read last, and that can't be read now, forbids nothing: only
// what the leader does of its own accord waits for it.
func (g *Guard) ask(ctx context.Context) error {
	err := g.Check(ctx)
	if err == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.looked && g.verdict == nil && !errors.As(err, new(*ForeignError)) {
		return nil
	}
	return err
}

// Read implements Store. Callers hold a reference to what they read, so a
// deleted version is needed again: after a restore, for example.
func (g *Guard) Read(ctx context.Context, path string, version int, created time.Time) (map[string]string, error) {
	data, err := g.Store.Read(ctx, path, version, created)
	if !errors.Is(err, ErrDeleted) {
		return data, err
	}
	if err := g.Undelete(ctx, path, version); err != nil {
		return nil, fmt.Errorf("reading %s version %d, which is deleted: %w", path, version, err)
	}
	g.log.Warn("a secret that is referenced was deleted; it is undeleted", "path", path, "version", version)
	return g.Store.Read(ctx, path, version, created)
}

// Write implements Store.
func (g *Guard) Write(ctx context.Context, path string, data map[string]string, birth Birth) (Version, error) {
	if err := g.ask(ctx); err != nil {
		return Version{}, fmt.Errorf("writing %s: %w", path, err)
	}
	return g.Store.Write(ctx, path, data, birth)
}

// Delete implements Store.
func (g *Guard) Delete(ctx context.Context, path string) error {
	if err := g.ask(ctx); err != nil {
		return fmt.Errorf("deleting %s: %w", path, err)
	}
	return g.Store.Delete(ctx, path)
}

// Undelete implements Store.
func (g *Guard) Undelete(ctx context.Context, path string, version int) error {
	if err := g.ask(ctx); err != nil {
		return fmt.Errorf("undeleting %s version %d: %w", path, version, err)
	}
	return g.Store.Undelete(ctx, path, version)
}

// Collect implements Store.
func (g *Guard) Collect(ctx context.Context, birth Birth, judge func(Entry) Verdict) (Collected, error) {
	if err := g.Check(ctx); err != nil {
		return Collected{}, fmt.Errorf("collecting secrets: %w", err)
	}
	return g.Store.Collect(ctx, birth, judge)
}

// WriteMark implements Store. Check-and-set protects another cluster's mark.
func (g *Guard) WriteMark(ctx context.Context, mark Mark, cas uint64) error {
	if err := g.Check(ctx); err != nil {
		return fmt.Errorf("writing the mark: %w", err)
	}
	return g.Store.WriteMark(ctx, mark, cas)
}

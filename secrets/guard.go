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
	// guardTTL is how long a mark that permits changes is cached.
	guardTTL = 30 * time.Second
	// foreignTTL is how long another cluster's mark is cached.
	foreignTTL = 5 * time.Second
)

// ForeignError says that the store holds another cluster's mark. errors.Is matches ErrUnavailable.
type ForeignError struct {
	// Place is the store's. Cluster is the id of the other cluster.
	Place, Cluster string
}

// Error implements error.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s belongs to cluster %s: this cluster writes and deletes nothing there; "+
		"give it another vault { prefix }, or see bivouac runbook vault-restored",
		e.Place, e.Cluster)
}

// Is implements errors.Is.
func (e *ForeignError) Is(target error) bool { return target == ErrUnavailable }

// Guard is a Store for one cluster. It refuses every change while the store holds another cluster's
// mark. Its Read undeletes a deleted version. Every node has its own, because every node writes
// secrets.
type Guard struct {
	Store
	cluster func() string
	log     *slog.Logger
	now     func() time.Time

	mu sync.Mutex
	// of is the cluster that until and verdict apply to; a restore can change the node's cluster.
	// until is zero until the mark has been read.
	of      string
	until   time.Time
	verdict error
}

// NewGuard guards a store. cluster returns the id of the node's cluster, "" while the node does not
// know it. With a nil function it checks nothing. logger may be nil.
func NewGuard(store Store, cluster func() string, logger *slog.Logger) *Guard {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Guard{Store: store, cluster: cluster, log: logger, now: time.Now}
}

// Check returns nil when this cluster may change the store, a *ForeignError when it may not, and
// another error, usually ErrUnavailable, while that is unknown.
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
		g.of, g.until, g.verdict = id, time.Time{}, nil
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
		g.verdict, g.until = verdict, g.now().Add(ttl)
	}
	return verdict
}

// ask is Check for a user's request. If the last mark that was read permits changes and it can't be
// read now, the request is allowed. Only the leader's own work waits for the mark.
func (g *Guard) ask(ctx context.Context) error {
	err := g.Check(ctx)
	if err == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.until.IsZero() && g.verdict == nil && !errors.As(err, new(*ForeignError)) {
		return nil
	}
	return err
}

// Read implements Store. A caller has a reference to what it reads, so a deleted version is needed
// again, for example after a restore.
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

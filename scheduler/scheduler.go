package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/fsm"
)

// Config holds the scheduler's limits and intervals. Start from DefaultConfig.
type Config struct {
	// Workers is the number of sandboxes worked on at a time.
	Workers int
	// ListInterval is how often everything is listed, even without an event.
	ListInterval time.Duration
	// CallTimeout bounds one step or listing, all its backend calls together.
	CallTimeout time.Duration
	// SettleTimeout is how long to wait for the backend to show an accepted step before
	// everything is listed again.
	SettleTimeout time.Duration

	// StartTimeout bounds STARTING where the template has no StartTimeout.
	StartTimeout time.Duration
	// ProgressTimeout bounds STARTING while the backend makes progress, such as an image pull;
	// StartTimeout then counts from the last progress.
	ProgressTimeout time.Duration
	// StopTimeout is how long a pause may take before the sandbox is shown in ERROR. The stop is
	// still retried.
	StopTimeout time.Duration
	// PauseGrace bounds how long a sandbox's conversations may take to pause before its job is
	// stopped. It counts towards StopTimeout.
	PauseGrace time.Duration
	// PlacementGrace is how long a sandbox may wait for a client with room before it is an ERROR.
	// It covers clients that are just being freed.
	PlacementGrace time.Duration
	// OrphanGrace is how long a job or workspace of ours must have been seen without a sandbox
	// before it is recorded as an orphan.
	OrphanGrace time.Duration
	// OrphanRetention is how long an orphaned workspace stays.
	OrphanRetention time.Duration
	// LostRetention is how long what a lost client still has is kept.
	LostRetention time.Duration
	// RemovalsPerHour bounds what the leader removes of each kind in an hour without a user's
	// request; 0 is the larger of 5 and a tenth of the kind.
	RemovalsPerHour int
	// MarkInterval is how often the marks are written.
	MarkInterval time.Duration
	// SecretMarks keeps the mark in the secret store; nil for none.
	SecretMarks Marks
	// SecretPlace says in messages where the secrets are; "" is "the secret store".
	SecretPlace string
	// ClocksAgree returns nil when the clocks of a majority agree. While it returns an error,
	// policies pause and delete nothing. A nil function counts as agreement.
	ClocksAgree func(context.Context) error
	// RetryInterval is the pause before another start of a sandbox whose task got no key from the
	// secret store, until StartTimeout.
	RetryInterval time.Duration

	// ProbeMin and ProbeMax bound the pause between two probes of a sandbox that is starting; it
	// grows from the one to the other.
	ProbeMin, ProbeMax time.Duration
	// HealthInterval is the pause between two probes of a RUNNING sandbox.
	HealthInterval time.Duration
	// HealthGrace and HealthFailures say how long and how often in a row probes must fail before
	// a RUNNING sandbox is an ERROR.
	HealthGrace    time.Duration
	HealthFailures int
	// ProbeTimeout bounds one probe.
	ProbeTimeout time.Duration
	// MarkerInterval is how often the marker of a RUNNING sandbox's workspace is written again.
	MarkerInterval time.Duration
	// ProbesAtOnce bounds how many probes of each kind are under way; see probes.go.
	ProbesAtOnce int

	// BackoffMin and BackoffMax bound the pause after a failed step.
	BackoffMin, BackoffMax time.Duration
	// CollectInterval is how often unreferenced secrets are collected. The first collection
	// follows the first listing of a term.
	CollectInterval time.Duration

	// Installation holds the policy and the limits of the installation. The first leader stores
	// its own.
	Installation fsm.Installation

	// Copies is where workspaces are copied to; nil for nowhere. CopyInterval is the pause between two
	// copies of a running sandbox's workspace, and CopyRetain how many copies of one are kept.
	Copies       Copies
	CopyInterval time.Duration
	CopyRetain   int

	// Events fetches what the cluster lacks of a sandbox's events before it stops; nil for nothing.
	Events EventFetch

	// PoolStarts is how many members of one warm pool may be starting at a time.
	PoolStarts int
	// PoolBackoffMin and PoolBackoffMax bound the pause after a member of a pool failed or could
	// not be added.
	PoolBackoffMin, PoolBackoffMax time.Duration

	// Logger and Registerer may be nil: then nothing is logged, or no metrics are registered.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// DefaultConfig returns the values of an ordinary installation.
func DefaultConfig() Config {
	return Config{
		Workers:         32,
		ListInterval:    30 * time.Second,
		CallTimeout:     30 * time.Second,
		SettleTimeout:   3 * time.Second,
		StartTimeout:    2 * time.Minute,
		ProgressTimeout: 15 * time.Minute,
		StopTimeout:     time.Minute,
		PauseGrace:      20 * time.Second,
		PlacementGrace:  15 * time.Second,
		OrphanGrace:     5 * time.Second,
		OrphanRetention: 168 * time.Hour, LostRetention: fsm.LostRetention,
		MarkInterval:    time.Minute,
		RetryInterval:   3 * time.Second,
		ProbeMin:        5 * time.Millisecond,
		ProbeMax:        250 * time.Millisecond,
		HealthInterval:  10 * time.Second,
		HealthGrace:     15 * time.Second,
		HealthFailures:  3,
		ProbeTimeout:    5 * time.Second,
		MarkerInterval:  5 * time.Minute,
		ProbesAtOnce:    128,
		BackoffMin:      100 * time.Millisecond,
		BackoffMax:      5 * time.Second,
		CollectInterval: 10 * time.Minute,
		CopyInterval:    15 * time.Minute,
		CopyRetain:      3,
		PoolStarts:      8,
		PoolBackoffMin:  time.Second,
		PoolBackoffMax:  5 * time.Minute,
	}
}

// Validate returns an error that names the first field that is out of bounds. Zero values are out
// of bounds, except where 0 is documented: start from DefaultConfig.
func (c Config) Validate() error {
	for _, n := range []struct {
		name  string
		value int
	}{{"workers", c.Workers}, {
		"health failures",
		c.HealthFailures,
	}, {"probes at once", c.ProbesAtOnce}, {"pool starts", c.PoolStarts}, {"copies retained", c.CopyRetain}} {
		if n.value < 1 {
			return fmt.Errorf("scheduler: %s must be at least 1, got %d", n.name, n.value)
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"list interval", c.ListInterval},
		{"call timeout", c.CallTimeout},
		{"settle timeout", c.SettleTimeout},
		{"start timeout", c.StartTimeout},
		{"progress timeout", c.ProgressTimeout},
		{"stop timeout", c.StopTimeout},
		{"pause grace", c.PauseGrace},
		{"placement grace", c.PlacementGrace},
		{"orphan grace", c.OrphanGrace},
		{"orphan retention", c.OrphanRetention},
		{"mark interval", c.MarkInterval},
		{"retry interval", c.RetryInterval},
		{"minimum probe pause", c.ProbeMin},
		{"maximum probe pause", c.ProbeMax},
		{"health interval", c.HealthInterval},
		{"health grace", c.HealthGrace},
		{"probe timeout", c.ProbeTimeout},
		{"marker interval", c.MarkerInterval},
		{"minimum back-off", c.BackoffMin},
		{"maximum back-off", c.BackoffMax},
		{"collect interval", c.CollectInterval},
		{"copy interval", c.CopyInterval},
		{"minimum pool back-off", c.PoolBackoffMin},
		{"maximum pool back-off", c.PoolBackoffMax},
	} {
		if d.value <= 0 {
			return fmt.Errorf("scheduler: %s must be positive, got %s", d.name, d.value)
		}
	}
	if c.ProbeMax < c.ProbeMin {
		return errors.New("scheduler: the maximum probe pause is below the minimum")
	}
	if c.BackoffMax < c.BackoffMin {
		return errors.New("scheduler: the maximum back-off is below the minimum")
	}
	if c.RemovalsPerHour < 0 {
		return fmt.Errorf("scheduler: the removals of an hour must be 0 or more, got %d", c.RemovalsPerHour)
	}
	body := fsm.InstallationConfigureBody{Installation: c.Installation}
	if err := fsm.Validate(&body); err != nil {
		return fmt.Errorf("scheduler: %w", err)
	}
	return nil
}

// Scheduler makes the backend match the store. It keeps no state between terms.
type Scheduler struct {
	cfg     Config
	log     *slog.Logger
	store   Store
	cluster Cluster
	runner  Backend
	agents  Agents
	secrets Secrets
	also    []func(ctx context.Context) error
	metrics *metrics
}

// New makes a Scheduler; it starts nothing. The functions in also run beside the loop in every
// term and end with their context; Run of a starttask.Runner is one.
func New(
	cfg Config, store Store, cluster Cluster, runner Backend, agents Agents, secrets Secrets,
	also ...func(ctx context.Context) error,
) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Scheduler{
		cfg: cfg, log: cfg.Logger, store: store, cluster: cluster, runner: runner, agents: agents, secrets: secrets,
		also: also, metrics: newMetrics(cfg.Registerer, store, cfg.StopTimeout, cfg.Copies != nil),
	}, nil
}

// Run schedules for one term. It returns when ctx has ended and everything it started has ended
// too. cluster.Node.Lead calls it. A *NewerHistoryError says that this node must not lead.
func (s *Scheduler) Run(ctx context.Context, term uint64) error {
	log := s.log.With("term", term)
	log.Info("scheduling begins")
	defer log.Info("scheduling ended")
	vault := newMarkGuard(s, log, fsm.StoreVault, s.cfg.SecretMarks)
	l := newLoop(s, log, newMarkGuard(s, log, fsm.StoreNomad, s.runner), vault)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.run(ctx) })
	g.Go(func() error { return l.backend.run(ctx) })
	if vault.marks != nil {
		g.Go(func() error { return vault.run(ctx) })
	}
	g.Go(func() error {
		// The first listing may begin a hold, so the collection waits for it.
		select {
		case <-l.listed:
			return s.collectSecrets(ctx, log, vault)
		case <-ctx.Done():
			return nil
		}
	})
	g.Go(func() error { return newPools(s, log).run(ctx) })
	g.Go(func() error { return newPolicies(s, log, l.backend, l.gate).run(ctx) })
	g.Go(func() error { return s.configure(ctx, log) })
	for _, fn := range s.also {
		g.Go(func() error { return fn(ctx) })
	}
	err := g.Wait()
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}

package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/fsm/snapshotfile"
)

// Config configures a node's backups.
type Config struct {
	// Dir holds the backups. It is created if its parent exists. Nodes may share it.
	Dir string
	// Interval is the time between two backups.
	Interval time.Duration
	// Retain is how many backups of this cluster's history Dir keeps.
	Retain int
	// Node is this node's name, Version the program's version.
	Node, Version string

	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Node is the cluster as a Runner uses it; *cluster.Node implements it.
type Node interface {
	// StateSnapshot returns the whole state, View a view of it. Propose records a backup.
	StateSnapshot(ctx context.Context, c cluster.Consistency) (*fsm.Snapshot, error)
	View(ctx context.Context, c cluster.Consistency) (*fsm.View, error)
	Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error)
}

const (
	// retryMin and retryMax bound the pause after a failed backup.
	retryMin = 10 * time.Second
	retryMax = 5 * time.Minute
	// staleTemp is the age at which a temporary file counts as abandoned.
	staleTemp = 24 * time.Hour
	// recordRetry is the pause between attempts to record a backup. A new cluster makes its first
	// backup before its protocol version is raised.
	recordRetry = 2 * time.Second
	// maxFailure bounds the recorded text of a failure, in bytes.
	maxFailure = 500
)

// Runner makes backups while its node leads. Its methods are safe for concurrent use.
type Runner struct {
	cfg     Config
	node    Node
	metrics *metrics
	catalog catalog

	mu sync.Mutex
	// made is the last backup of this process. Below protocol version 3 the state records none.
	made fsm.Backup
	// unrecorded is a backup that is not yet recorded in the state.
	unrecorded *fsm.BackupNoteBody
}

// New makes a Runner and starts nothing. It panics if cfg.Registerer already has the metrics of
// another Runner.
func New(cfg Config, node Node) *Runner {
	r := &Runner{cfg: cfg, node: node, catalog: catalog{dir: cfg.Dir}}
	r.metrics = newMetrics(cfg.Registerer, r.age)
	return r
}

// Lead makes backups for one term; pass it to cluster.Node.Lead. A backup is due when the newest
// one, from any leader, is older than the interval.
func (r *Runner) Lead(ctx context.Context, _ uint64) error {
	retry := backoff.ExponentialBackOff{
		InitialInterval: min(retryMin, r.cfg.Interval), MaxInterval: min(retryMax, r.cfg.Interval), Multiplier: 2,
	}
	for {
		wait, err := r.untilDue(ctx)
		if err == nil && wait <= 0 {
			err = r.make(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			wait = retry.NextBackOff()
		case wait <= 0:
			retry.Reset()
			continue
		}
		if !r.record(ctx) {
			wait = min(wait, recordRetry)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// untilDue returns the time until the next backup, 0 if the newest one is more than an interval in
// the future: a wrong clock made it.
func (r *Runner) untilDue(ctx context.Context) (time.Duration, error) {
	v, err := r.node.View(ctx, cluster.Stale)
	if err != nil {
		return 0, err
	}
	age := time.Since(r.newest(v).Time)
	if age < -r.cfg.Interval {
		return 0, nil
	}
	return r.cfg.Interval - age, nil
}

// newest is the newest usable backup that this node knows.
func (r *Runner) newest(v *fsm.View) fsm.Backup {
	r.mu.Lock()
	defer r.mu.Unlock()
	if noted := v.Backup(); noted.Time.After(r.made.Time) {
		return noted
	}
	return r.made
}

// age is the age of the newest usable backup; false without one.
func (r *Runner) age() (time.Duration, bool) {
	v, err := r.node.View(context.Background(), cluster.Stale)
	if err != nil {
		return 0, false
	}
	at := r.newest(v).Time
	return time.Since(at), !at.IsZero()
}

// make makes one backup, records the result and removes old backups.
func (r *Runner) make(ctx context.Context) error {
	began := time.Now()
	saved, err := r.write(ctx)
	if ctx.Err() != nil {
		return ctx.Err() // another leader's turn
	}
	note := &fsm.BackupNoteBody{Node: r.cfg.Node}
	if err != nil {
		r.metrics.failures.Inc()
		r.cfg.Logger.Error("backup failed", "path", r.cfg.Dir, "error", err)
		note.Failure = err.Error()
		note.Failure = note.Failure[:min(len(note.Failure), maxFailure)]
		if err := r.note(ctx, note); err != nil && ctx.Err() == nil {
			r.cfg.Logger.Warn("a failed backup is not recorded", "error", err)
		}
		return err
	}
	took := time.Since(began)
	r.metrics.duration.Observe(took.Seconds())
	r.metrics.size.Set(float64(saved.Size))
	note.File, note.Index, note.Size = baseName(saved.Path), saved.Manifest.Index, saved.Size
	r.mu.Lock()
	r.made = fsm.Backup{File: note.File, Node: note.Node, Index: note.Index, Time: time.Now(), Size: note.Size}
	r.unrecorded = note
	r.mu.Unlock()
	r.record(ctx)
	r.cfg.Logger.Info(
		"backup made", "path", saved.Path, "index", saved.Manifest.Index, "duration", took,
	)
	if err := r.prune(ctx, note.File); err != nil && ctx.Err() == nil {
		r.cfg.Logger.Warn("old backups are not removed", "path", r.cfg.Dir, "error", err)
	}
	return nil
}

// write writes the file of a backup.
func (r *Runner) write(ctx context.Context) (Saved, error) {
	if err := r.catalog.prepare(); err != nil {
		return Saved{}, err
	}
	created := time.Now()
	snapshot, err := r.node.StateSnapshot(ctx, cluster.Linearizable)
	if err != nil {
		return Saved{}, fmt.Errorf("reading the state: %w", err)
	}
	defer snapshot.Close()
	scratch, err := raftstore.NewScratch(r.cfg.Dir)
	if err != nil {
		return Saved{}, err
	}
	defer scratch.Close()
	info := snapshotfile.Info{
		Created: created,
		Reason:  snapshotfile.ReasonBackup,
		Version: r.cfg.Version,
		Node:    r.cfg.Node,
	}
	packed, err := snapshotfile.Pack(ctx, info, snapshot, scratch)
	if err != nil {
		return Saved{}, err
	}
	path := r.catalog.path(created, snapshot.Index(), r.cfg.Node)
	saved, err := WriteFile(ctx, path, false, func(w io.Writer) error {
		_, err := packed.WriteTo(w)
		return err
	})
	if err != nil {
		return Saved{}, err
	}
	return saved, r.catalog.add(saved)
}

// note records the result of a backup in the state.
func (r *Runner) note(ctx context.Context, note *fsm.BackupNoteBody) error {
	_, err := r.node.Propose(ctx, fsm.NewCommand(uuid.NewString(), time.Now(), "", note))
	return err
}

// record puts the last backup into the state and reports whether the state has it. Below the
// protocol version of the command it returns false, and Lead tries again.
func (r *Runner) record(ctx context.Context) bool {
	r.mu.Lock()
	note := r.unrecorded
	r.mu.Unlock()
	if note == nil {
		return true
	}
	v, err := r.node.View(ctx, cluster.Stale)
	if err != nil || !v.Active(fsm.MinVersion(fsm.BackupNote)) {
		return false
	}
	if v.Backup().Index <= note.Index { // else another leader has made a newer one
		if err := r.note(ctx, note); err != nil {
			if ctx.Err() == nil {
				r.cfg.Logger.Warn("a backup is not recorded yet", "path", note.File, "error", err)
			}
			return false
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unrecorded = nil
	return true
}

// prune keeps the newest Retain backups of this history, made included, and removes older ones that
// leaders made. It removes those of former histories once this history has Retain. During a hold it
// removes nothing: an old state would choose the wrong ones.
func (r *Runner) prune(ctx context.Context, made string) error {
	v, err := r.node.View(ctx, cluster.Linearizable)
	if err != nil || v.Hold() != nil {
		return err
	}
	files, err := r.catalog.list()
	if err != nil {
		return err
	}
	var errs []error
	kept := 1 // made
	for _, f := range newestFirst(files, v) {
		if f.File == made {
			continue
		}
		if age, _ := f.age(v); kept >= r.cfg.Retain {
			errs = append(errs, r.catalog.remove(f.File))
		} else if age == 0 {
			kept++
		}
	}
	return errors.Join(append(errs, r.catalog.removeTemps(time.Now().Add(-staleTemp)))...)
}

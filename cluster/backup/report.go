package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// Report is what one node knows about the backups.
type Report struct {
	Node string `json:"node"`
	// Directory and Files are this node's directory and its files. Interval and Retain are its
	// configuration.
	Directory string  `json:"directory"`
	Interval  float64 `json:"interval_seconds"`
	Retain    int     `json:"retain"`
	Files     []File  `json:"files"`
	// Newest is the newest backup that the cluster has recorded, from any node.
	Newest fsm.Backup `json:"newest"`
}

// Backups lists the files of this node's directory, newest first, with the cluster's newest backup.
func (r *Runner) Backups(ctx context.Context) (Report, error) {
	v, err := r.node.View(ctx, cluster.Stale)
	if err != nil {
		return Report{}, err
	}
	files, err := r.catalog.list()
	if err != nil {
		return Report{}, fmt.Errorf("reading the directory of backups: %w", err)
	}
	newest := v.Backup()
	if own := r.newest(v); own.Time.After(newest.Time) {
		newest = own
	}
	return Report{
		Node:      r.cfg.Node,
		Directory: r.cfg.Dir,
		Interval:  r.cfg.Interval.Seconds(),
		Retain:    r.cfg.Retain,
		Files:     files,
		Newest:    newest,
	}, nil
}

// Named reads which versions of secrets the directory's backups refer to, and returns a function
// that reports whether one does. Each file is read in full once; later calls compare name, size and
// time. It is an error if the directory can't be read, or lacks the file that this node recorded
// last: its file system may not be mounted.
func (r *Runner) Named(ctx context.Context) (func(path string, number int) bool, error) {
	names, err := r.catalog.names()
	if err != nil {
		return nil, fmt.Errorf("reading the directory of backups: %w", err)
	}
	for _, name := range names {
		if err := r.catalog.verify(ctx, name); err != nil && !isGone(err) {
			return nil, fmt.Errorf("reading backup %s: %w", name, err)
		}
	}
	v, err := r.node.View(ctx, cluster.Stale)
	if err != nil {
		return nil, err
	}
	r.catalog.mu.Lock()
	defer r.catalog.mu.Unlock()
	if newest := v.Backup(); newest.Node == r.cfg.Node && newest.File != "" && r.catalog.known[newest.File] == nil {
		return nil, fmt.Errorf(
			"backup %s is not in %s: is its file system mounted?", newest.File, r.cfg.Dir,
		)
	}
	named := map[version]struct{}{}
	for _, k := range r.catalog.known {
		for _, ref := range k.refs {
			named[ref] = struct{}{}
		}
	}
	return func(path string, number int) bool {
		_, there := named[version{path, number}]
		return there
	}, nil
}

// isGone reports whether the file was removed meanwhile.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// metrics are the metrics of backups.
type metrics struct {
	failures prometheus.Counter
	duration prometheus.Histogram
	size     prometheus.Gauge
}

func newMetrics(r prometheus.Registerer, age func() (time.Duration, bool)) *metrics {
	factory := promauto.With(r)
	m := &metrics{
		failures: factory.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_backup_failures_total",
			Help: "Backups that this node tried to make and that failed.",
		}),
		duration: factory.NewHistogram(prometheus.HistogramOpts{
			Name:    "bivouac_backup_duration_seconds",
			Help:    "Time to make a backup, its trial load included.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}),
		size: factory.NewGauge(prometheus.GaugeOpts{
			Name: "bivouac_backup_size_bytes",
			Help: "Size of the newest backup that this node has made since it started.",
		}),
	}
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "bivouac_backup_age_seconds",
		Help: "Age of the newest good backup of the cluster, NaN while there is none.",
	}, func() float64 {
		if d, known := age(); known {
			return d.Seconds()
		}
		return math.NaN()
	})
	return m
}

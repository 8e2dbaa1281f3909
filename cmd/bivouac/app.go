package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/backup"
	"bivouac.dev/bivouac/cmd/internal/eventfetch"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/starttask"
	"bivouac.dev/bivouac/secrets"
)

// differencesPause is the interval at which a node checks whether a new term began.
const differencesPause = 5 * time.Second

// marksPause is the interval at which a node reads the marks while they forbid it to lead.
const marksPause = 10 * time.Second

// stopGrace bounds the graceful part of stopping a node, but for http { drain_delay } and
// { drain_timeout }, which come before it.
const stopGrace = 20 * time.Second

// parts are what one node is made of, chosen by `bivouac server` or `bivouac dev`. newApp
// passes the logger and the registry to each of them.
type parts struct {
	cluster   cluster.Config
	scheduler scheduler.Config
	// workspaces says where workspaces are copied to.
	workspaces WorkspacesConfig
	api        httpapi.Config
	// listener is the bound HTTP port. The app closes it.
	listener net.Listener
	// metrics is the bound port of the metrics' own listener, nil if there is none.
	metrics net.Listener
	// drainDelay is how long a node that is asked to stop serves on after it became unready.
	drainDelay time.Duration
	// systemd is nil for a node that is no service.
	systemd *systemd
	secrets secrets.Store
	// store is the node's state, if something else reads it; nil for one of the app's own.
	store  *fsm.Store
	runner scheduler.Backend
	log    *slog.Logger
	// backup configures the backups that the node makes while it leads; none without a Dir.
	backup backup.Config
	// apiURLs are the nodes as sandboxes reach them.
	apiURLs []string
	// seeds are the blocks of the node's file that are the cluster's; see Config.Seeds.
	seeds []string
	// certificates say how the node renews its peer certificate.
	certificates certificateOptions
	// services are Nomad and Vault as the node last found them; nil with `bivouac dev`.
	services func() []cluster.Service
	// observer answers what operators ask about the node.
	observer *observer
	// registry collects the node's metrics; /metrics serves it.
	registry *prometheus.Registry
}

// app is one node, wired and not yet running.
type app struct {
	name       string
	log        *slog.Logger
	listener   net.Listener
	metrics    net.Listener // nil if the API's listener has them
	drainDelay atomic.Int64 // a time.Duration
	life       *lifecycle
	systemd    *systemd
	store      *fsm.Store
	node       *cluster.Node
	sched      *scheduler.Scheduler
	api        *httpapi.Server
	agents     *agent.Client
	touches    *scheduler.Touches
	backups    *backup.Runner // nil if there are none
	dates      *certificates
	// differs lists the settings in which the node's file differs from the cluster.
	differs func(*fsm.View) []fsm.Difference
}

// newApp wires a node from its parts: store, cluster, scheduler and API, each from the ones
// before it. It opens the data directory and starts nothing. It stays one straight function so
// that the wiring can be read from top to bottom. A step that fails stops what was made, by the list
// by which run stops it.
func newApp(p parts) (_ *app, err error) {
	log, store := p.log, cmp.Or(p.store, fsm.NewStore())
	a := &app{
		name: p.cluster.NodeName, log: log, listener: p.listener, metrics: p.metrics, systemd: p.systemd, store: store,
		agents: agent.New(agent.Config{}), life: newLifecycle(),
	}
	a.drainDelay.Store(int64(p.drainDelay))
	a.list(p.backup.Dir != "")
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
		}
	}()
	self := &selfReport{data: p.cluster.DataDir, backup: p.backup, services: p.services, view: store.View}
	p.cluster.Logger, p.cluster.Registerer, p.cluster.Report = log, p.registry, self.report
	if p.observer != nil {
		p.cluster.Observe = p.observer.observe
	}
	if a.node, err = cluster.New(p.cluster, store); err != nil {
		return nil, fmt.Errorf("opening node %s: %w", p.cluster.NodeName, err)
	}
	node, agents := a.node, a.agents

	kept := newSecretStore(p.secrets, store.View, log)
	if a.backups = newBackups(p, node, log); a.backups != nil {
		kept.backups, p.api.Operator.Backups = a.backups, a.backups
	}
	p.scheduler.Logger, p.scheduler.Registerer, p.scheduler.SecretMarks = log, p.registry, kept
	if err := p.workspaces.open(context.Background(), &p.scheduler, newCopyKeys(kept)); err != nil {
		return nil, err
	}
	p.scheduler.SecretPlace, p.scheduler.ClocksAgree = p.secrets.Place(), node.ClocksAgree
	taskConfig := starttask.DefaultConfig()
	taskConfig.Logger, taskConfig.APIURLs = log, p.apiURLs
	p.api.APIURLs = p.apiURLs
	here := proposesHere{node}
	tasks, err := starttask.New(taskConfig, store, here, agents, kept)
	if err != nil {
		return nil, err
	}
	fetched := eventfetch.New(store, here, node, agents, kept, log)
	p.scheduler.Events = fetched
	a.sched, err = scheduler.New(p.scheduler, store, here, p.runner, agents, kept, tasks.Run, fetched.Run)
	if err != nil {
		return nil, err
	}

	a.touches = scheduler.NewTouches(node, log)
	p.api.Proxy.Activity, p.api.Operator.Membership = a.touches, node
	if logs, can := p.runner.(scheduler.Logs); can {
		p.api.Logs = sandboxLogs{logs}
	}
	if clients, can := p.runner.(clientLister); can {
		p.api.Operator.Clients = sandboxClients{clients}
	}
	snapshots := &p.api.Operator.Snapshots
	snapshots.Restorer, snapshots.Surroundings = node, surroundings{p.runner, kept}
	snapshots.States, snapshots.Dir, snapshots.Version = node, p.cluster.DataDir, readBuildInfo().Version
	a.differs = func(v *fsm.View) []fsm.Difference { return seedDifferences(v, p.scheduler.Installation, p.seeds) }
	p.api.Operator.OrphanRetention = p.scheduler.OrphanRetention
	p.api.Operator.Differs = differenceTexts(a.differs)
	a.dates = newCertificates(p.certificates, node.Credentials(), p.cluster.TLS, log, p.registry)
	p.api.Expired = a.dates.expiredNames
	self.dates, self.differs = a.dates, p.api.Operator.Differs
	p.api.Operator.Report, p.api.Operator.Observer = node.Report, node
	p.api.Events = node
	p.api.Logger, p.api.Registerer, p.api.Gatherer = log, p.registry, p.registry
	if a.api, err = httpapi.New(p.api, node, kept, agentServers{agents}); err != nil {
		return nil, err
	}
	return a, nil
}

// proposesHere is the scheduler's cluster. The scheduler judges removals by the store behind a fence: a
// former leader's must not be older than the fence that its successor granted.
type proposesHere struct{ node *cluster.Node }

// Propose implements scheduler.Cluster.
func (p proposesHere) Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	return p.node.ProposeHere(ctx, cmd)
}

// list lists the parts in the order in which they start. They stop in reverse.
func (a *app) list(backups bool) {
	l := a.life
	l.onStop("agent client", func(context.Context) error { a.agents.Close(); return nil })
	if a.metrics != nil { // first, to stop last
		l.add("metrics", func(ctx context.Context) error { return a.api.RunMetrics(ctx, a.metrics) }, closing(a.metrics))
	}
	l.add("scheduler", a.lead, nil)
	if backups {
		l.add("backups", func(ctx context.Context) error { return a.whileLeading(ctx, a.backups.Lead) }, nil)
	}
	l.add("cluster", func(ctx context.Context) error { return a.node.Run(ctx) }, a.closeNode)
	l.add("activity", func(ctx context.Context) error { return a.touches.Run(ctx) }, nil)
	l.add("marks", a.recheckMarks, nil)
	l.add("configuration", a.tellDifferences, nil)
	l.add("certificates", func(ctx context.Context) error { return a.dates.run(ctx) }, nil)
	l.add("http", func(ctx context.Context) error { return a.api.Run(ctx, a.listener) }, closing(a.listener))
	if a.systemd != nil && a.systemd.watchdog > 0 {
		l.add("watchdog", func(ctx context.Context) error { return a.systemd.feed(ctx, a.node.Progress) }, nil)
	}
}

// closing closes a port that nothing served. Whoever bound it may have closed it.
func closing(port net.Listener) func() error { return func() error { port.Close(); return nil } }

// run starts the node and runs it until ctx ends or a part fails. Then it stops all parts in
// reverse order. The API serves before the cluster is ready, so that /ready can say what is
// missing. When ctx ends, the node drains before the API stops. If ctx ends with
// cluster.ErrAbrupt as its cause, it does not, and nothing is transferred.
func (a *app) run(ctx context.Context) error {
	l := a.life
	l.begin()
	a.systemd.ready()
	a.log.Info("node started", "address", a.listener.Addr().String(), "peer", a.node.PeerAddr())

	var err error
	select {
	case <-ctx.Done():
		l.cause = context.Cause(ctx)
	case err = <-l.ended:
		a.log.Error("a part of the node ended; the node stops", "error", err)
	}
	a.systemd.stop()
	if err == nil && !errors.Is(l.cause, cluster.ErrAbrupt) {
		err = a.drain(l.ended)
	}
	a.log.Info("node stopping")
	err = errors.Join(err, l.stop(stopGrace))
	a.log.Info("node stopped")
	return err
}

// drain makes the node unready, transfers leadership, and serves on for drainDelay, so that load
// balancers notice. It ends early with the error of a part that ends.
func (a *app) drain(ended <-chan error) error {
	wait := time.Duration(a.drainDelay.Load())
	a.log.Info("node draining", "duration", wait)
	a.api.Drain()
	a.node.HandOver()
	delay := time.NewTimer(wait)
	defer delay.Stop()
	select {
	case <-delay.C:
		return nil
	case err := <-ended:
		a.log.Error("a part of the node ended while it drained", "error", err)
		return err
	}
}

// lead runs the scheduler in every term that this node leads. A mark of a newer history ends
// that until the mark changes.
func (a *app) lead(ctx context.Context) error {
	return a.whileLeading(ctx, func(ctx context.Context, term uint64) error {
		err := a.sched.Run(ctx, term)
		if newer := (*scheduler.NewerHistoryError)(nil); errors.As(err, &newer) {
			a.node.ForbidLeading(newer)
			return nil
		}
		return err
	})
}

// recheckMarks lets the node lead again once no mark forbids it.
func (a *app) recheckMarks(ctx context.Context) error {
	ticker := time.NewTicker(marksPause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if a.node.MustNotLead() != nil && a.sched.CheckMarks(ctx) == nil {
				a.node.AllowLeading()
			}
		}
	}
}

// whileLeading runs fn in every term that this node leads. Lead also returns when the cluster
// stops; then the cluster reports the reason.
func (a *app) whileLeading(ctx context.Context, fn func(ctx context.Context, term uint64) error) error {
	if err := a.node.Lead(ctx, fn); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// tellDifferences logs, once per term and configuration, the settings in which the node's file
// differs from the cluster.
func (a *app) tellDifferences(ctx context.Context) error {
	told, at := uint64(0), uint64(0)
	ticker := time.NewTicker(differencesPause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		v := a.store.View()
		if v.Term() == told && v.ConfigIndex() == at {
			continue
		}
		told, at = v.Term(), v.ConfigIndex()
		var blocks, list []string
		for _, d := range a.differs(v) {
			blocks, list = append(blocks, blockOf(d.Name)), append(list, differenceText(d))
		}
		if len(list) > 0 {
			a.log.Warn("blocks of this node's file are the cluster's and are ignored: "+
				"the cluster has others (bivouac config diff)",
				"term", told, "settings", strings.Join(slices.Compact(blocks), ", "), "reason", strings.Join(list, "; "))
		}
	}
}

// close stops what a node holds that was never run.
func (a *app) close() error { return a.life.stop(stopGrace) }

// closeNode closes the data directory of a node that was never run. Only Run closes it, so
// closeNode calls Run with a context that has ended.
func (a *app) closeNode() error {
	if a.node == nil {
		return nil
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cluster.ErrAbrupt)
	return a.node.Run(ctx)
}

// newBackups makes the backup runner, nil if no backups are configured.
func newBackups(p parts, node *cluster.Node, log *slog.Logger) *backup.Runner {
	interval := promauto.With(p.registry).NewGauge(prometheus.GaugeOpts{
		Name: "bivouac_backup_interval_seconds",
		Help: "Time between two backups while this node leads, by its file; 0 where it makes none.",
	})
	if p.backup.Dir == "" {
		return nil
	}
	interval.Set(p.backup.Interval.Seconds())
	p.backup.Node, p.backup.Version = p.cluster.NodeName, readBuildInfo().Version
	p.backup.Logger, p.backup.Registerer = log, p.registry
	return backup.New(p.backup, node)
}

package scheduler

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"bivouac.dev/bivouac/fsm"
)

// metrics are the scheduler's metrics. The leader alone counts those in the struct. The
// collectors read the store, so every node reports the same there.
type metrics struct {
	start    *prometheus.HistogramVec
	failures *prometheus.CounterVec
	pass     *prometheus.HistogramVec
	steps    *prometheus.CounterVec
	secrets  prometheus.Counter
	// These three are about the secret store too.
	deleted, undeleted prometheus.Counter
	strangers          prometheus.Gauge
	pauses             *prometheus.CounterVec
	claims             *prometheus.CounterVec
	expired            *prometheus.CounterVec
	orphansRemoved     prometheus.Counter
	idleUnknown        prometheus.Gauge
	carry              *carryMetrics
	capacity           *capacityMetrics
}

// newMetrics makes the metrics and registers them, unless reg is nil. A pause or deletion counts
// as overdue after stop.
func newMetrics(reg prometheus.Registerer, store Store, stop time.Duration, copies bool) *metrics {
	factory := promauto.With(reg)
	m := &metrics{
		carry: newCarryMetrics(factory), capacity: newCapacityMetrics(factory),
		start: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "bivouac_sandbox_start_duration_seconds",
			Help: "Time from the wish to start or resume a sandbox until it reached a stage: accepted by the backend, " +
				"placed, claimed (the leader begins to bind it) and bound (warm starts), running; by kind of start.",
			Buckets: []float64{.005, .01, .02, .05, .1, .15, .2, .3, .5, .75, 1, 2, 5, 10, 30, 60, 120},
		}, []string{"stage", "start"}),
		failures: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_sandbox_failures_total",
			Help: "Sandboxes that went into ERROR, by reason.",
		}, []string{"reason"}),
		pass: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "bivouac_scheduler_pass_duration_seconds",
			Help:    "Duration of one pass: over one sandbox, or a full listing.",
			Buckets: prometheus.ExponentialBuckets(.0001, 4, 10),
		}, []string{"pass"}),
		steps: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_scheduler_steps_total",
			Help: "Steps taken, by step and outcome.",
		}, []string{"step", "outcome"}),
		secrets: factory.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_secret_versions_destroyed_total",
			Help: "Unreferenced versions of secrets destroyed, long after they were deleted.",
		}),
		deleted: factory.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_secret_versions_deleted_total",
			Help: "Unreferenced versions of secrets deleted; they can be undeleted until they are destroyed.",
		}),
		undeleted: factory.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_secret_versions_undeleted_total",
			Help: "Versions of secrets that were deleted, are referenced and were undeleted.",
		}),
		strangers: factory.NewGauge(prometheus.GaugeOpts{
			Name: "bivouac_secret_strangers",
			Help: "Versions of secrets below the prefix that nothing refers to and that were not made in this cluster's " +
				"history, as the last collection found; they are left alone.",
		}),
		pauses: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_sandbox_graceful_pauses_total",
			Help: "Sandboxes whose conversations were asked to pause before their job was stopped, by outcome.",
		}, []string{"outcome"}),
		claims: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_pool_claims_total",
			Help: "First starts of sandboxes whose spec has a warm pool, by outcome: hit (a member was claimed) or miss.",
		}, []string{"outcome"}),
		expired: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_sandboxes_expired_total",
			Help: "Sandboxes that were paused or deleted by their policy, by action and reason.",
		}, []string{"action", "reason"}),
		orphansRemoved: factory.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_orphans_removed_total",
			Help: "Jobs and workspaces of ours that no sandbox owned and that were removed.",
		}),
		idleUnknown: factory.NewGauge(prometheus.GaugeOpts{
			Name: "bivouac_sandboxes_idle_unknown",
			Help: "Running sandboxes under an idle timeout of which the leader can't tell whether they are in use: " +
				"they are not paused as idle.",
		}),
	}
	m.begin()
	if reg != nil {
		reg.MustRegister(stateCollector{store}, isolationCollector{store}, overdueCollector{store, stop},
			newConfigIndex(store),
			bytesCollector{store}, poolCollector{store}, holdCollector{store}, reasonCollector{store},
			unconvergedCollector{store}, &rowCollector{store: store}, copyCollector{store, copies}, drainCollector{store})
	}
	return m
}

func newConfigIndex(store Store) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "bivouac_config_index",
		Help: "Index of the log at which the cluster's configuration was last changed, 0 for never.",
	}, func() float64 { return float64(store.View().ConfigIndex()) })
}

// begin makes the series of all known labels, so that they exist before their first event.
func (m *metrics) begin() {
	for _, start := range []string{"cold", "warm", "resume", "pool"} {
		for _, stage := range []string{"accepted", "placed", "running"} {
			m.start.WithLabelValues(stage, start)
		}
	}
	m.start.WithLabelValues("claimed", "warm")
	m.start.WithLabelValues("bound", "warm")
	for _, reason := range reasons() {
		m.failures.WithLabelValues(reason)
	}
	m.pass.WithLabelValues("sandbox")
	m.pass.WithLabelValues("listing")
	for _, outcome := range []string{"ok", "failed"} {
		for _, step := range []Step{
			StepStart,
			StepRaise,
			StepTakeOver,
			StepStop,
			StepRemove,
			StepStopOrphan,
			StepRemoveOrphan,
			StepAdopt,
		} {
			m.steps.WithLabelValues(string(step), outcome)
		}
		m.pauses.WithLabelValues(outcome)
	}
	m.claims.WithLabelValues("hit")
	m.claims.WithLabelValues("miss")
	for _, reason := range []string{fsm.PausedByIdle, fsm.PausedByMaxRunning} {
		m.expired.WithLabelValues(fsm.ExpirePause, reason)
	}
	m.expired.WithLabelValues(fsm.ExpireDelete, fsm.ReasonPausedTooLong)
}

// reasons are the reasons of an ERROR.
func reasons() []string {
	return []string{
		fsm.ReasonNoCapacity, fsm.ReasonImage, fsm.ReasonDriver, fsm.ReasonCrashed, fsm.ReasonHealth,
		fsm.ReasonWorkspace, fsm.ReasonSecretStore, fsm.ReasonScheduler, fsm.ReasonStartTimeout,
		fsm.ReasonForeignJob, fsm.ReasonSpec, fsm.ReasonAgentRejected, fsm.ReasonHeld,
	}
}

// startKind returns the label "start": how the sandbox comes to run.
func startKind(sb *fsm.Sandbox) string {
	switch {
	case sb.Member():
		return "pool"
	case !sb.CreatedAt.Equal(sb.DesiredAt):
		return "resume"
	case sb.Claimed:
		return "warm"
	}
	return "cold"
}

// started counts the first start of a sandbox as a hit or miss of its spec's pool.
func (m *metrics) started(v *fsm.View, sb *fsm.Sandbox) {
	switch startKind(sb) {
	case "warm":
		m.claims.WithLabelValues("hit").Inc()
	case "cold":
		if spec := v.Spec(sb.SpecID); spec != nil && spec.Pool > 0 {
			m.claims.WithLabelValues("miss").Inc()
		}
	}
}

// seconds observes the time since a moment that may be another node's clock; a negative time
// counts as 0.
func seconds(o prometheus.Observer, since time.Time) {
	o.Observe(max(time.Since(since), 0).Seconds())
}

// stateCollector counts the sandboxes in the store by state.
type stateCollector struct{ store Store }

func (stateCollector) desc() *prometheus.Desc {
	return prometheus.NewDesc("bivouac_sandboxes", "Sandboxes in the store, by state; "+
		"DELETING ones are no longer shown by the API.",
		[]string{"state"}, nil)
}

// Describe implements prometheus.Collector.
func (c stateCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc() }

// Collect implements prometheus.Collector.
func (c stateCollector) Collect(ch chan<- prometheus.Metric) {
	const deleting = "DELETING"
	counts := map[string]int{
		string(fsm.SandboxStarting): 0, string(fsm.SandboxRunning): 0, string(fsm.SandboxPaused): 0,
		string(fsm.SandboxError): 0, deleting: 0,
	}
	for sb := range c.store.View().AllSandboxes() {
		if sb.Desired == fsm.DesiredDeleted {
			counts[deleting]++
			continue
		}
		counts[string(sb.State())]++
	}
	for state, n := range counts {
		ch <- prometheus.MustNewConstMetric(c.desc(), prometheus.GaugeValue, float64(n), state)
	}
}

// isolationCollector counts the sandboxes in the store by isolation.
type isolationCollector struct{ store Store }

func (isolationCollector) desc() *prometheus.Desc {
	return prometheus.NewDesc("bivouac_sandboxes_by_isolation", "Sandboxes in the store, "+
		"by what is between them and their machine: standard, none.",
		[]string{"isolation"}, nil)
}

// Describe implements prometheus.Collector.
func (c isolationCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc() }

// Collect implements prometheus.Collector.
func (c isolationCollector) Collect(ch chan<- prometheus.Metric) {
	counts := map[fsm.Isolation]int{fsm.IsolationStandard: 0, fsm.IsolationNone: 0}
	for sb := range c.store.View().AllSandboxes() {
		counts[sb.Template.Isolated()]++
	}
	for isolation, n := range counts {
		ch <- prometheus.MustNewConstMetric(c.desc(), prometheus.GaugeValue, float64(n), string(isolation))
	}
}

// overdueCollector counts the sandboxes whose pause or deletion takes too long. A deletion never
// ends in ERROR and is retried without end, so only this metric shows it.
type overdueCollector struct {
	store Store
	limit time.Duration
}

func (overdueCollector) desc() *prometheus.Desc {
	return prometheus.NewDesc("bivouac_sandboxes_overdue", "Sandboxes whose pause or deletion was asked for longer ago "+
		"than it may take, by wish.",
		[]string{"wish"}, nil)
}

// Describe implements prometheus.Collector.
func (c overdueCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc() }

// Collect implements prometheus.Collector.
func (c overdueCollector) Collect(ch chan<- prometheus.Metric) {
	counts := map[fsm.Desired]int{fsm.DesiredPaused: 0, fsm.DesiredDeleted: 0}
	before := time.Now().Add(-c.limit)
	for sb := range c.store.View().AllSandboxes() {
		done := sb.Desired == fsm.DesiredPaused && sb.Status.State == fsm.SandboxPaused
		if sb.Desired != fsm.DesiredRunning && !done && sb.DesiredAt.Before(before) {
			counts[sb.Desired]++
		}
	}
	for wish, n := range counts {
		ch <- prometheus.MustNewConstMetric(c.desc(), prometheus.GaugeValue, float64(n), string(wish))
	}
}

// poolCollector counts the members of warm pools.
type poolCollector struct{ store Store }

func (poolCollector) descs() (size, wanted *prometheus.Desc) {
	return prometheus.NewDesc("bivouac_pool_size",
			"Members of warm pools, by spec and state: ready, starting, failed, outdated.", []string{"spec", "state"}, nil),
		prometheus.NewDesc("bivouac_pool_wanted", "The size a spec's warm pool should have.", []string{"spec"}, nil)
}

// Describe implements prometheus.Collector.
func (c poolCollector) Describe(ch chan<- *prometheus.Desc) {
	size, wanted := c.descs()
	ch <- size
	ch <- wanted
}

// Collect implements prometheus.Collector.
func (c poolCollector) Collect(ch chan<- prometheus.Metric) {
	size, wanted := c.descs()
	v := c.store.View()
	for _, spec := range v.Specs() {
		members := v.PoolMembers(spec.ID)
		if spec.Pool == 0 && len(members) == 0 {
			continue
		}
		hash := spec.Template.Hash()
		counts := map[memberStage]int{memberReady: 0, memberStarting: 0, memberFailed: 0, memberOutdated: 0}
		for _, m := range members {
			counts[memberState(m, hash)]++
		}
		for state, n := range counts {
			ch <- prometheus.MustNewConstMetric(size, prometheus.GaugeValue, float64(n), spec.ID, state.String())
		}
		ch <- prometheus.MustNewConstMetric(wanted, prometheus.GaugeValue, float64(spec.Pool), spec.ID)
	}
}

// holdCollector reports the hold, the orphans and the removals.
type holdCollector struct{ store Store }

func (holdCollector) descs() (hold, orphans, removals, limited *prometheus.Desc) {
	return prometheus.NewDesc("bivouac_hold", "1 while the cluster holds: the leader does nothing of its own accord.",
			nil, nil),
		prometheus.NewDesc("bivouac_orphans", "Jobs and workspaces without a sandbox, by kind and reason.",
			[]string{"kind", "reason"}, nil),
		prometheus.NewDesc("bivouac_removals", "Removals of the leader's own accord in the last hour, by kind.",
			[]string{"kind"}, nil),
		prometheus.NewDesc("bivouac_removals_braked",
			"1 when the limit of removals of a kind was reached within the last hour.", []string{"kind"}, nil)
}

// Describe implements prometheus.Collector.
func (c holdCollector) Describe(ch chan<- *prometheus.Desc) {
	hold, orphans, removals, limited := c.descs()
	ch <- hold
	ch <- orphans
	ch <- removals
	ch <- limited
}

// Collect implements prometheus.Collector.
func (c holdCollector) Collect(ch chan<- prometheus.Metric) {
	hold, orphans, removals, limited := c.descs()
	gauge := func(d *prometheus.Desc, n float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}
	v, now, on := c.store.View(), time.Now(), 0.
	if v.Hold() != nil {
		on = 1
	}
	gauge(hold, on)
	type label struct{ kind, reason string }
	counts := map[label]float64{}
	for _, kind := range []string{fsm.OrphanJob, fsm.OrphanWorkspace} {
		for _, reason := range []string{fsm.OrphanUnowned, fsm.OrphanPolicy, fsm.OrphanStranger} {
			counts[label{kind, reason}] = 0
		}
	}
	counts[label{fsm.OrphanLost, fsm.OrphanLost}] = 0
	for _, o := range v.Orphans() {
		counts[label{o.Kind, o.Reason}]++
	}
	for l, n := range counts {
		gauge(orphans, n, l.kind, l.reason)
	}
	for _, kind := range []string{fsm.RemovalSandbox, fsm.RemovalJob, fsm.RemovalWorkspace, fsm.RemovalSecret} {
		gauge(removals, float64(v.Removed(kind, now)), kind)
		at := 0.
		if limitsRemovals(v, kind, now) {
			at = 1
		}
		gauge(limited, at, kind)
	}
}

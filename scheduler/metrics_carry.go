package scheduler

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"bivouac.dev/bivouac/fsm"
)

// carryMetrics are of the copies and moves of workspaces. The leader alone counts them.
type carryMetrics struct {
	copies   *prometheus.CounterVec
	copied   prometheus.Counter
	copyTime prometheus.Histogram
	moves    *prometheus.CounterVec
	// gone counts objects that the store has lost, damaged the copies that can't be restored.
	gone    prometheus.Counter
	damaged prometheus.Gauge
}

func newCarryMetrics(factory promauto.Factory) *carryMetrics {
	m := &carryMetrics{
		copies: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_workspace_copies_total",
			Help: "Copies of workspaces into the store of copies, by outcome.",
		}, []string{"outcome"}),
		copied: factory.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_workspace_copied_bytes_total",
			Help: "Content that was written into the store of copies: what no earlier copy had.",
		}),
		copyTime: factory.NewHistogram(prometheus.HistogramOpts{
			Name:    "bivouac_workspace_copy_duration_seconds",
			Help:    "Duration of one copy of a workspace.",
			Buckets: []float64{1, 2, 5, 10, 30, 60, 120, 300, 900, 3600},
		}),
		moves: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_workspace_moves_total",
			Help: "Workspaces moved to another Nomad client, by why (draining, or lost: restored from the copy) and outcome.",
		}, []string{"reason", "outcome"}),
	}
	m.gone = factory.NewCounter(prometheus.CounterOpts{
		Name: "bivouac_workspace_copy_objects_lost_total",
		Help: "Objects of a newest copy that were gone from the store when the next copy was made, which has their content " +
			"again.",
	})
	m.damaged = factory.NewGauge(prometheus.GaugeOpts{
		Name: "bivouac_workspace_copies_damaged",
		Help: "Sandboxes whose newest copy can't be restored, as the leader found it when it last looked.",
	})
	for _, outcome := range []string{"ok", "failed"} {
		m.copies.WithLabelValues(outcome)
		for _, mark := range []string{fsm.ClientDraining, fsm.ClientLost} {
			m.moves.WithLabelValues(mark, outcome)
		}
	}
	return m
}

// copyCollector reports how old copies are: what a lost client would cost.
type copyCollector struct {
	store Store
	on    bool
}

func (copyCollector) descs() (oldest, without *prometheus.Desc) {
	return prometheus.NewDesc("bivouac_workspace_uncopied_oldest_seconds",
			"The most time since which a workspace was written to and not copied; 0 where workspaces are not copied.", nil, nil),
		prometheus.NewDesc("bivouac_workspaces_without_copy", "Sandboxes that ran and have no copy of their workspace.",
			nil, nil)
}

// Describe implements prometheus.Collector.
func (c copyCollector) Describe(ch chan<- *prometheus.Desc) {
	oldest, without := c.descs()
	ch <- oldest
	ch <- without
}

// Collect implements prometheus.Collector.
func (c copyCollector) Collect(ch chan<- prometheus.Metric) {
	var most time.Duration
	missing, now := 0, time.Now()
	for sb := range c.store.View().AllSandboxes() {
		st := sb.Status
		if sb.Member() || sb.Desired == fsm.DesiredDeleted || st.Workspace == "" {
			continue
		}
		since := sb.CreatedAt
		if sb.Copy == nil {
			missing++
		} else if since = sb.Copy.At; st.State == fsm.SandboxPaused && copiedAtRest(sb, now) {
			continue
		}
		most = max(most, now.Sub(since))
	}
	if !c.on {
		most = 0
	}
	oldest, without := c.descs()
	ch <- prometheus.MustNewConstMetric(oldest, prometheus.GaugeValue, most.Seconds())
	ch <- prometheus.MustNewConstMetric(without, prometheus.GaugeValue, float64(missing))
}

// drainCollector reports the drains that can't be done.
type drainCollector struct{ store Store }

func (drainCollector) desc() *prometheus.Desc {
	return prometheus.NewDesc("bivouac_drains",
		"Nomad clients that an operator drains: stuck, which leave sandboxes where they are because these can't be "+
			"moved, and going, all others.", []string{
			"state",
		}, nil)
}

// Describe implements prometheus.Collector.
func (c drainCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc() }

// Collect implements prometheus.Collector.
func (c drainCollector) Collect(ch chan<- prometheus.Metric) {
	stuck, going := 0, 0
	for _, m := range c.store.View().ClientMarks() {
		switch {
		case m.Mark != fsm.ClientDraining:
		case len(m.Stays) > 0:
			stuck++
		default:
			going++
		}
	}
	ch <- prometheus.MustNewConstMetric(c.desc(), prometheus.GaugeValue, float64(stuck), "stuck")
	ch <- prometheus.MustNewConstMetric(c.desc(), prometheus.GaugeValue, float64(going), "going")
}

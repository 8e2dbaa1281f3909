package nomad

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// probeInterval is how often a node asks whether Nomad answers.
const probeInterval = 5 * time.Second

// opProbe is the call of Probe.
const opProbe = "probe"

// metrics are the metrics of the calls of Nomad's API.
type metrics struct {
	calls     *prometheus.HistogramVec
	errors    *prometheus.CounterVec
	reachable atomic.Bool
	// probed is the last probe's error, nil before the first.
	probed atomic.Pointer[error]
}

// ops are the calls of Nomad's API, the values of the label "call".
func ops() []string {
	return []string{
		opReadMark, opWriteMark, opListClients, opReadClient, opProbe,
		"create volume", "delete volume", "list volumes", "read volume", "list jobs", "list spare jobs",
		"read job", "register job", "stop job", "revert job", "deregister job", "raise job", "tag version",
		"untag version", "read tagged version", "list job's allocations",
		"list purged job's allocations", "list what clients run",
		"list evaluations", "list allocations", "list whole allocations",
	}
}

func newMetrics(r prometheus.Registerer) *metrics {
	factory := promauto.With(r)
	m := &metrics{
		calls: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "bivouac_nomad_call_duration_seconds",
			Help:    "Duration of calls of Nomad's API, failed ones included.",
			Buckets: []float64{.001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"call"}),
		errors: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_nomad_errors_total",
			Help: "Failed calls of Nomad's API, by kind of error. The probe counts too.",
		}, []string{"kind"}),
	}
	for _, op := range ops() {
		m.calls.WithLabelValues(op)
	}
	for _, kind := range []string{"unreachable", "timeout", "denied", "refused", "not_found", "conflict", "failed"} {
		m.errors.WithLabelValues(kind)
	}
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "bivouac_nomad_reachable",
		Help: "1 while Nomad answers this node and has a leader. It is probed every five seconds.",
	}, func() float64 {
		if m.reachable.Load() {
			return 1
		}
		return 0
	})
	return m
}

// observe records one call: the client library's error, and mapError's.
func (m *metrics) observe(op string, begin time.Time, raw, err error) {
	m.calls.WithLabelValues(op).Observe(time.Since(begin).Seconds())
	if kind := errorKind(raw, err); kind != "" {
		m.errors.WithLabelValues(kind).Inc()
	}
}

// errorKind returns the label of an error, "" for none and for a caller that gave up.
func errorKind(raw, err error) string {
	var denied *scheduler.Denied
	var refused *scheduler.Failure
	var answered api.UnexpectedResponseError
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return ""
	case errors.Is(raw, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, errNotFound):
		return "not_found"
	case errors.As(err, &denied):
		return "denied"
	case errors.As(err, &refused):
		return "refused"
	case fsm.CodeOf(err) == fsm.CodeConflict:
		return "conflict"
	case !errors.As(raw, &answered) || !answered.HasStatusCode():
		return "unreachable"
	}
	return "failed"
}

// Probe asks whether Nomad answers until ctx ends, for the metrics. A node that does not lead calls
// Nomad only so.
func (r *Runner) Probe(ctx context.Context) error {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		if err := r.askLeader(ctx); ctx.Err() == nil {
			r.metrics.reachable.Store(err == nil)
			r.metrics.probed.Store(&err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Reachable is nil when Nomad answered the last probe and had a leader. It asks nothing.
func (r *Runner) Reachable() error {
	if err := r.metrics.probed.Load(); err != nil {
		return *err
	}
	return errors.New("not asked yet")
}

// askLeader asks Nomad for its leader, which needs no token. The error is the client library's.
func (r *Runner) askLeader(ctx context.Context) (raw error) {
	ctx, cancel := context.WithTimeout(ctx, probeInterval)
	defer cancel()
	_ = r.call(ctx, opProbe, func(ctx context.Context) error { // counts it
		var leader string
		_, raw = r.client.Raw().Query("/v1/status/leader", &leader, query(ctx))
		if raw == nil && leader == "" {
			raw = errors.New("it has no leader")
		}
		return raw
	})
	return raw
}

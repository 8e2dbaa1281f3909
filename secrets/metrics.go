package secrets

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of the Vault store.
type metrics struct {
	duration *prometheus.HistogramVec
	session  prometheus.Gauge
	logins   *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "bivouac_secret_store_duration_seconds",
			Help:    "Duration of operations on the secret store, by operation (write, read, delete, undelete, collect, mark, health, sign) and outcome (ok, not_found, unavailable, invalid, conflict, error).",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"operation", "outcome"}),
		session: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "bivouac_secret_store_session",
			Help: "1 while this node is logged in to Vault, otherwise 0.",
		}),
		logins: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_secret_store_logins_total",
			Help: "Logins to Vault, by outcome (ok, failed).",
		}, []string{"outcome"}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.duration, m.session, m.logins} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) observe(operation string, begun time.Time, err error) {
	m.duration.WithLabelValues(operation, outcome(err)).Observe(time.Since(begun).Seconds())
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrNotFound):
		return "not_found"
	case errors.Is(err, ErrUnavailable):
		return "unavailable"
	case errors.Is(err, ErrInvalid):
		return "invalid"
	case errors.Is(err, ErrConflict):
		return "conflict"
	}
	return "error"
}

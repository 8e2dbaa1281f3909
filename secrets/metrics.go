package secrets

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the metrics of the Vault store.
type metrics struct {
	duration *prometheus.HistogramVec
	errors   *prometheus.CounterVec
	logins   *prometheus.CounterVec
	// loggedIn and reachable are what the gauges show.
	loggedIn, reachable atomic.Bool
	// probed is the last probe's error, nil before the first.
	probed atomic.Pointer[error]
}

func newMetrics(r prometheus.Registerer) *metrics {
	factory := promauto.With(r)
	m := &metrics{
		duration: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "bivouac_secret_store_duration_seconds",
			Help:    "Duration of operations on the secret store, failed ones included.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"operation"}),
		errors: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_secret_store_errors_total",
			Help: "Failed operations on the secret store, by kind of error. The health probe counts too.",
		}, []string{"kind"}),
		logins: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_secret_store_logins_total",
			Help: "Logins to Vault, by outcome.",
		}, []string{"outcome"}),
	}
	for _, operation := range []string{
		"write",
		"read",
		"newest",
		"delete",
		"undelete",
		"collect",
		"mark",
		"health",
		"sign",
	} {
		m.duration.WithLabelValues(operation)
	}
	for _, kind := range []string{
		"sealed",
		"unreachable",
		"timeout",
		"denied",
		"unavailable",
		"not_found",
		"conflict",
		"invalid",
		"other",
	} {
		m.errors.WithLabelValues(kind)
	}
	for _, outcome := range []string{"ok", "failed"} {
		m.logins.WithLabelValues(outcome)
	}
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "bivouac_secret_store_session",
		Help: "1 while this node is logged in to Vault and Vault serves.",
	}, func() float64 { return truth(m.loggedIn.Load() && m.reachable.Load()) })
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "bivouac_secret_store_reachable",
		Help: "1 while Vault answers this node and is unsealed. It is probed every five seconds.",
	}, func() float64 { return truth(m.reachable.Load()) })
	return m
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// observe records one operation, and what it says about Vault.
func (m *metrics) observe(operation string, begun time.Time, err error) {
	m.duration.WithLabelValues(operation).Observe(time.Since(begun).Seconds())
	kind := errorKind(err)
	switch kind {
	case "canceled":
		return
	case "":
		m.reachable.Store(true)
		return
	case "sealed", "unreachable":
		m.reachable.Store(false)
	}
	m.errors.WithLabelValues(kind).Inc()
}

// errorKind returns the label of an error, "" for none and "canceled" for a caller that gave up.
func errorKind(err error) string {
	var denied *DeniedError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, errSealed):
		return "sealed"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, errUnreachable):
		return "unreachable"
	case errors.As(err, &denied):
		return "denied"
	case errors.Is(err, ErrNotFound):
		return "not_found"
	case errors.Is(err, ErrInvalid):
		return "invalid"
	case errors.Is(err, ErrConflict):
		return "conflict"
	case errors.Is(err, ErrUnavailable):
		return "unavailable"
	}
	return "other"
}

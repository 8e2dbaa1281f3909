package httpapi

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the API's metrics. Labels hold route patterns instead of paths, which bounds their
// number.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight prometheus.Gauge
	// connections are open. refused got a 503; dropped gave way to a newcomer.
	connections      prometheus.Gauge
	refused, dropped prometheus.Counter
	// unlogged counts the failed requests without a log line.
	unlogged prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_http_requests_total",
			Help: "Requests served, by route pattern, method and status.",
		}, []string{"route", "method", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "bivouac_http_request_duration_seconds",
			Help:    "Time to serve a request, by route pattern.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"route"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "bivouac_http_requests_in_flight",
			Help: "Requests being served now.",
		}),
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "bivouac_http_connections",
			Help: "Open connections of clients.",
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_http_connections_refused_total",
			Help: "Connections answered 503 because limits { connections } or connections_per_address was reached.",
		}),
		unlogged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_http_requests_not_logged_total",
			Help: "Failed requests without a line in the log, of which there are at most ten a second.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_http_connections_dropped_total",
			Help: "Connections without a request in progress that were closed for new ones.",
		}),
	}
	return m, errors.Join(r.Register(m.requests), r.Register(m.duration), r.Register(m.inFlight),
		r.Register(m.connections), r.Register(m.refused), r.Register(m.dropped), r.Register(m.unlogged))
}

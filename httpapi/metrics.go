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
	}
	return m, errors.Join(r.Register(m.requests), r.Register(m.duration), r.Register(m.inFlight))
}

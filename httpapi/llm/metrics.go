package llm

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"bivouac.dev/bivouac/fsm"
)

// maxModels bounds the label of models, maxUserModels those that one user adds: clients choose the
// names, and an endpoint of their own answers to any.
const maxModels, maxUserModels = 64, 8

// otherModel is the label of what is above maxModels, or no name for a label.
const otherModel = fsm.OtherModel

// metrics are the gateway's metrics. They have no users.
type metrics struct {
	requests *prometheus.CounterVec
	tokens   *prometheus.CounterVec
	cost     *prometheus.CounterVec
	first    *prometheus.HistogramVec
	duration *prometheus.HistogramVec
	refused  *prometheus.CounterVec
	open     prometheus.Gauge
	waiting  prometheus.Gauge

	mu     sync.Mutex
	models map[string]bool
	// added counts the models by the user whose request was the first for it.
	added map[string]int
}

func newMetrics(r prometheus.Registerer) *metrics {
	factory := promauto.With(r)
	seconds := []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 1200}
	m := &metrics{
		requests: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_llm_requests_total",
			Help: "Requests that the model gateway sent to an endpoint, by model and class of status (none: no answer).",
		}, []string{"model", "status"}),
		tokens: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_llm_tokens_total",
			Help: "Tokens by model and kind: input, output, cached (of the input, read from the vendor's cache).",
		}, []string{"model", "kind"}),
		cost: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_llm_cost_dollars_total",
			Help: "What the requests cost by the price table, in US dollars, by model.",
		}, []string{"model"}),
		first: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "bivouac_llm_first_byte_duration_seconds", Buckets: seconds,
			Help: "Time from a request to the first byte of the model's answer.",
		}, []string{"model"}),
		duration: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "bivouac_llm_request_duration_seconds", Buckets: seconds,
			Help: "Time from a request to the end of the model's answer.",
		}, []string{"model"}),
		refused: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_llm_refused_total",
			Help: "Requests that the model gateway answered itself, by reason.",
		}, []string{"reason"}),
		open: factory.NewGauge(prometheus.GaugeOpts{
			Name: "bivouac_llm_requests_open",
			Help: "Requests to models that are in progress on this node.",
		}),
		waiting: factory.NewGauge(prometheus.GaugeOpts{
			Name: "bivouac_llm_requests_waiting",
			Help: "Requests to models that wait on this node for a slot of their server (llm { servers }).",
		}),
		models: map[string]bool{}, added: map[string]int{},
	}
	for _, reason := range reasons() {
		m.refused.WithLabelValues(reason)
	}
	m.start(otherModel)
	return m
}

// start makes the series of a model.
func (m *metrics) start(model string) {
	for _, status := range []string{"2xx", "4xx", "5xx", "none"} {
		m.requests.WithLabelValues(model, status)
	}
	for _, kind := range []string{"input", "output", "cached"} {
		m.tokens.WithLabelValues(model, kind)
	}
	m.cost.WithLabelValues(model)
	m.first.WithLabelValues(model)
	m.duration.WithLabelValues(model)
}

// label returns the label of a model: its name if it is among the first that answered (maxModels).
func (m *metrics) label(user, model string, answered bool) string {
	if len(model) > 128 || model == "" || slices.ContainsFunc([]byte(model), func(b byte) bool {
		return b < '!' ||
			b > '~'
	}) {
		return otherModel
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.models[model] {
		return model
	}
	if !answered || len(m.models) >= maxModels || m.added[user] >= maxUserModels {
		return otherModel
	}
	m.added[user]++
	m.models[model] = true
	m.start(model)
	return model
}

// answered counts a request that was sent, and returns the model's label.
func (m *metrics) answered(
	user, model string,
	status int,
	used tokens,
	dollars float64,
	first, took time.Duration,
) (label string) {
	label = m.label(user, model, status/100 == 2) // only an answer shows that there is such a model
	class := "none"
	if status > 0 {
		class = strconv.Itoa(status/100) + "xx"
	}
	m.requests.WithLabelValues(label, class).Inc()
	m.tokens.WithLabelValues(label, "input").Add(float64(used.Input))
	m.tokens.WithLabelValues(label, "output").Add(float64(used.Output))
	m.tokens.WithLabelValues(label, "cached").Add(float64(used.Cached))
	m.cost.WithLabelValues(label).Add(dollars)
	if first > 0 {
		m.first.WithLabelValues(label).Observe(first.Seconds())
	}
	m.duration.WithLabelValues(label).Observe(took.Seconds())
	return label
}

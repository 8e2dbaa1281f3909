package proxy

import (
	"io"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"bivouac.dev/bivouac/fsm"
)

// metrics are the proxy's metrics. Ports outside PROTOCOL.md, "Ports" count as "other", which
// bounds the labels.
type metrics struct {
	requests *prometheus.CounterVec
	streams  *prometheus.GaugeVec
	bytes    *prometheus.CounterVec
	wakes    *prometheus.CounterVec
	cut      prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	factory := promauto.With(r)
	m := &metrics{
		requests: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_proxy_requests_total",
			Help: "Requests to sandboxes through the proxy, by port and class of status.",
		}, []string{"port", "status"}),
		streams: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "bivouac_proxy_streams_open",
			Help: "Upgraded connections and event streams to sandboxes that are open now, by port.",
		}, []string{"port"}),
		bytes: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_proxy_bytes_total",
			Help: "Bytes of bodies and streams, by port and direction (in is to the sandbox).",
		}, []string{"port", "direction"}),
		wakes: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_proxy_wakes_total",
			Help: "Paused sandboxes resumed because of traffic, by outcome.",
		}, []string{"outcome"}),
		cut: factory.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_proxy_connections_cut_total",
			Help: "Upgraded connections, other than agent servers' WebSockets, " +
				"that were open when a stop's drain_timeout ended.",
		}),
	}
	m.start()
	return m
}

// start makes the series of all known labels, so that they exist before their first event.
func (m *metrics) start() {
	for _, port := range []string{fsm.PortAgentServer, PortVSCode, PortWorker1, PortWorker2, "other", "none"} {
		for _, class := range []string{"1xx", "2xx", "3xx", "4xx", "5xx"} {
			m.requests.WithLabelValues(port, class)
		}
		m.streams.WithLabelValues(port)
		m.bytes.WithLabelValues(port, "in")
		m.bytes.WithLabelValues(port, "out")
	}
	m.wakes.WithLabelValues("done")
	m.wakes.WithLabelValues("failed")
}

func (m *metrics) wake(err error) {
	outcome := "done"
	if err != nil {
		outcome = "failed"
	}
	m.wakes.WithLabelValues(outcome).Inc()
}

// request counts a finished request.
func (m *metrics) request(port string, status int) {
	m.requests.WithLabelValues(portLabel(port), strconv.Itoa(status/100)+"xx").Inc()
}

// portLabel maps a port to its label. "" is a request that was refused before its port was known.
func portLabel(port string) string {
	switch {
	case port == "":
		return "none"
	case slices.Contains([]string{fsm.PortAgentServer, PortVSCode, PortWorker1, PortWorker2}, port):
		return port
	}
	return "other"
}

// touchEvery is the least time between two activity reports of one stream.
const touchEvery = 5 * time.Second

// traffic counts one session's bytes and reports its activity. A nil traffic does nothing.
type traffic struct {
	in, out  prometheus.Counter
	sandbox  string
	activity Activity
	last     atomic.Int64
}

func (d *Proxy) newTraffic(sandbox, port string) *traffic {
	t := &traffic{
		in: d.metrics.bytes.WithLabelValues(portLabel(port), "in"), out: d.metrics.bytes.WithLabelValues(portLabel(port),
			"out"),
		sandbox: sandbox, activity: d.cfg.Activity,
	}
	t.touch()
	return t
}

// touch reports activity, at most once per touchEvery.
func (t *traffic) touch() {
	if t.activity == nil {
		return
	}
	now, last := time.Now().UnixNano(), t.last.Load()
	if now-last >= int64(touchEvery) && t.last.CompareAndSwap(last, now) {
		t.activity.Touched(t.sandbox)
	}
}

func (t *traffic) received(n int) {
	if t != nil && n > 0 {
		t.in.Add(float64(n))
		t.touch()
	}
}

func (t *traffic) sent(n int) {
	if t != nil && n > 0 {
		t.out.Add(float64(n))
		t.touch()
	}
}

// countedBody counts a request's body.
type countedBody struct {
	io.ReadCloser
	traffic *traffic
}

// Read implements io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.traffic.received(n)
	return n, err
}

package scheduler

import "github.com/prometheus/client_golang/prometheus"

// bytesCollector reports what users keep in the state.
type bytesCollector struct{ store Store }

func (bytesCollector) descs() (used, limit, largest *prometheus.Desc) {
	return prometheus.NewDesc("bivouac_state_bytes", "What all users together keep in the state, in bytes.", nil, nil),
		prometheus.NewDesc("bivouac_state_limit_bytes",
			"The limit of bivouac_state_bytes; at it, requests that add something are answered 429.", nil, nil),
		prometheus.NewDesc("bivouac_state_largest_user_bytes",
			"What the user who keeps most in the state keeps there, in bytes.", nil, nil)
}

// Describe implements prometheus.Collector.
func (c bytesCollector) Describe(ch chan<- *prometheus.Desc) {
	used, limit, largest := c.descs()
	ch <- used
	ch <- limit
	ch <- largest
}

// Collect implements prometheus.Collector.
func (c bytesCollector) Collect(ch chan<- prometheus.Metric) {
	used, limit, largest := c.descs()
	v := c.store.View()
	_, most := v.StateLimits("")
	for d, n := range map[*prometheus.Desc]int{used: v.Usage("").StateBytes, limit: most, largest: v.LargestState()} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n))
	}
}

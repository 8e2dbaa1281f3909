package raftmetrics

import (
	"strings"
	"time"

	gometrics "github.com/hashicorp/go-metrics/compat"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// libraryMetrics are those of hashicorp/raft's metrics that are shown, under names of ours. The
// library has one sink in a process, so a process with several nodes can't tell them apart.
type libraryMetrics struct {
	samples  map[string]prometheus.Observer
	counters map[string]prometheus.Counter
}

// CollectLibrary registers what hashicorp/raft measures. Call it once in a process of one node,
// before New.
func CollectLibrary(r prometheus.Registerer) error {
	factory := promauto.With(r)
	s := &libraryMetrics{samples: map[string]prometheus.Observer{}, counters: map[string]prometheus.Counter{}}
	for _, m := range librarySamples() {
		s.samples[m.key] = factory.NewHistogram(prometheus.HistogramOpts{
			Name: m.name, Help: m.help + " (hashicorp/raft)",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		})
	}
	for _, m := range []libraryMetric{
		{"raft.state.candidate", "bivouac_raft_elections_total", "Elections that this node began."},
		{"raft.transition.heartbeat_timeout", "bivouac_raft_heartbeat_timeouts_total",
			"Heartbeat timeouts: this follower did not hear its leader."},
		{"raft.transition.leader_lease_timeout", "bivouac_raft_leader_lease_timeouts_total",
			"Leases that this leader lost, because no majority answered in time."},
	} {
		s.counters[m.key] = factory.NewCounter(prometheus.CounterOpts{Name: m.name, Help: m.help + " (hashicorp/raft)"})
	}
	conf := gometrics.DefaultConfig("")
	conf.EnableHostname, conf.EnableRuntimeMetrics = false, false
	_, err := gometrics.NewGlobal(conf, s)
	return err
}

// libraryMetric is a metric by the library's key.
type libraryMetric struct{ key, name, help string }

// librarySamples are the durations that the library measures.
func librarySamples() []libraryMetric {
	return []libraryMetric{
		{"raft.commitTime", "bivouac_raft_commit_duration_seconds",
			"Time from the start of an entry on the leader until a majority has it."},
		{"raft.fsm.enqueue", "bivouac_raft_fsm_enqueue_duration_seconds",
			"Time that committed entries wait until the store takes them."},
		{"raft.leader.dispatchLog", "bivouac_raft_dispatch_duration_seconds",
			"Time for the leader to write entries to its own log."},
		{"raft.replication.appendEntries.rpc", "bivouac_raft_append_entries_duration_seconds",
			"Time until a member answered entries of this leader."},
		{"raft.replication.heartbeat", "bivouac_raft_heartbeat_duration_seconds",
			"Time until a member answered a heartbeat of this leader."},
		{"raft.replication.installSnapshot", "bivouac_raft_install_snapshot_duration_seconds",
			"Time to send a snapshot to a member."},
		{"raft.leader.lastContact", "bivouac_raft_leader_last_contact_duration_seconds",
			"Time since this leader last heard from a majority."},
		{"raft.rpc.appendEntries", "bivouac_raft_append_entries_received_duration_seconds",
			"Time to handle entries of a leader."},
		{"raft.rpc.appendEntries.storeLogs", "bivouac_raft_store_entries_duration_seconds",
			"Time for a follower to write a leader's entries to its own log."},
		{"raft.rpc.requestVote", "bivouac_raft_request_vote_received_duration_seconds",
			"Time to handle a request for a vote."},
		{"raft.rpc.installSnapshot", "bivouac_raft_install_snapshot_received_duration_seconds",
			"Time to take a leader's snapshot."},
		{"raft.snapshot.takeSnapshot", "bivouac_raft_snapshot_duration_seconds", "Time to take a snapshot."},
		{"raft.compactLogs", "bivouac_raft_compact_log_duration_seconds",
			"Time to delete the entries that a snapshot covers."},
		{"raft.fsm.restore", "bivouac_raft_restore_duration_seconds", "Time to load a snapshot into the store."},
	}
}

// libraryUnit is the unit of the library's samples.
const libraryUnit = float64(time.Millisecond) / float64(time.Second)

// AddSample implements gometrics.MetricSink.
func (s *libraryMetrics) AddSample(key []string, value float32) {
	if o := s.samples[strings.Join(key, ".")]; o != nil {
		o.Observe(float64(value) * libraryUnit)
	}
}

// AddSampleWithLabels implements gometrics.MetricSink. A label is a peer, and ours have none.
func (s *libraryMetrics) AddSampleWithLabels(key []string, value float32, _ []gometrics.Label) {
	s.AddSample(key, value)
}

// IncrCounter implements gometrics.MetricSink.
func (s *libraryMetrics) IncrCounter(key []string, value float32) {
	if c := s.counters[strings.Join(key, ".")]; c != nil {
		c.Add(float64(value))
	}
}

// IncrCounterWithLabels implements gometrics.MetricSink.
func (s *libraryMetrics) IncrCounterWithLabels(key []string, value float32, _ []gometrics.Label) {
	s.IncrCounter(key, value)
}

// SetGauge implements gometrics.MetricSink.
func (*libraryMetrics) SetGauge([]string, float32) {}

// SetGaugeWithLabels implements gometrics.MetricSink.
func (*libraryMetrics) SetGaugeWithLabels([]string, float32, []gometrics.Label) {}

// EmitKey implements gometrics.MetricSink.
func (*libraryMetrics) EmitKey([]string, float32) {}

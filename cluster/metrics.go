package cluster

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/fsm"
)

// metrics are the node's bivouac_raft_* metrics.
type metrics struct {
	node *Node

	leaderChanges   prometheus.Counter
	proposeDuration *prometheus.HistogramVec
	forwarded       *prometheus.CounterVec
	readRounds      prometheus.Counter
	readWaiters     prometheus.Gauge
	wrongAnswers    prometheus.Counter
	leaderRestarts  prometheus.Counter
	refusedMessages *prometheus.CounterVec
	leadershipLost  *prometheus.CounterVec
	readDuration    prometheus.Histogram
	apply, logWrite prometheus.Histogram

	// descs are of what Collect reads from the node, by name.
	descs map[string]*prometheus.Desc
}

func newMetrics(n *Node) *metrics {
	m := &metrics{
		node: n, descs: descs(),
		leadershipLost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_raft_leadership_lost_total",
			Help: "Terms that this node led and lost: lease (no majority answered in time), " +
				"newer_term (another node was elected, or leadership was handed over), other.",
		}, []string{"reason"}),
		leaderChanges: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_raft_leader_changes_total", Help: "Changes of the leader this node knows, losses included.",
		}),
		proposeDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "bivouac_raft_propose_duration_seconds",
			Help:    "Duration of a write, by outcome: ok, refused, or an error code of the cluster's.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}, []string{"outcome"}),
		forwarded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_raft_forwarded_total", Help: "Commands sent to the leader: answered, lost (no answer), not_sent.",
		}, []string{"result"}),
		readRounds: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_raft_read_rounds_total",
			Help: "Rounds of asking the leader for an index; reads that wait together share one.",
		}),
		readWaiters: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "bivouac_raft_read_waiters", Help: "Linearizable reads in progress.",
		}),
		wrongAnswers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_raft_wrong_answers_total",
			Help: "Connections and Raft messages that another member answered than was asked; such an answer is ignored.",
		}),
		refusedMessages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_raft_refused_messages_total",
			Help: "Raft messages that this node refused: forged (of another member than the connection's), " +
				"sender (of no voter known here, or not the leader), term (far above this node's), " +
				"unelected (no majority says that it voted for the sender).",
		}, []string{"reason"}),
		leaderRestarts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_raft_leader_restarts_seen_total", Help: "Leaders dropped because their process was restarted.",
		}),
		readDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "bivouac_raft_read_duration_seconds",
			Help:    "Time until a linearizable read had its view, failed ones included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
		apply: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "bivouac_raft_apply_duration_seconds", Help: "Time to apply one batch of committed entries to the store.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}),
		logWrite: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "bivouac_raft_log_write_duration_seconds", Help: "Time to append entries to this node's log, fsync included.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 3, 11),
		}),
	}
	m.begin()
	return m
}

// descs describes what Collect reads from the node.
func descs() map[string]*prometheus.Desc {
	all := map[string]*prometheus.Desc{}
	add := func(name, help string, labels ...string) {
		all[name] = prometheus.NewDesc(name, help, labels, nil)
	}
	add("bivouac_raft_state", "1 for the state this node is in.", "state")
	add("bivouac_raft_leader_known", "1 while this node knows a leader.")
	add("bivouac_raft_term", "Current term.")
	add("bivouac_raft_commit_index", "Highest index known to be committed.")
	add("bivouac_raft_applied_index", "Index of the store.")
	add("bivouac_raft_last_contact_seconds", "Time since the leader was heard, or since the start; 0 on the leader.")
	add("bivouac_raft_members", "Members in the configuration.", "voter")
	add("bivouac_raft_peer_lag_entries", "Entries that a member has not acknowledged yet. The leader alone has it.",
		"peer")
	add("bivouac_raft_log_bytes", "Size of the entries in this node's log, in bytes; raft { trailing_bytes } bounds it.")
	add("bivouac_raft_log_oldest_timestamp_seconds",
		"When the oldest entry in this node's log was appended, in Unix seconds; 0 for an empty log.")
	add("bivouac_raft_snapshot_bytes", "Size of this node's newest Raft snapshot, in bytes; 0 without one.")
	add("bivouac_raft_snapshot_index", "Index of this node's newest Raft snapshot; 0 without one.")
	add("bivouac_raft_snapshot_timestamp_seconds",
		"When this node's newest Raft snapshot was written, in Unix seconds; 0 without one.")
	add("bivouac_raft_ready", "1 when the node can serve.")
	add("bivouac_protocol_version", "The cluster's protocol version, and the newest that this node's program knows.", "of")
	return all
}

// begin makes the series of all known labels, so that they exist before their first event.
func (m *metrics) begin() {
	codes := []fsm.Code{
		fsm.CodeNoLeader,
		fsm.CodeOutcomeUnknown,
		fsm.CodeTimeout,
		fsm.CodeShuttingDown,
		fsm.CodeProtocol,
		fsm.CodeInternal,
	}
	for _, code := range append(codes, "ok", "refused") {
		m.proposeDuration.WithLabelValues(string(code))
	}
	for _, result := range []string{"answered", "lost", "not_sent"} {
		m.forwarded.WithLabelValues(result)
	}
	for _, reason := range []string{refusedForged, refusedSender, refusedTerm, refusedUnelected} {
		m.refusedMessages.WithLabelValues(reason)
	}
	for _, reason := range []string{lossLease, lossNewerTerm, lossOther} {
		m.leadershipLost.WithLabelValues(reason)
	}
}

// register adds the metrics while the node runs.
func (m *metrics) register(r prometheus.Registerer) (unregister func(), err error) {
	if r == nil {
		return func() {}, nil
	}
	collectors := []prometheus.Collector{
		m,
		m.leaderChanges,
		m.proposeDuration,
		m.forwarded,
		m.readRounds,
		m.readWaiters,
		m.wrongAnswers,
		m.leaderRestarts,
		m.refusedMessages,
		m.leadershipLost,
		m.readDuration,
		m.apply,
		m.logWrite,
	}
	unregister = func() {
		for _, c := range collectors {
			r.Unregister(c)
		}
	}
	for _, c := range collectors {
		if err := r.Register(c); err != nil {
			unregister()
			return nil, err
		}
	}
	return unregister, nil
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.node.Status()
	gauge := func(name string, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m.descs[name], prometheus.GaugeValue, v, labels...)
	}
	for _, state := range []string{StateLeader, StateFollower, StateCandidate, StateStopped} {
		gauge("bivouac_raft_state", truth(s.State == state), state)
	}
	gauge("bivouac_raft_leader_known", truth(s.LeaderID != ""))
	gauge("bivouac_raft_term", float64(s.Term))
	gauge("bivouac_raft_commit_index", float64(s.CommitIndex))
	gauge("bivouac_raft_applied_index", float64(s.AppliedIndex))
	switch {
	case s.State == StateLeader:
		gauge("bivouac_raft_last_contact_seconds", 0)
	case s.LastContact.IsZero():
		gauge("bivouac_raft_last_contact_seconds", time.Since(m.node.born).Seconds())
	default:
		gauge("bivouac_raft_last_contact_seconds", time.Since(s.LastContact).Seconds())
	}
	voters := 0
	for _, server := range s.Servers {
		if server.Voter {
			voters++
		}
		if s.State == StateLeader {
			acked := m.node.records.get(raft.ServerID(server.ID), s.Term, s.CommitIndex).Acked
			if server.ID == s.ID {
				acked = s.CommitIndex
			}
			gauge("bivouac_raft_peer_lag_entries", float64(s.CommitIndex-min(acked, s.CommitIndex)), server.Name)
		}
	}
	gauge("bivouac_raft_members", float64(voters), "true")
	gauge("bivouac_raft_members", float64(len(s.Servers)-voters), "false")
	bytes, _, _ := m.node.storage.LogBytes(0)
	gauge("bivouac_raft_log_bytes", float64(bytes))
	disk := m.node.onDisk.Load()
	gauge("bivouac_raft_log_oldest_timestamp_seconds", seconds(disk.oldest))
	gauge("bivouac_raft_snapshot_bytes", float64(disk.snapshotBytes))
	gauge("bivouac_raft_snapshot_index", float64(disk.snapshotIndex))
	gauge("bivouac_raft_snapshot_timestamp_seconds", seconds(disk.snapshotAt))
	gauge("bivouac_raft_ready", truth(m.node.Ready() == nil))
	gauge("bivouac_protocol_version", float64(s.ProtocolVersion), "cluster")
	gauge("bivouac_protocol_version", float64(s.KnownVersion), "program")
}

// seconds returns a time in Unix seconds, 0 for the zero time.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// proposed records one Propose.
func (m *metrics) proposed(begin time.Time, err error) {
	m.proposeDuration.WithLabelValues(outcomeLabel(err)).Observe(time.Since(begin).Seconds())
}

// outcomeLabel groups the errors of Propose: the cluster's own by code, all refusals of Apply as
// one.
func outcomeLabel(err error) string {
	var e *fsm.Error
	if !errors.As(err, &e) {
		return "ok"
	}
	switch e.Code {
	case fsm.CodeNoLeader,
		fsm.CodeOutcomeUnknown,
		fsm.CodeTimeout,
		fsm.CodeShuttingDown,
		fsm.CodeProtocol,
		fsm.CodeInternal:
		return string(e.Code)
	}
	return "refused"
}

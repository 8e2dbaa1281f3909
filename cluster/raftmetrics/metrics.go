// Package raftmetrics has the bivouac_raft_* metrics of a node, and those of hashicorp/raft itself.
package raftmetrics

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/fsm"
)

// The reasons why a leader lost its term, as values of a metric's label.
const (
	// LossLease: no majority of the voters answered within Config.LeaderLeaseTimeout.
	LossLease = "lease"
	// LossNewerTerm: another node was elected, or asked for votes, or leadership was handed over.
	LossNewerTerm = "newer_term"
	// LossOther: this node is no voter any more.
	LossOther = "other"
)

// The reasons for which a message of Raft's is refused, as values of a metric's label.
const (
	// RefusedForged: the message names another member than its connection.
	RefusedForged = "forged"
	// RefusedSender: the sender is no voter that this node knows, or not the leader.
	RefusedSender = "sender"
	// RefusedTerm: the term is more than raftfix.MaxTermStep above this node's.
	RefusedTerm = "term"
	// RefusedUnelected: nothing proves that a majority voted for the sender in the term.
	RefusedUnelected = "unelected"
)

// Metrics are the node's bivouac_raft_* metrics.
type Metrics struct {
	states []string
	read   func() Reading
	disk   atomic.Pointer[disk]

	LeaderChanges   prometheus.Counter
	proposeDuration *prometheus.HistogramVec
	Forwarded       *prometheus.CounterVec
	ReadRounds      prometheus.Counter
	ReadWaiters     prometheus.Gauge
	WrongAnswers    prometheus.Counter
	LeaderRestarts  prometheus.Counter
	RefusedMessages *prometheus.CounterVec
	LeadershipLost  *prometheus.CounterVec
	ReadDuration    prometheus.Histogram
	Apply, LogWrite prometheus.Histogram
	// EventsRefused and EventsFetched count events that found no room, and bytes that came from members.
	EventsRefused, EventsFetched prometheus.Counter

	// descs are of what Collect reads from the node, by name.
	descs map[string]*prometheus.Desc
}

// Reading is what a scrape reads from the node.
type Reading struct {
	// State is one of the states that New was given.
	State                           string
	LeaderKnown, Ready              bool
	Term, CommitIndex, AppliedIndex uint64
	ProtocolVersion, KnownVersion   int
	Voters, Nonvoters               int
	// SinceContact is the time since the leader was heard, or since the start.
	SinceContact time.Duration
	// Lag is how many entries each member has not acknowledged, by its name; the leader's alone.
	Lag      map[string]uint64
	LogBytes int64
	// EventsMissing is how many bytes of events this node lacks, negative for not known yet; EventsFull that
	// its disk has no room for them.
	EventsMissing int64
	EventsFull    bool
}

// New makes the metrics of a node, which is in one of the states. read is called for each scrape.
func New(states []string, read func() Reading) *Metrics {
	m := &Metrics{
		states: states, read: read, descs: descs(),
		LeadershipLost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_raft_leadership_lost_total",
			Help: "Terms that this node led and lost: lease (no majority answered in time), " +
				"newer_term (another node was elected, or leadership was handed over), other.",
		}, []string{"reason"}),
		LeaderChanges: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_raft_leader_changes_total", Help: "Times that this node learned of another leader.",
		}),
		proposeDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "bivouac_raft_propose_duration_seconds",
			Help:    "Duration of a write, by outcome: ok, refused, or an error code of the cluster's.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}, []string{"outcome"}),
		Forwarded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_raft_forwarded_total", Help: "Commands sent to the leader: answered, lost (no answer), not_sent.",
		}, []string{"result"}),
		EventsRefused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_events_refused_total",
			Help: "Requests with events that this leader refused, because a voter's disk has no room.",
		}),
		EventsFetched: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_events_fetched_bytes_total",
			Help: "Bytes of events that this node lacked and fetched from members.",
		}),
		ReadRounds: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_raft_read_rounds_total",
			Help: "Rounds of asking the leader for an index; reads that wait together share one.",
		}),
		ReadWaiters: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "bivouac_raft_read_waiters", Help: "Linearizable reads in progress.",
		}),
		WrongAnswers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_raft_wrong_answers_total",
			Help: "Connections and Raft messages that another member answered than was asked; such an answer is ignored.",
		}),
		RefusedMessages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_raft_refused_messages_total",
			Help: "Raft messages that this node refused: forged (of another member than the connection's), " +
				"sender (of no voter known here, or not the leader), term (far above this node's), " +
				"unelected (no majority says that it voted for the sender).",
		}, []string{"reason"}),
		LeaderRestarts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_raft_leader_restarts_seen_total", Help: "Leaders dropped because their process was restarted.",
		}),
		ReadDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "bivouac_raft_read_duration_seconds",
			Help:    "Time until a linearizable read had its view, failed ones included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
		Apply: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "bivouac_raft_apply_duration_seconds", Help: "Time to apply one batch of committed entries to the store.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}),
		LogWrite: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "bivouac_raft_log_write_duration_seconds", Help: "Time to append entries to this node's log, fsync included.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 3, 11),
		}),
	}
	m.disk.Store(&disk{})
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
	add("bivouac_events_missing_bytes",
		"Bytes of events that this node lacks and fetches from members; -1 while it does not know.")
	add("bivouac_events_full", "1 while the disk of this node has no room for events: the cluster takes none.")
	add("bivouac_raft_ready", "1 when the node can serve.")
	add("bivouac_protocol_version", "The cluster's protocol version, and the newest that this node's program knows.", "of")
	return all
}

// begin makes the series of all known labels, so that they exist before their first event.
func (m *Metrics) begin() {
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
		m.Forwarded.WithLabelValues(result)
	}
	for _, reason := range []string{RefusedForged, RefusedSender, RefusedTerm, RefusedUnelected} {
		m.RefusedMessages.WithLabelValues(reason)
	}
	for _, reason := range []string{LossLease, LossNewerTerm, LossOther} {
		m.LeadershipLost.WithLabelValues(reason)
	}
}

// Register adds the metrics while the node runs.
func (m *Metrics) Register(r prometheus.Registerer) (unregister func(), err error) {
	if r == nil {
		return func() {}, nil
	}
	collectors := []prometheus.Collector{
		m,
		m.LeaderChanges,
		m.proposeDuration,
		m.Forwarded,
		m.EventsRefused,
		m.EventsFetched,
		m.ReadRounds,
		m.ReadWaiters,
		m.WrongAnswers,
		m.LeaderRestarts,
		m.RefusedMessages,
		m.LeadershipLost,
		m.ReadDuration,
		m.Apply,
		m.LogWrite,
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
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	now := m.read()
	gauge := func(name string, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m.descs[name], prometheus.GaugeValue, v, labels...)
	}
	for _, state := range m.states {
		gauge("bivouac_raft_state", truth(now.State == state), state)
	}
	gauge("bivouac_raft_leader_known", truth(now.LeaderKnown))
	gauge("bivouac_raft_term", float64(now.Term))
	gauge("bivouac_raft_commit_index", float64(now.CommitIndex))
	gauge("bivouac_raft_applied_index", float64(now.AppliedIndex))
	gauge("bivouac_raft_last_contact_seconds", now.SinceContact.Seconds())
	for peer, entries := range now.Lag {
		gauge("bivouac_raft_peer_lag_entries", float64(entries), peer)
	}
	gauge("bivouac_raft_members", float64(now.Voters), "true")
	gauge("bivouac_raft_members", float64(now.Nonvoters), "false")
	gauge("bivouac_raft_log_bytes", float64(now.LogBytes))
	disk := m.disk.Load()
	gauge("bivouac_raft_log_oldest_timestamp_seconds", seconds(disk.oldest))
	gauge("bivouac_raft_snapshot_bytes", float64(disk.snapshotBytes))
	gauge("bivouac_raft_snapshot_index", float64(disk.snapshotIndex))
	gauge("bivouac_raft_snapshot_timestamp_seconds", seconds(disk.snapshotAt))
	gauge("bivouac_events_missing_bytes", float64(now.EventsMissing))
	gauge("bivouac_events_full", truth(now.EventsFull))
	gauge("bivouac_raft_ready", truth(now.Ready))
	gauge("bivouac_protocol_version", float64(now.ProtocolVersion), "cluster")
	gauge("bivouac_protocol_version", float64(now.KnownVersion), "program")
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

// Proposed records one Propose.
func (m *Metrics) Proposed(begin time.Time, err error) {
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

package cluster

import (
	"errors"
	"time"

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
	leadershipLost  *prometheus.CounterVec

	state, term, commit, applied, contact, members, logSize, ready *prometheus.Desc
}

func newMetrics(n *Node) *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	m := &metrics{
		node: n,
		leadershipLost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_raft_leadership_lost_total",
			Help: "Terms that this node led and lost: lease (no majority answered in time), newer_term (another node was elected, or leadership was handed over), other.",
		}, []string{"reason"}),
		leaderChanges: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_raft_leader_changes_total", Help: "Changes of the leader this node knows, losses included.",
		}),
		proposeDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "bivouac_raft_propose_duration_seconds", Help: "Duration of Propose by outcome: ok, refused, or an error code of the cluster's.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}, []string{"outcome"}),
		forwarded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_raft_forwarded_total", Help: "Commands sent to the leader: answered, lost (no answer), not_sent.",
		}, []string{"result"}),
		readRounds: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_raft_read_rounds_total", Help: "Rounds of asking the leader for an index; reads that wait together share one.",
		}),
		readWaiters: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "bivouac_raft_read_waiters", Help: "Linearizable reads in progress.",
		}),
		wrongAnswers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_raft_wrong_answers_total", Help: "Connections and Raft messages that another member answered than was asked; such an answer is ignored.",
		}),
		leaderRestarts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bivouac_raft_leader_restarts_seen_total", Help: "Leaders dropped because their process was restarted.",
		}),
		state:   desc("bivouac_raft_state", "1 for the state this node is in.", "state"),
		term:    desc("bivouac_raft_term", "Current term."),
		commit:  desc("bivouac_raft_commit_index", "Highest index known to be committed."),
		applied: desc("bivouac_raft_applied_index", "Index of the store."),
		contact: desc("bivouac_raft_last_contact_seconds", "Time since the leader was heard; 0 on the leader."),
		members: desc("bivouac_raft_members", "Members in the configuration.", "voter"),
		logSize: desc("bivouac_raft_log_bytes", "Size of the entries in this node's log, in bytes; raft { trailing_bytes } bounds it."),
		ready:   desc("bivouac_raft_ready", "1 when the node can serve."),
	}
	for _, reason := range []string{lossLease, lossNewerTerm, lossOther} {
		m.leadershipLost.WithLabelValues(reason)
	}
	return m
}

// register adds the metrics while the node runs.
func (m *metrics) register(r prometheus.Registerer) (unregister func(), err error) {
	if r == nil {
		return func() {}, nil
	}
	collectors := []prometheus.Collector{m, m.leaderChanges, m.proposeDuration, m.forwarded, m.readRounds, m.readWaiters, m.wrongAnswers, m.leaderRestarts, m.leadershipLost}
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
	for _, d := range []*prometheus.Desc{m.state, m.term, m.commit, m.applied, m.contact, m.members, m.logSize, m.ready} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.node.Status()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, state := range []string{StateLeader, StateFollower, StateCandidate, StateStopped} {
		gauge(m.state, truth(s.State == state), state)
	}
	gauge(m.term, float64(s.Term))
	gauge(m.commit, float64(s.CommitIndex))
	gauge(m.applied, float64(s.AppliedIndex))
	if s.State == StateLeader {
		gauge(m.contact, 0)
	} else if !s.LastContact.IsZero() {
		gauge(m.contact, time.Since(s.LastContact).Seconds())
	}
	voters := 0
	for _, server := range s.Servers {
		if server.Voter {
			voters++
		}
	}
	gauge(m.members, float64(voters), "true")
	gauge(m.members, float64(len(s.Servers)-voters), "false")
	if bytes, _, known := m.node.storage.LogBytes(0); known {
		gauge(m.logSize, float64(bytes))
	}
	gauge(m.ready, truth(m.node.Ready() == nil))
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
	case fsm.CodeNoLeader, fsm.CodeOutcomeUnknown, fsm.CodeTimeout, fsm.CodeShuttingDown, fsm.CodeProtocol, fsm.CodeInternal:
		return string(e.Code)
	}
	return "refused"
}

package scheduler

import (
	"cmp"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/fsm"
)

// reasonCollector counts the sandboxes that have a reason: those in ERROR, and those that were
// paused without a request of their user.
type reasonCollector struct{ store Store }

func (reasonCollector) desc() *prometheus.Desc {
	return prometheus.NewDesc("bivouac_sandboxes_by_reason", "Sandboxes in ERROR by their reason, "+
		"and sandboxes in PAUSED that no request of their user paused.",
		[]string{"state", "reason"}, nil)
}

// Describe implements prometheus.Collector.
func (c reasonCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc() }

// Collect implements prometheus.Collector.
func (c reasonCollector) Collect(ch chan<- prometheus.Metric) {
	type label struct{ state, reason string }
	counts := map[label]int{}
	for _, reason := range reasons() {
		counts[label{string(fsm.SandboxError), reason}] = 0
	}
	for _, reason := range []string{
		fsm.PausedByIdle,
		fsm.PausedByMaxRunning,
		fsm.PausedByLimit,
		fsm.PausedByDisabled,
		fsm.ReasonClient,
	} {
		counts[label{string(fsm.SandboxPaused), reason}] = 0
	}
	for sb := range c.store.View().AllSandboxes() {
		reason := cmp.Or(sb.Status.Reason, sb.PausedBy)
		// A reason of a newer node counts nowhere: labels are those that this one knows.
		l := label{string(sb.State()), reason}
		if _, known := counts[l]; known && sb.Desired != fsm.DesiredDeleted {
			counts[l]++
		}
	}
	for l, n := range counts {
		ch <- prometheus.MustNewConstMetric(c.desc(), prometheus.GaugeValue, float64(n), l.state, l.reason)
	}
}

// unconvergedCollector reports the sandboxes that are not yet what was asked for.
type unconvergedCollector struct{ store Store }

func (unconvergedCollector) descs() (count, oldest *prometheus.Desc) {
	return prometheus.NewDesc("bivouac_sandboxes_unconverged",
			"Sandboxes that are not yet what was asked for, by wish. One in ERROR counts as settled.", []string{"wish"}, nil),
		prometheus.NewDesc("bivouac_sandboxes_unconverged_oldest_seconds",
			"Age of the oldest wish for a sandbox that is not yet true, by wish; 0 without one.", []string{"wish"}, nil)
}

// Describe implements prometheus.Collector.
func (c unconvergedCollector) Describe(ch chan<- *prometheus.Desc) {
	count, oldest := c.descs()
	ch <- count
	ch <- oldest
}

// Collect implements prometheus.Collector.
func (c unconvergedCollector) Collect(ch chan<- prometheus.Metric) {
	count, oldest := c.descs()
	now := time.Now()
	counts, ages := map[fsm.Desired]int{}, map[fsm.Desired]time.Duration{}
	for sb := range c.store.View().AllSandboxes() {
		if !converged(sb) {
			counts[sb.Desired]++
			ages[sb.Desired] = max(ages[sb.Desired], now.Sub(sb.DesiredAt))
		}
	}
	for _, wish := range []fsm.Desired{fsm.DesiredRunning, fsm.DesiredPaused, fsm.DesiredDeleted} {
		ch <- prometheus.MustNewConstMetric(count, prometheus.GaugeValue, float64(counts[wish]), string(wish))
		ch <- prometheus.MustNewConstMetric(oldest, prometheus.GaugeValue, ages[wish].Seconds(), string(wish))
	}
}

// converged reports whether the leader has nothing more to do for what was asked.
func converged(sb *fsm.Sandbox) bool {
	switch sb.Desired {
	case fsm.DesiredRunning:
		return sb.State() != fsm.SandboxStarting
	case fsm.DesiredPaused:
		return sb.Status.State == fsm.SandboxPaused
	case fsm.DesiredDeleted:
	}
	return false
}

// rowCollector counts rows of the store. It keeps the counts of the last index, because a scrape
// of a cluster at rest finds the same.
type rowCollector struct {
	store Store

	mu            sync.Mutex
	counted       bool
	index         uint64
	tables        map[string]int
	tasks         map[fsm.StartTaskStatus]int
	conversations map[string]int
}

func (*rowCollector) descs() (rows, tasks, conversations *prometheus.Desc) {
	return prometheus.NewDesc("bivouac_store_rows", "Rows of the store, by table.", []string{"table"}, nil),
		prometheus.NewDesc("bivouac_start_tasks", "Start tasks in the store, by status.", []string{"status"}, nil),
		prometheus.NewDesc("bivouac_conversations", "Conversations in the store, by the status of their sandbox.",
			[]string{"status"}, nil)
}

// Describe implements prometheus.Collector.
func (c *rowCollector) Describe(ch chan<- *prometheus.Desc) {
	rows, tasks, conversations := c.descs()
	ch <- rows
	ch <- tasks
	ch <- conversations
}

// Collect implements prometheus.Collector.
func (c *rowCollector) Collect(ch chan<- prometheus.Metric) {
	rows, tasks, conversations := c.descs()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count(c.store.View())
	gauge := func(d *prometheus.Desc, n int, label string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), label)
	}
	for table, n := range c.tables {
		gauge(rows, n, table)
	}
	for status, n := range c.tasks {
		gauge(tasks, n, string(status))
	}
	for status, n := range c.conversations {
		gauge(conversations, n, status)
	}
}

// count counts what v has. The caller holds mu.
func (c *rowCollector) count(v *fsm.View) {
	if c.counted && v.Index() == c.index {
		return
	}
	c.counted, c.index, c.tables = true, v.Index(), v.Rows()
	c.tasks = map[fsm.StartTaskStatus]int{
		fsm.StartTaskWorking: 0, fsm.StartTaskWaitingForSandbox: 0, fsm.StartTaskPreparingRepository: 0,
		fsm.StartTaskRunningSetupScript: 0, fsm.StartTaskSettingUpGitHooks: 0, fsm.StartTaskSettingUpSkills: 0,
		fsm.StartTaskStartingConversation: 0, fsm.StartTaskReady: 0, fsm.StartTaskError: 0,
	}
	for t := range v.AllStartTasks() {
		c.tasks[t.Status]++
	}
	const missing = "MISSING"
	c.conversations = map[string]int{
		string(fsm.SandboxStarting): 0, string(fsm.SandboxRunning): 0, string(fsm.SandboxPaused): 0,
		string(fsm.SandboxError): 0, missing: 0,
	}
	for conv := range v.AllConversations() {
		status := missing
		if sb := v.SandboxAny(conv.SandboxID); sb != nil && sb.Desired != fsm.DesiredDeleted {
			status = string(sb.State())
		}
		c.conversations[status]++
	}
}

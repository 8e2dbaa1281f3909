package scheduler_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

const (
	clusterID = "cluster-1"
	specID    = "plain"
)

// world is a scheduler with all its dependencies, in fake time.
type world struct {
	*testing.T
	cluster *nomadtest.Cluster
	nomad   *nomadtest.Nomad
	// backend replaces nomad towards the scheduler, when set.
	backend scheduler.Backend
	secrets *nomadtest.Secrets
	cfg     scheduler.Config
	reg     *prometheus.Registry
	term    uint64
	stop    func()
}

// options are those of a Nomad as measured.
func options() nomadtest.Options {
	return nomadtest.Options{
		PlaceAfter:  4 * time.Millisecond,
		AnswerAfter: 100 * time.Millisecond,
		StopAfter:   300 * time.Millisecond,
	}
}

// inWorld runs fn in a bubble, with a scheduler in its first term. At the end no sandbox may be
// live twice, and nothing may be left behind.
func inWorld(t *testing.T, o nomadtest.Options, fn func(w *world)) {
	t.Helper()
	inWorldOf(t, o, nomadtest.NewCluster, fn)
}

// inWorldOf is inWorld with another cluster.
func inWorldOf(t *testing.T, o nomadtest.Options, newCluster func(string) *nomadtest.Cluster, fn func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, secrets: nomadtest.NewSecrets(), cluster: newCluster(clusterID)}
		w.nomad = nomadtest.NewNomad(t, o, w.secrets, nomadtest.DeletedIn(func() *fsm.View { return w.cluster.Store.View() }))
		w.cluster.Must(&fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: specID, Template: fsm.Template{
			Driver: fsm.DriverRawExec, Isolation: fsm.IsolationNone, Command: "/agent", WorkingDir: "project", CPU: 100,
			Memory: 64,
			Ports:  map[string]int{fsm.PortAgentServer: 0},
		}}}}, "operator")
		w.cfg = scheduler.DefaultConfig()
		// A week takes seconds even in fake time.
		w.cfg.OrphanRetention = 12 * time.Hour
		if os.Getenv("BIVOUAC_TEST_LOG") != "" {
			w.cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
		}
		w.lead()
		defer func() { w.step() }()
		fn(w)
		w.step()
		for _, f := range w.nomad.Faults() {
			t.Error(f)
		}
	})
}

// fresh is the configuration with its own registry.
func (w *world) fresh() scheduler.Config {
	w.reg = prometheus.NewRegistry()
	w.cfg.Registerer = w.reg
	return w.cfg
}

// lead begins a term; the one before must have ended.
func (w *world) lead() {
	w.Helper()
	w.term++
	var backend scheduler.Backend = w.nomad
	if w.backend != nil {
		backend = w.backend
	}
	s, err := scheduler.New(w.fresh(), w.cluster.Store, w.cluster, backend, w.nomad, w.secrets)
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, w.term) }()
	w.stop = func() {
		cancel()
		if err := <-done; err != nil {
			w.Errorf("the term ended with %v", err)
		}
		w.stop = func() {}
	}
}

// step ends the term, as a deposed or killed leader's ends.
func (w *world) step() { w.stop() }

// create makes a sandbox with its key.
func (w *world) create(id string) {
	w.Helper()
	v, err := w.secrets.Write(w.Context(), fsm.SandboxKeyPath(id), map[string]string{"key": "key of " + id})
	if err != nil {
		w.Fatal(err)
	}
	w.cluster.Create(id, specID, v.Version)
}

func (w *world) pause(id string)  { w.cluster.Must(&fsm.SandboxPauseBody{ID: id}, "u1") }
func (w *world) resume(id string) { w.cluster.Must(&fsm.SandboxResumeBody{ID: id}, "u1") }
func (w *world) delete(id string) { w.cluster.Must(&fsm.SandboxDeleteBody{ID: id}, "u1") }

// until waits in fake time. It checks every millisecond at first; after a while, every thousandth
// of the time it has waited, because each check costs real time.
func (w *world) until(what string, limit time.Duration, cond func() bool) {
	w.Helper()
	for begin := time.Now(); !cond(); time.Sleep(max(time.Millisecond, time.Since(begin)/1000)) {
		if time.Since(begin) > limit {
			w.Fatalf("not within %s: %s; %s", limit, what, w.describe())
		}
	}
}

// scale divides both the sandboxes that crowd the scheduler and the scheduler's slots, whose ratio
// decides what a test shows. make large sets BIVOUAC_DRILL=long: the full size.
func scale() int {
	if os.Getenv("BIVOUAC_DRILL") == "long" {
		return 1
	}
	return 4
}

// scaled begins a term whose slots are divided by scale.
func (w *world) scaled() {
	w.Helper()
	w.step()
	w.cfg.ProbesAtOnce, w.cfg.Workers = w.cfg.ProbesAtOnce/scale(), w.cfg.Workers/scale()
	w.lead()
}

// eventually is until for what takes long: it checks once a minute.
func (w *world) eventually(what string, limit time.Duration, cond func() bool) {
	w.Helper()
	for end := time.Now().Add(limit); !cond(); w.elapse(time.Minute) {
		if time.Now().After(end) {
			w.Fatalf("not within %s: %s; %s", limit, what, w.describe())
		}
	}
}

// elapse lets time pass without waiting for anything.
func (w *world) elapse(d time.Duration) { time.Sleep(d) }

// reach waits until the sandbox is shown in the state and its generation was observed.
func (w *world) reach(id string, state fsm.SandboxState, limit time.Duration) *fsm.Sandbox {
	w.Helper()
	w.until(fmt.Sprintf("sandbox %s %s", id, state), limit, func() bool {
		sb := w.cluster.Sandbox(id)
		return sb != nil && sb.State() == state && sb.Status.Generation == sb.Generation
	})
	return w.cluster.Sandbox(id)
}

func (w *world) gone(id string, limit time.Duration) {
	w.Helper()
	w.until("sandbox "+id+" gone", limit, func() bool { return w.cluster.Sandbox(id) == nil })
	if w.nomad.Has(id) || w.nomad.HasVolume(id) || w.nomad.Live(id) != 0 || w.secrets.Has(fsm.SandboxKeyPath(id)) {
		w.Errorf("left of sandbox %s: job %v, volume %v, live %d, secret %v", id, w.nomad.Has(id), w.nomad.HasVolume(id),
			w.nomad.Live(id), w.secrets.Has(fsm.SandboxKeyPath(id)))
	}
}

func (w *world) describe() string {
	s := fmt.Sprintf("live: %v", w.nomad.Running())
	for sb := range w.cluster.Store.View().AllSandboxes() {
		s += fmt.Sprintf("\n%s wants %s (generation %d): %+v", sb.ID, sb.Desired, sb.Generation, sb.Status)
	}
	return s
}

// birth is that of something that is made now.
func (w *world) birth() string { return w.cluster.Store.View().Birth().String() }

// expectOrphan waits until the state records the orphan.
func (w *world) expectOrphan(id, kind, reason string) {
	w.Helper()
	w.until("the "+kind+" of "+id+" an orphan: "+reason, 2*time.Minute, func() bool {
		o := w.cluster.Store.View().Orphan(kind, id)
		return o != nil && o.Reason == reason
	})
}

func crash() *scheduler.Failure {
	return &scheduler.Failure{Reason: fsm.ReasonCrashed, Detail: "exit code 1"}
}

// gauge reads a metric by the value of its only label, "" for none.
func (w *world) gauge(name, label string) float64 {
	w.Helper()
	families, err := w.reg.Gather()
	if err != nil {
		w.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetGauge().GetValue()
			}
		}
	}
	w.Fatalf("no metric %s of %s", name, label)
	return 0
}

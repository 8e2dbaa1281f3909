package nomad_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/access"
	"bivouac.dev/bivouac/scheduler/nomad"
)

// calls returns the calls of Nomad so far, sorted, without those for the choice of a client, for
// which a start does not wait where there is only one.
func calls(t *testing.T, reg *prometheus.Registry) (names []string) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				called := m.GetHistogram().GetSampleCount() > 0 && l.GetName() == "call"
				if called && l.GetValue() != "list clients" && l.GetValue() != "read client" {
					names = append(names, l.GetValue())
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestRunner_New_AsksForNothingThatIsNotThere(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(string(driver), func(t *testing.T) {
			t.Parallel()
			reg := prometheus.NewRegistry()
			b := benchWith(t, func(c *nomad.Config) { c.Registerer = reg })
			job := b.job(driver)
			job.New = true
			b.must(b.r.Start(t.Context(), job))
			if got, want := calls(t, reg), []string{"create volume", "register job"}; !slices.Equal(got, want) {
				t.Errorf("a new sandbox's start called %q, want %q", got, want)
			}
			o := b.look(job, "placement", func(o scheduler.Observed) bool { return o.Placement != nil })
			b.until("agent server with its key", func() error {
				return get(t.Context(), access.AgentURL(o.Placement)+"/api/conversations/count", key(job.SandboxID))
			})
			b.createConversation(o, job, conversation)
			job.New, job.HasWorkspace, job.HasVersion = false, true, true
			job.ModifyIndex, job.RevertTo = o.ModifyIndex, o.Version
			job, o = b.started(b.paused(job))
			b.hasConversation(o, job, conversation)
		})
	}
}

// New may be wrong, from a leader that was cut off: what exists then decides.
func TestRunner_NewThatIsNot_TakesWhatIsThere(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	half := b.job(fsm.DriverRawExec)
	good := half.Template
	half.Template.Command = ""
	half.New = true
	if err := b.r.Start(t.Context(), half); err == nil || len(b.volumes(half)) != 1 {
		t.Fatalf("a start that ends after the volume: %v, %d volumes", err, len(b.volumes(half)))
	}
	made := b.volumes(half)[0].ID
	half.Template = good
	b.must(b.r.Start(t.Context(), half))
	o := b.look(half, "placement", func(o scheduler.Observed) bool { return o.Placement != nil })
	if v := b.volumes(half); len(v) != 1 || v[0].ID != made || b.raw(half).Meta["bivouac_volume"] != made {
		t.Fatalf("volumes %v, the job has %s, want %s", v, b.raw(half).Meta["bivouac_volume"], made)
	}
	// The job runs; a second start of the sandbox as new fails.
	again := half
	if err := b.r.Start(t.Context(), again); fsm.CodeOf(err) != fsm.CodeConflict {
		t.Fatalf("a start of what runs: %v", err)
	}
	if now := b.observed(half); now.Placement == nil || now.Placement.AllocID != o.Placement.AllocID ||
		now.ModifyIndex != o.ModifyIndex {
		t.Fatalf("the job that ran was touched: %+v", now)
	}
}

// TestRunner_NewOfTwoLeaders_TakesTheOldest: Nomad does not show yet the volume that another leader
// made. Under the name that its client refuses a second one is made, and not used.
func TestRunner_NewOfTwoLeaders_TakesTheOldest(t *testing.T) {
	t.Parallel()
	b, _ := twoMachines(t)
	first, err := b.s.nomad.NodeID(t.Context())
	b.must(err)
	job := b.born(b.job(fsm.DriverRawExec), 7)
	made, err := b.r.NewWorkspace(t.Context(), job, []string{first})
	b.must(err)

	at, err := url.Parse(b.config.Address)
	b.must(err)
	through := httputil.NewSingleHostReverseProxy(at)
	var hidden atomic.Bool // the first list of volumes was empty
	late := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/volumes" && hidden.CompareAndSwap(false, true) {
			_, _ = w.Write([]byte("[]"))
			return
		}
		through.ServeHTTP(w, r)
	}))
	t.Cleanup(late.Close)
	config := b.config
	config.Address = late.URL
	loser, err := nomad.New(config)
	b.must(err)
	t.Cleanup(loser.Close)
	job.New, job.Avoid = true, []string{first}
	b.must(loser.Start(t.Context(), job))
	if has := b.raw(job).Meta["bivouac_volume"]; has != made.ID || !hidden.Load() {
		t.Errorf("the job has the volume %s, the oldest is %s of %d", has, made.ID, len(b.volumes(job)))
	}
}

package nomad_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/scheduler/nomad"
)

// samples returns the series of a registry: gauges and counters have a value, histograms their count.
func samples(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += "/" + l.GetValue()
			}
			out[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

func TestMetrics_EveryCallExistsFromTheStart(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	newFake(t, func(c *nomad.Config) { c.Registerer = registry })
	known := samples(t, registry)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	call := regexp.MustCompile(`\.(?:call|read|register|callMark)\(ctx, "([^"]+)"`)
	named := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range call.FindAllStringSubmatch(string(text), -1) {
			named++
			if _, there := known["bivouac_nomad_call_duration_seconds/"+m[1]]; !there {
				t.Errorf("%s: the call %q has no series before its first time", file, m[1])
			}
		}
	}
	if named < 15 {
		t.Errorf("the source has %d calls", named)
	}
}

func TestProbe_TellsWhetherNomadAnswersAndWhatFails(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	f := newFake(t, func(c *nomad.Config) { c.Registerer = registry })
	shows := func(what string, reachable float64, kind string) {
		t.Helper()
		deadline := time.After(patience)
		for {
			found := samples(t, registry)
			if found["bivouac_nomad_reachable"] == reachable && (kind == "" || found["bivouac_nomad_errors_total/"+kind] > 0) {
				return
			}
			select {
			case <-deadline:
				t.Fatalf("%s: %v", what, found)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	shows("before the first probe", 0, "")
	for _, step := range []struct {
		what, kind string
		reachable  float64
		handler    http.HandlerFunc
	}{
		{"a leader", "", 1, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `"127.0.0.1:4647"`) }},
		{"no leader", "failed", 0, func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "No cluster leader", http.StatusInternalServerError)
		}},
		{"an empty leader", "unreachable", 0, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `""`) }},
	} {
		f.on("GET /v1/status/leader", step.handler)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Probe(ctx) }()
		shows(step.what, step.reachable, step.kind)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	f.server.Close()
	if _, err := f.List(t.Context(), "c1"); err == nil {
		t.Error("a listing of a Nomad that is away")
	}
	if n := samples(t, registry)["bivouac_nomad_errors_total/unreachable"]; n < 2 {
		t.Errorf("%v calls found Nomad unreachable", n)
	}
}

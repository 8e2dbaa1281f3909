package main

import (
	"log/slog"
	"os"
	"testing"

	"bivouac.dev/bivouac/httpapi"
	"bivouac.dev/bivouac/scheduler"
)

// TestNewApp_AStepThatFailsLeavesNothingOpen: the ports and the data directory are free for the next
// try, whichever step failed.
func TestNewApp_AStepThatFailsLeavesNothingOpen(t *testing.T) {
	s := newServers(t, serverOptions{
		nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t), roleID: "none", https: true,
	})
	cfg, err := loadConfig(s.nodes[0].config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	metrics := freeAddress(t)
	wire := func(change func(*parts)) error {
		t.Helper()
		made, err := cfg.parts(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer made.nomad.Close()
		if made.listener, err = listen(cfg.HTTP.Address); err != nil {
			t.Fatalf("the API's port was left open: %v", err)
		}
		if made.parts.metrics, err = listen(metrics); err != nil {
			t.Fatalf("the metrics' port was left open: %v", err)
		}
		change(&made.parts)
		node, err := newApp(made.parts)
		if err != nil {
			return err
		}
		return node.close()
	}
	for step, change := range map[string]func(*parts){
		"the cluster":   func(p *parts) { p.cluster.NodeName = "" },
		"the scheduler": func(p *parts) { p.scheduler = scheduler.Config{} },
		"the API":       func(p *parts) { p.api = httpapi.Config{} },
	} {
		if err := wire(change); err == nil {
			t.Errorf("%s is taken", step)
		}
	}
	if err := wire(func(*parts) {}); err != nil {
		t.Errorf("after them: %v", err)
	}
}

package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestServer_DrainsBeforeItCloses: after SIGTERM the leader is unready and another node leads, while
// it still serves reads, writes and new connections. A second SIGTERM ends it at once.
func TestServer_DrainsBeforeItCloses(t *testing.T) {
	s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t)})
	for _, n := range s.nodes {
		raw, err := os.ReadFile(n.config)
		if err == nil {
			err = os.WriteFile(n.config, []byte(strings.Replace(string(raw), `drain_delay = "0s"`, `drain_delay = "5m"`, 1)),
				0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.up(t, 0, 1, 2)
	was := s.leader(t)
	leader := s.nodes[was]
	leader.process.signal(t, syscall.SIGTERM)
	eventually(t, "it is unready and does not lead", func() error {
		a, err := leader.try(http.MethodGet, "/ready", nil)
		if err == nil && (a.status != http.StatusServiceUnavailable || !strings.Contains(string(a.body), "stopping")) {
			err = errors.New(a.String())
		}
		if now := s.leader(t); err == nil && now == was {
			err = fmt.Errorf("%s leads", leader.name)
		}
		return err
	})
	for i := range 20 {
		leader.do(t, http.StatusOK, http.MethodPost, "/api/settings", map[string]int{"max_iterations": i + 1})
		leader.do(t, http.StatusOK, http.MethodGet, "/api/v1/sandboxes/search", nil)
	}
	leader.process.mustRun(t)
	leader.process.signal(t, syscall.SIGTERM)
	if code := leader.process.wait(t); code != exitFailed {
		t.Errorf("exit %d after the second SIGTERM", code)
	}
	for _, n := range s.nodes {
		if n != leader {
			n.process.kill()
		}
	}
}

// TestUnit_WaitsForADrain: systemd must not kill a node that drains as configured by default.
func TestUnit_WaitsForADrain(t *testing.T) {
	unit, err := os.ReadFile("../../deploy/systemd/bivouac.service")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(unit), "\nTimeoutStopSec=")
	seconds, _, _ := strings.Cut(rest, "\n")
	limit, err := strconv.Atoi(seconds)
	if err != nil {
		t.Fatal(err)
	}
	web := defaultConfig().HTTP
	if need := web.DrainDelay + web.DrainTimeout + stopGrace; time.Duration(limit)*time.Second < need {
		t.Errorf("TimeoutStopSec is %ds, a stop may take %s", limit, need)
	}
}

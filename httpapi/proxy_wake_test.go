package httpapi

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/fsm"
)

// scheduled answers every resume as the leader would: RUNNING again.
func (h *doorHarness) scheduled() (resumes func() int, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var group sync.WaitGroup
	n := 0
	group.Go(func() {
		for {
			v := h.cluster.store.View()
			if row := v.SandboxAny(h.id); row != nil && row.Desired == fsm.DesiredRunning && row.Status.Generation < row.Generation {
				mu.Lock()
				n++
				mu.Unlock()
				h.place()
			}
			select {
			case <-v.Changed():
			case <-ctx.Done():
				return
			}
		}
	})
	return func() int { mu.Lock(); defer mu.Unlock(); return n }, func() { cancel(); group.Wait() }
}

func TestDoor_WakesAPausedSandbox(t *testing.T) {
	h, behind := newDoorHarness(t)
	behind.serve(echoes)
	resumes, stop := h.scheduled()
	defer stop()
	for i, use := range []func(){
		func() { h.ask("GET", h.at("AGENT_SERVER", "/x"), "", headerSessionKey, h.key).want(t, 200) },
		func() { h.ask("GET", h.at("WORKER_1", "/x"), "", "Authorization", "Bearer "+h.alice).want(t, 200) },
		func() { h.ask("GET", h.at("VSCODE", "/?tkn="+h.key), "").want(t, 200) },
		func() { say(t, h.mustDial("AGENT_SERVER", eventSocket, headerSessionKey, h.key), "x") },
		func() { say(t, h.knock(h.key), "x") },
	} {
		h.pause()
		use()
		if n := resumes(); n != i+1 {
			t.Fatalf("use %d: %d resumes", i, n)
		}
	}
}

func TestDoor_OneWakeForAll(t *testing.T) {
	h, _ := newDoorHarness(t)
	h.pause()
	before := h.cluster.count()
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() { h.ask("GET", h.at("AGENT_SERVER", "/x"), "", headerSessionKey, h.key).want(t, 200) })
	}
	until(t, "somebody wakes it", func() bool { return h.row().Desired == fsm.DesiredRunning })
	generation := h.row().Generation
	h.place()
	group.Wait()
	// A request that saw the pause late may ask again, which changes nothing.
	if got := h.row().Generation; got != generation {
		t.Errorf("generation %d, want %d", got, generation)
	}
	if n := h.cluster.count() - before; n > 5 {
		t.Errorf("%d commands for one wake", n)
	}
}

func TestDoor_WakeIsForThoseWhoMayPass(t *testing.T) {
	h, _ := newDoorHarness(t, func(c *Config) { c.Door.AuthTimeout = 50 * time.Millisecond })
	h.pause()
	before := h.cluster.count()
	h.ask("GET", h.at("AGENT_SERVER", "/"), "", headerSessionKey, h.bob).want(t, 401)
	h.ask("GET", h.at("VSCODE", "/?tkn=x"), "").want(t, 401)
	h.ask("GET", h.at("99", "/"), "", headerSessionKey, h.key).want(t, 404)
	ended(t, h.knock(h.bob))
	ended(t, h.mustDial("AGENT_SERVER", eventSocket))
	if n := h.cluster.count() - before; n != 0 {
		t.Errorf("%d commands", n)
	}
}

func TestDoor_DoesNotServe(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		state  func(h *doorHarness)
		want   int
		detail string
	}{
		"wake is off": {change: func(c *Config) { c.Door.Wake = false }, state: (*doorHarness).pause, want: 503, detail: "paused. Resume it"},
		"does not come up": {change: func(c *Config) { c.Door.StartWait = 50 * time.Millisecond }, state: (*doorHarness).pause,
			want: 503, detail: "is starting"},
		"starting": {change: func(c *Config) { c.Door.StartWait = 50 * time.Millisecond }, state: func(h *doorHarness) {
			h.observe(h.id, fsm.SandboxStatus{State: fsm.SandboxStarting})
		}, want: 503, detail: "is starting"},
		"being paused": {state: func(h *doorHarness) { h.apply("alice", &fsm.SandboxPauseBody{ID: h.id}) }, want: 503, detail: "being paused"},
		"error":        {state: func(h *doorHarness) { h.observe(h.id, fsm.SandboxStatus{State: fsm.SandboxError}) }, want: 503, detail: "ERROR"},
		"deleted":      {state: func(h *doorHarness) { h.apply("alice", &fsm.SandboxDeleteBody{ID: h.id}) }, want: 401},
		"no leader to wake it": {state: func(h *doorHarness) {
			h.pause()
			h.cluster.set(func(c *fakeCluster) { c.proposeErr = fsm.Errorf(fsm.CodeNoLeader, "no leader") })
		}, want: 503, detail: "no leader"},
		"too late to know": {state: func(h *doorHarness) {
			h.cluster.set(func(c *fakeCluster) { c.viewErr = fsm.Errorf(fsm.CodeNoLeader, "no leader") })
		}, want: 503, detail: "no leader"},
	} {
		t.Run(name, func(t *testing.T) {
			h, behind := newDoorHarness(t, func(cfg *Config) {
				if c.change != nil {
					c.change(cfg)
				}
			})
			c.state(h)
			before := behind.count()
			got := h.ask("GET", h.at("AGENT_SERVER", "/"), "", headerSessionKey, h.key).want(t, c.want)
			if !strings.Contains(string(got.body), c.detail) {
				t.Errorf("%s", got.body)
			}
			if c.want == 503 && got.header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
			if behind.count() != before {
				t.Error("it was passed on")
			}
		})
	}
}

func TestDoor_WaitsForAStart(t *testing.T) {
	h, _ := newDoorHarness(t)
	h.observe(h.id, fsm.SandboxStatus{State: fsm.SandboxStarting})
	done := make(chan response, 1)
	go func() { done <- h.ask("GET", h.at("AGENT_SERVER", "/"), "", headerSessionKey, h.key) }()
	until(t, "it waits", func() bool {
		return h.server.cfg.Registerer != nil && strings.Contains(h.metricsText(), "bivouac_http_requests_in_flight 2")
	})
	h.place()
	if got := <-done; got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestDoor_ClientThatGoesAwayWaitsNoMore(t *testing.T) {
	h, _ := newDoorHarness(t, func(c *Config) { c.Door.StartWait = time.Minute })
	h.observe(h.id, fsm.SandboxStatus{State: fsm.SandboxStarting})
	ctx, cancel := context.WithCancel(context.Background())
	r, _ := http.NewRequestWithContext(ctx, "GET", h.at("AGENT_SERVER", "/"), nil)
	r.Header.Set(headerSessionKey, h.key)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if res, err := client().Do(r); err == nil {
			res.Body.Close()
		}
	}()
	until(t, "it waits", func() bool { return strings.Contains(h.metricsText(), "bivouac_http_requests_in_flight 2") })
	cancel()
	<-done
	until(t, "nobody waits", func() bool { return strings.Contains(h.metricsText(), "bivouac_http_requests_in_flight 1") })
}

func TestDoor_Socket_NotServing(t *testing.T) {
	h, _ := newDoorHarness(t, func(c *Config) { c.Door.Wake = false })
	h.pause()
	if code := ended(t, h.knock(h.key)); code != websocket.StatusTryAgainLater {
		t.Errorf("close code %d", code)
	}
	if _, res, err := h.dial(h.at("AGENT_SERVER", eventSocket), headerSessionKey, h.key); err == nil || res.StatusCode != 503 {
		t.Errorf("%v", res)
	}
}

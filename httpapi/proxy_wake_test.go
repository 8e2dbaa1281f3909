package httpapi

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/proxy"
)

// scheduled makes every resumed sandbox RUNNING, as the leader does.
func (h *proxyHarness) scheduled() (resumes func() int, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var group sync.WaitGroup
	n := 0
	group.Go(func() {
		for {
			v := h.cluster.store.View()
			if row := v.SandboxAny(h.id); row != nil && row.Desired == fsm.DesiredRunning &&
				row.Status.Generation < row.Generation {
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

func TestProxy_WakesAPausedSandbox(t *testing.T) {
	h, behind := newProxyHarness(t)
	behind.serve(echoes)
	resumes, stop := h.scheduled()
	defer stop()
	const talk = "/api/conversations/6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01/"
	for i, use := range []func(){
		func() { h.ask("POST", h.at("AGENT_SERVER", talk+"events"), "{}", proxy.HeaderKey, h.key).want(t, 200) },
		func() {
			h.ask("POST", h.at("AGENT_SERVER", talk+"run"), "", "Authorization", "Bearer "+h.alice).want(t, 200)
		},
		func() { h.ask("GET", h.at("AGENT_SERVER", "/x?wake=true"), "", proxy.HeaderKey, h.key).want(t, 200) },
		func() {
			h.ask("GET", h.at("WORKER_1", "/x?a=b&wake=1"), "", "Authorization", "Bearer "+h.alice).want(t, 200)
		},
		func() { h.ask("GET", h.passOf("VSCODE", "/")+"?wake=true", "").want(t, 200) },
	} {
		h.pause()
		use()
		if n := resumes(); n != i+1 {
			t.Fatalf("use %d: %d resumes", i, n)
		}
	}
}

func TestProxy_OneWakeForAll(t *testing.T) {
	h, _ := newProxyHarness(t)
	h.pause()
	before := h.cluster.count()
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() { h.ask("GET", h.at("AGENT_SERVER", "/x?wake=true"), "", proxy.HeaderKey, h.key).want(t, 200) })
	}
	until(t, "somebody wakes it", func() bool { return h.row().Desired == fsm.DesiredRunning })
	generation := h.row().Generation
	h.place()
	group.Wait()
	// A request that saw the pause late may resume again, which has no effect.
	if got := h.row().Generation; got != generation {
		t.Errorf("generation %d, want %d", got, generation)
	}
	if n := h.cluster.count() - before; n > 5 {
		t.Errorf("%d commands for one wake", n)
	}
}

func TestProxy_WakeIsForThoseWhoMayPass(t *testing.T) {
	h, _ := newProxyHarness(t, func(c *Config) { c.Proxy.AuthTimeout = 50 * time.Millisecond })
	h.pause()
	before := h.cluster.count()
	h.ask("GET", h.at("AGENT_SERVER", "/?wake=true"), "", proxy.HeaderKey, h.bob).want(t, 401)
	h.ask("GET", h.at("VSCODE", "/?tkn="+h.key+"&wake=true"), "").want(t, 401)
	h.ask("GET", h.at("99", "/?wake=true"), "", proxy.HeaderKey, h.key).want(t, 404)
	ended(t, h.dialWithoutKey(h.bob))
	ended(t, h.mustDial("AGENT_SERVER", eventSocket))
	if n := h.cluster.count() - before; n != 0 {
		t.Errorf("%d commands", n)
	}
}

func TestProxy_DoesNotServe(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		path   string
		state  func(h *proxyHarness)
		want   int
		detail string
	}{
		"paused": {path: "/x", state: (*proxyHarness).pause, want: 409, detail: `"status":"PAUSED"`},
		"wake is off": {
			change: func(c *Config) { c.Proxy.Wake = false },
			state:  (*proxyHarness).pause,
			want:   409,
			detail: `"status":"PAUSED"`,
		},
		"being paused, and no work": {path: "/x", state: func(h *proxyHarness) {
			h.apply("alice",
				&fsm.SandboxPauseBody{ID: h.id})
		},
			want: 409, detail: "being paused"},
		"does not come up": {change: func(c *Config) { c.Proxy.StartWait = 500 * time.Millisecond },
			state: (*proxyHarness).pause,
			want:  503, detail: "is starting"},
		"starting": {change: func(c *Config) { c.Proxy.StartWait = 500 * time.Millisecond }, state: func(h *proxyHarness) {
			h.observe(h.id, fsm.SandboxStatus{State: fsm.SandboxStarting})
		}, want: 503, detail: "is starting"},
		"being paused": {
			state:  func(h *proxyHarness) { h.apply("alice", &fsm.SandboxPauseBody{ID: h.id}) },
			want:   503,
			detail: "being paused",
		},
		"error": {
			state:  func(h *proxyHarness) { h.observe(h.id, fsm.SandboxStatus{State: fsm.SandboxError}) },
			want:   503,
			detail: "ERROR",
		},
		"its client is drained": {state: func(h *proxyHarness) {
			h.observe(h.id,
				fsm.SandboxStatus{State: fsm.SandboxPaused, Reason: fsm.ReasonClient, Detail: "its Nomad client one is drained"})
		}, want: 503, detail: "The sandbox is paused: its Nomad client one is drained."},
		"deleted": {state: func(h *proxyHarness) { h.apply("alice", &fsm.SandboxDeleteBody{ID: h.id}) }, want: 401},
		"no leader to wake it": {state: func(h *proxyHarness) {
			h.pause()
			h.cluster.set(func(c *fakeCluster) { c.proposeErr = fsm.Errorf(fsm.CodeNoLeader, "no leader") })
		}, want: 503, detail: "no leader"},
		"too late to know": {state: func(h *proxyHarness) {
			h.cluster.set(func(c *fakeCluster) { c.viewErr = fsm.Errorf(fsm.CodeNoLeader, "no leader") })
		}, want: 503, detail: "no leader"},
	} {
		t.Run(name, func(t *testing.T) {
			h, behind := newProxyHarness(t, func(cfg *Config) {
				if c.change != nil {
					c.change(cfg)
				}
			})
			c.state(h)
			before := behind.count()
			got := h.ask("GET", h.at("AGENT_SERVER", cmp.Or(c.path, "/?wake=true")), "", proxy.HeaderKey, h.key).want(t, c.want)
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

func TestProxy_WaitsForAStart(t *testing.T) {
	h, _ := newProxyHarness(t)
	h.observe(h.id, fsm.SandboxStatus{State: fsm.SandboxStarting})
	done := make(chan reply, 1)
	go func() { done <- h.ask("GET", h.at("AGENT_SERVER", "/"), "", proxy.HeaderKey, h.key) }()
	until(t, "it waits", func() bool {
		return h.server.cfg.Registerer != nil && strings.Contains(h.metricsText(), "bivouac_http_requests_in_flight 2")
	})
	h.place()
	if got := <-done; got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestProxy_ClientThatGoesAwayWaitsNoMore(t *testing.T) {
	h, _ := newProxyHarness(t, func(c *Config) { c.Proxy.StartWait = time.Minute })
	h.observe(h.id, fsm.SandboxStatus{State: fsm.SandboxStarting})
	ctx, cancel := context.WithCancel(context.Background())
	r, _ := http.NewRequestWithContext(ctx, "GET", h.at("AGENT_SERVER", "/"), nil)
	r.Header.Set(proxy.HeaderKey, h.key)
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

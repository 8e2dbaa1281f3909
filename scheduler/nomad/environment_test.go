package nomad

import (
	"fmt"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// TestEnvironment_Webhooks: upstream's agent server is told to send each event to a node, unless its spec
// says otherwise; the built-in one, and where sandboxes reach no node, not.
func TestEnvironment_Webhooks(t *testing.T) {
	t.Parallel()
	const name = "OH_WEBHOOKS_0_BASE_URL"
	urls := map[string]string{envAPIURLs: `["https://n1.example.org/","https://n2.example.org"]`}
	for _, c := range []struct {
		image     string
		env, spec map[string]string
		want      string
	}{
		{"ghcr.io/openhands/agent-server:1.44.0-python", urls, nil, "https://n1.example.org/api/v1/webhooks"},
		{"registry:5000/agent-server@sha256:00", urls, nil, "https://n1.example.org/api/v1/webhooks"},
		{"agent-server", urls, map[string]string{name: "https://other.example.org"}, "https://other.example.org"},
		{"agent-server", nil, nil, ""},
		{"bivouac/sandbox-agent:1", urls, nil, ""},
	} {
		job := scheduler.Job{SandboxID: "a", Template: fsm.Template{Driver: fsm.DriverDocker, Image: c.image, Env: c.spec}}
		env := environment(Config{Env: c.env}, job, "/w", replacer(job.Template, "/w"))
		size := map[bool]string{true: "1"}[c.want != ""]
		if env[name] != c.want || env["OH_WEBHOOKS_0_EVENT_BUFFER_SIZE"] != size {
			t.Errorf("%s: %q, %q", c.image, env[name], env["OH_WEBHOOKS_0_EVENT_BUFFER_SIZE"])
		}
	}
}

// TestEnvironment_WebhooksAreSpread: each sandbox has one node, always the same, and not all the same one.
func TestEnvironment_WebhooksAreSpread(t *testing.T) {
	t.Parallel()
	cfg := Config{Env: map[string]string{envAPIURLs: `["https://n1.example.org","https://n2.example.org"]`}}
	count := map[string]int{}
	for i := range 100 {
		job := scheduler.Job{SandboxID: fmt.Sprint("sandbox-", i), Template: fsm.Template{Image: "agent-server"}}
		to := webhooks(cfg, job)["OH_WEBHOOKS_0_BASE_URL"]
		if again := webhooks(cfg, job)["OH_WEBHOOKS_0_BASE_URL"]; again != to {
			t.Errorf("%s: %s, then %s", job.SandboxID, to, again)
		}
		count[to]++
	}
	for _, node := range []string{"n1", "n2"} {
		if n := count["https://"+node+".example.org/api/v1/webhooks"]; n < 30 {
			t.Errorf("%d of 100 sandboxes send to %s", n, node)
		}
	}
}

package nomad_test

import (
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/access"
	"bivouac.dev/bivouac/scheduler/agent"
)

// A member of a warm pool comes up dormant on the real stack: it serves, accepts no key, and has
// only its secret key.
func TestRunner_DeferredMember_HasASecretAndNoKey(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(string(driver), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			job := b.job(driver)
			job.Deferred, job.KeyRef.Path = true, "sandboxes/"+job.SandboxID+"/init"
			secret := "canary-secret-of-" + job.SandboxID
			data := map[string]any{"data": map[string]string{"secret_key": secret}}
			b.must(b.s.vault.Do(t.Context(), http.MethodPost, "secret/data/default/sandbox-"+job.SandboxID+"/init", data, nil))
			b.must(b.r.Start(t.Context(), job))
			o := b.look(job, "placement", func(o scheduler.Observed) bool { return o.Placement != nil })
			url := access.AgentURL(o.Placement)
			b.until("the dormant agent server", func() error { return get(t.Context(), url+"/health", "") })
			if err := get(t.Context(), url+"/api/conversations/count", key(job.SandboxID)); err == nil {
				t.Fatal("a member that nobody claimed takes a key")
			}
			b.must(agent.New(agent.Config{}).Init(t.Context(), url, secret,
				agent.InitRequest{SessionAPIKeys: []string{key(job.SandboxID)}}))
			b.must(get(t.Context(), url+"/api/conversations/count", key(job.SandboxID)))

			// The job of the claimed sandbox has the key; the workspace is the same.
			o = b.look(job, "known version", func(o scheduler.Observed) bool { return o.Placement != nil })
			b.createConversation(o, job, conversation)
			job.ModifyIndex = o.ModifyIndex
			job = b.paused(job)
			job.Deferred, job.KeyRef.Path = false, "sandboxes/"+job.SandboxID+"/session"
			job, o = b.started(job)
			b.hasConversation(o, job, conversation)
			if env := b.raw(job).TaskGroups[0].Tasks[0].Env; env["OH_DEFERRED_INIT"] != "" || len(b.volumes(job)) != 1 {
				t.Fatalf("environment %v, %d volumes", env, len(b.volumes(job)))
			}
			if strings.Contains(*b.raw(job).TaskGroups[0].Tasks[0].Templates[0].EmbeddedTmpl, "/init") {
				t.Fatal("the job still reads the member's entry")
			}
		})
	}
}

// A sandbox of the mock driver is up when Nomad reports it.
func TestRunner_MockDriver_IsUpByNomadsWord(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job := b.job(fsm.DriverRawExec)
	job.Template = fsm.Template{
		Driver: fsm.DriverMock, Readiness: fsm.ReadinessAllocation, CPU: 20, Memory: 16, Ports: map[string]int{
			fsm.PortAgentServer: 0,
		},
	}
	for range 2 {
		b.must(b.r.Start(t.Context(), job))
		o := b.look(job, "up", func(o scheduler.Observed) bool { return o.Up && o.Placement != nil })
		job.ModifyIndex, job.RevertTo, job.HasVersion = o.ModifyIndex, o.Version, true
		job = b.paused(job)
	}
}

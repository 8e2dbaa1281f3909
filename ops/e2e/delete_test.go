package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// deletedInEveryState deletes a sandbox in each of its states. Job, volume and Vault entries
// are deleted soon, and not by the collector, which keeps everything younger than 15 minutes.
func (o *operators) deletedInEveryState(t *testing.T) {
	for _, c := range []struct {
		state string
		reach func(t *testing.T) string
	}{
		{"just created", func(t *testing.T) string { return o.node.StartSandbox(t, o.spec) }},
		{"STARTING", func(t *testing.T) string {
			id := o.node.StartSandbox(t, o.spec)
			testcluster.Eventually(t, "it has a job", func() error {
				var job struct{}
				return o.Nomad.Do(t.Context(), http.MethodGet, "job/sandbox-"+id, nil, &job)
			})
			return id
		}},
		{"STARTING without room", func(t *testing.T) string { return o.node.StartSandbox(t, "huge") }},
		{"RUNNING", o.begin},
		{"RUNNING with a conversation", func(t *testing.T) string {
			o.SetDefault(t, o.spec)
			return *o.node.AwaitTask(t, o.node.StartConversation(t)).SandboxID
		}},
		{"being paused", func(t *testing.T) string {
			id := o.begin(t)
			o.node.Change(t, id, "pause")
			return id
		}},
		{"PAUSED", o.paused},
		{"being resumed", func(t *testing.T) string {
			id := o.paused(t)
			o.node.Change(t, id, "resume")
			return id
		}},
		{"ERROR", func(t *testing.T) string {
			id := o.node.StartSandbox(t, "crash")
			o.says(t, id, "exit code", "ERROR")
			return id
		}},
		{"claimed a moment ago", func(t *testing.T) string {
			setPool(t, o.node.Client, o.spec, 1)
			id := o.node.StartSandbox(t, o.spec)
			o.node.SetPool(t, o.spec, 0)
			return id
		}},
	} {
		id := c.reach(t)
		begin := time.Now()
		o.node.Change(t, id, "delete")
		if _, err := o.node.Sandbox(id); !errors.Is(err, testcluster.ErrGone) {
			t.Errorf("%s: it is still shown: %v", c.state, err)
		}
		verdict := "nothing was left"
		if err := testcluster.Await(testcluster.Patience,
			func() error { return o.Audit(testcluster.Expected{}) }); err != nil {
			verdict = fmt.Sprint("FAILED: ", err)
			t.Errorf("%s: %v", c.state, err)
		}
		t.Logf("--- verdict: %s: deleted while %s: %s after %.1f s", o.spec, c.state, verdict, time.Since(begin).Seconds())
	}
}

// paused returns a paused sandbox with a file in it.
func (o *operators) paused(t *testing.T) string {
	t.Helper()
	id := o.begin(t)
	o.node.Change(t, id, "pause")
	o.node.AwaitSandbox(t, id, "PAUSED")
	return id
}

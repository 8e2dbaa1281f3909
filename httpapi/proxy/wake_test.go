package proxy

import (
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// TestErrNotServing: the client learns the state. A sandbox that is paused while a request resumes
// it is starting.
func TestErrNotServing(t *testing.T) {
	drained := fsm.SandboxStatus{State: fsm.SandboxPaused, Detail: "its Nomad client one is drained"}
	for name, c := range map[string]struct {
		row   fsm.Sandbox
		text  string
		retry time.Duration
	}{
		"being resumed": {fsm.Sandbox{Desired: fsm.DesiredPaused, Status: fsm.SandboxStatus{State: fsm.SandboxPaused}},
			"The sandbox is starting. Try again.", 5 * time.Second},
		"its client is drained": {fsm.Sandbox{Desired: fsm.DesiredRunning, Status: drained},
			"The sandbox is paused: its Nomad client one is drained.", 30 * time.Second},
	} {
		if e := errNotServing(&c.row); e.Text != c.text || e.RetryAfter != c.retry {
			t.Errorf("%s: %q after %s, want %q after %s", name, e.Text, e.RetryAfter, c.text, c.retry)
		}
	}
}

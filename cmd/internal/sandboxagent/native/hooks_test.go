package native

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// TestHooks: a hook forbids one action and lets another one through, one sees results, and one lets
// the agent stop only when it has done its work.
func TestHooks(t *testing.T) {
	sh := func(command string) modeltest.Call {
		return modeltest.Tool("terminal", map[string]string{"command": command})
	}
	done := modeltest.Tool("finish", map[string]string{"message": "Done."})
	r := newRig(t, modeltest.InOrder(
		modeltest.Calls(sh("rm -rf everything; touch removed"), sh("echo one > one.txt")),
		modeltest.Calls(done),
		modeltest.Calls(sh("touch summary.txt")),
		modeltest.Calls(done),
	), func(s *engine.Setup) {
		s.Environ = os.Environ()
		s.Secrets = map[string]engine.Secret{"TOKEN": {Value: "HOOKCANARY"}}
		s.Agent.Hooks = []byte(`{"hooks":{
		  "PreToolUse":[{"matcher":"terminal","hooks":[{"command":"if grep -q 'rm -rf'; then echo '{\"decision\":\"deny\",\"reason\":\"no rm HOOKCANARY\"}'; fi"},{"command":"echo pre >> hooks.log"}]}],
		  "PostToolUse":[{"hooks":[{"command":"grep -q tool_response && echo post >> hooks.log"},
		  {"command":"sleep 1; echo async >> hooks.log","async":true}]}],
		  "Stop":[{"hooks":[{"command":"test -e summary.txt || { echo no summary >&2; exit 2; }"}]}]}}`)
	})
	r.say("go")
	r.ends(engine.Finished)
	if got := r.story(); len(got) < 4 || got[3] != "call terminal" ||
		got[4] != "rejected terminal: no rm <secret-hidden>" {
		t.Errorf("the story is %q", got)
	}
	for name, want := range map[string]bool{"removed": false, "one.txt": true, "summary.txt": true} {
		if _, err := os.Stat(filepath.Join(r.setup.WorkingDir, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	stops, blocked := 0, 0
	for _, e := range all[*event.HookExecution](r) {
		if e.Blocked {
			blocked++
		}
		if e.HookEventType == "Stop" {
			stops++
		}
		if e.Source != event.SourceHook {
			t.Errorf("the source is %s", e.Source)
		}
	}
	if stops != 2 || blocked != 2 {
		t.Errorf("%d stops, %d blocked", stops, blocked)
	}
	log, err := os.ReadFile(filepath.Join(r.setup.WorkingDir, "hooks.log"))
	// The first command was forbidden before the second hook; a finish is a tool, too.
	if err != nil || !strings.HasPrefix(string(log), "pre\npost\n") {
		t.Errorf("the hooks wrote %q, %v", log, err)
	}
}

// TestHooks_AfterARestart: an action whose hook was under way is asked about again, and has one
// result.
func TestHooks_AfterARestart(t *testing.T) {
	r := newRig(t, modeltest.InOrder(modeltest.Calls(echo("a")), modeltest.Text("Done.")), func(s *engine.Setup) {
		s.Environ = os.Environ()
		s.Agent.Hooks = []byte(`{"pre_tool_use":[{"matcher":"echo","hooks":[{"command":"exit 2"}]}]}`)
	})
	r.add(newProbe("echo"))
	r.memory.set(t, engine.KeyConfirmationPolicy, engine.Policy{Kind: "AlwaysConfirm"})
	r.say("go")
	r.ends(engine.Waiting)
	r.restart()
	r.add(newProbe("echo"))
	r.ends(engine.Finished)
	if n := len(all[*event.UserReject](r)); n != 1 || len(all[*event.Observation](r)) != 0 {
		t.Errorf("%d rejections: %q", n, r.story())
	}
}

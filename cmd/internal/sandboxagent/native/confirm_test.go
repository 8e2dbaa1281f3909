package native

import (
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// Which batches each policy holds back.
func TestConfirm_Policies(t *testing.T) {
	no, yes := false, true
	always := engine.Policy{Kind: "AlwaysConfirm"}
	risk := func(threshold string, unknown *bool) engine.Policy {
		return engine.Policy{Kind: "ConfirmRisky", Threshold: threshold, ConfirmUnknown: unknown}
	}
	think := modeltest.Tool("think", map[string]string{"thought": "hm", "security_risk": "HIGH"})
	for name, c := range map[string]struct {
		policy   engine.Policy
		analyzer bool
		calls    []modeltest.Call
		asks     bool
	}{
		"never": {
			engine.Policy{Kind: "NeverConfirm"},
			true,
			[]modeltest.Call{risky("a", "HIGH")},
			false,
		},
		"always":                      {always, false, []modeltest.Call{echo("a")}, true},
		"always, a thought":           {always, false, []modeltest.Call{think}, false},
		"always, an end":              {always, false, []modeltest.Call{finishing("x")}, false},
		"always, an end with a call":  {always, false, []modeltest.Call{echo("a"), finishing("x")}, true},
		"risky, high":                 {risk("", nil), true, []modeltest.Call{risky("a", "HIGH")}, true},
		"risky, medium":               {risk("", nil), true, []modeltest.Call{risky("a", "MEDIUM")}, false},
		"risky from medium":           {risk("MEDIUM", nil), true, []modeltest.Call{risky("a", "MEDIUM")}, true},
		"risky, one of two":           {risk("", nil), true, []modeltest.Call{risky("a", "LOW"), risky("b", "HIGH")}, true},
		"risky, unknown":              {risk("", nil), true, []modeltest.Call{echo("a")}, true},
		"risky, unknown permitted":    {risk("", &no), true, []modeltest.Call{echo("a")}, false},
		"risky, low without analyzer": {risk("", &yes), false, []modeltest.Call{risky("a", "LOW")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, modeltest.InOrder(modeltest.Calls(c.calls...), modeltest.Text("Done.")))
			r.add(newProbe("echo"))
			r.memory.set(t, engine.KeyConfirmationPolicy, c.policy)
			if c.analyzer {
				r.memory.set(t, engine.KeySecurityAnalyzer, map[string]string{"kind": "LLMSecurityAnalyzer"})
			}
			r.say("go")
			want := engine.Finished
			if c.asks {
				want = engine.Waiting
			}
			r.ends(want)
			if open := len(event.OpenActions(r.events())); c.asks && open != len(c.calls) || !c.asks && open != 0 {
				t.Errorf("%d open actions", open)
			}
		})
	}
}

// A run after the question executes what is open, once, after a restart too. A rejection is each
// action's result.
func TestConfirm_AcceptAndReject(t *testing.T) {
	script := func() *modeltest.Script {
		return modeltest.Turns(modeltest.Calls(echo("a"), echo("b")), modeltest.Text("Done."))
	}
	r := newRig(t, script())
	p := newProbe("echo")
	r.add(p)
	r.memory.set(t, engine.KeyConfirmationPolicy, engine.Policy{Kind: "AlwaysConfirm"})
	r.say("go")
	r.ends(engine.Waiting)
	if len(*p.runs) != 0 {
		t.Fatal("executed before the answer")
	}
	r.restart()
	r.add(p)
	if live, err := r.Respond(true, ""); live || err != nil {
		t.Fatal(live, err)
	}
	r.ends(engine.Finished)
	r.tells("user: go", "system", "call echo", "call echo", "result echo: echo a", "result echo: echo b", "agent: Done.")

	r = newRig(t, script())
	r.add(newProbe("echo"))
	r.memory.set(t, engine.KeyConfirmationPolicy, engine.Policy{Kind: "AlwaysConfirm"})
	r.say("go")
	r.ends(engine.Waiting)
	if live, err := r.Respond(false, "Not this."); live || err != nil {
		t.Fatal(live, err)
	}
	if live, err := r.Respond(false, "Twice."); live || err != nil {
		t.Fatal(live, err)
	}
	r.tells("user: go", "system", "call echo", "call echo", "rejected echo: Not this.", "rejected echo: Not this.")
	r.ends(engine.Finished)
	if got := r.server.Requests()[1].Result(); got != "Action rejected: Not this." {
		t.Errorf("the model is told %q", got)
	}
}

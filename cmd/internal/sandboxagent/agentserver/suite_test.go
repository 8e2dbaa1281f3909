package agentserver

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// suiteAgents are the agents of the suite, by the program of those over ACP.
func suiteAgents() map[string]string {
	return map[string]string{
		"native": "", "opencode": "opencode-linux-x64/bin/opencode",
		"codex": "@zed-industries/codex-acp-linux-x64/bin/codex-acp",
	}
}

// suiteOutcome is what became of a task.
type suiteOutcome struct {
	*intender
	passed bool
	nudges int // how often a person had to say: go on
}

// TestSuite gives each agent the same tasks by the same program with the same mistakes, and prints what
// the mistakes cost. It shows what an agent does with a model's mistakes, and nothing about how well a
// model solves tasks. Three tasks are run; BIVOUAC_DRILL=long runs all twenty (make nightly).
func TestSuite(t *testing.T) {
	t.Parallel()
	tasks := suiteTasks()
	if os.Getenv("BIVOUAC_DRILL") != "long" {
		tasks = []suiteTask{tasks[0], tasks[4], tasks[8]} // each kind of mistake but one
	}
	for _, name := range slices.Sorted(maps.Keys(suiteAgents())) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var all []suiteOutcome
			mine := tasks
			if os.Getenv("BIVOUAC_DRILL") != "long" && suiteAgents()[name] != "" {
				mine = tasks[:1] // such a program takes seconds to start
			}
			for _, task := range mine {
				begun := time.Now()
				o := solveTask(t, name, task)
				t.Logf("%s: %s, requests %v", task.name, time.Since(begun).Round(time.Second/10), o.at)
				if all = append(all, o); !o.passed {
					t.Logf("%s is not solved: %d requests, %v", task.name, o.requests, o.at)
				}
			}
			report(t, name, all)
		})
	}
}

// solveTask lets an agent work on a task until its test passes, or the program gives up.
func solveTask(t *testing.T, agent string, task suiteTask) suiteOutcome {
	t.Helper()
	dir := task.write(t)
	p := newIntender(task, dir)
	s := suiteServer(t, agent, dir, p)
	o := suiteOutcome{intender: p}
	for {
		s.settled(convID)
		cmd := exec.CommandContext(t.Context(), "bash", "test.sh")
		cmd.Dir = dir
		out, _ := cmd.CombinedOutput() // a failed test has no other sign
		o.passed = strings.Contains(string(out), "TEST PASSED")
		if o.passed || o.nudges == 3 || p.requests >= mostModelCalls {
			return o
		}
		o.nudges++
		s.want(200, "POST", convPath+"/events", `{"content":"The test does not pass. Go on.","run":true}`)
	}
}

// suiteServer starts an agent's conversation with the program as its model.
func suiteServer(t *testing.T, agent, dir string, p *intender) *server {
	t.Helper()
	m := modeltest.New(t, &modeltest.Script{Key: modelKey, Models: []string{"scripted"}, Func: p.answer})
	var settings map[string]any
	environ := inherits("HOME=" + t.TempDir())
	if program := suiteAgents()[agent]; program != "" {
		settings = map[string]any{"agent_kind": "acp", "acp_server": agent}
		environ = withAgent(t, program)
	}
	s := serveAt(t, t.TempDir(), func(c *config.Config) { nativeEngine(c); environ(c) })
	s.converse(dir, m, settings, map[string]any{
		"max_iterations":  1 << 20,
		"initial_message": map[string]any{"content": "The test of this repository fails. Mend it."},
	})
	return s
}

// report prints an agent's table: passes, what each kind of mistake cost in further requests, bytes,
// and how much of a prompt the next one begins with.
func report(t *testing.T, agent string, all []suiteOutcome) {
	t.Helper()
	extra, times := map[string]int{}, map[string]int{}
	passed, nudges, requests, bytes, repeated, whole := 0, 0, 0, 0, 0, 0
	for _, o := range all {
		if o.passed {
			passed++
		}
		nudges += o.nudges
		requests, bytes = requests+o.requests, bytes+o.bytes
		repeated, whole = repeated+o.repeated, whole+o.whole
		for intention, mistake := range o.task.mistakes {
			if o.made[mistake] {
				times[mistake]++
				extra[mistake] += o.at[intention] - 1
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d of %d passed, %d requests, %d nudges, %d KiB sent, %d %% of a prompt repeated\n",
		agent, passed, len(all), requests, nudges, bytes>>10, 100*repeated/max(whole, 1))
	for _, mistake := range slices.Sorted(maps.Keys(times)) {
		fmt.Fprintf(&b, "| %s | %s | %.1f |\n", agent, mistake, float64(extra[mistake])/float64(times[mistake]))
	}
	t.Log(b.String())
	if agent == "native" && passed < len(all) {
		t.Errorf("the built-in agent solves %d of %d", passed, len(all))
	}
}

// TestSuite_Overhead prints the time between two requests at some lengths of a conversation.
// BIVOUAC_DRILL=long goes to 10,000 events.
func TestSuite_Overhead(t *testing.T) {
	if os.Getenv("BIVOUAC_DRILL") != "long" {
		t.Skip("BIVOUAC_DRILL=long measures; make nightly does")
	}
	for _, name := range slices.Sorted(maps.Keys(suiteAgents())) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := newIntender(suiteTask{name: "steps"}, dir)
			p.steps = 5000
			s := suiteServer(t, name, dir, p)
			s.settled(convID)
			n := len(s.events(convID))
			at := func(events int) string {
				i := events * len(p.times) / n // each step has as many events
				if i >= len(p.times) {
					return "not reached"
				}
				var gaps []time.Duration
				for j := max(1, i-20); j <= i; j++ {
					gaps = append(gaps, p.times[j].Sub(p.times[j-1]))
				}
				slices.Sort(gaps)
				return gaps[len(gaps)/2].Round(time.Millisecond / 10).String()
			}
			t.Logf("%s: %d requests, %d events; a step at 100 events %s, at 1,000 %s, at 10,000 %s; %d MiB sent", name,
				p.requests, n, at(100), at(1000), at(10_000), p.bytes>>20)
		})
	}
}

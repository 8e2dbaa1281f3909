package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

const runModelKey = "sk-of-the-runs"

// runScript has a story for each run; held is the answer that waits.
func runScript(held <-chan struct{}) *modeltest.Script {
	command := func(text string) modeltest.Call {
		return modeltest.Tool("terminal", map[string]any{"command": text})
	}
	finish := func(text string) modeltest.Answer {
		return modeltest.Calls(modeltest.Tool("finish", map[string]any{"message": text}))
	}
	story := func(user string, answers ...modeltest.Answer) *modeltest.Story {
		return &modeltest.Story{When: modeltest.When{User: user, Tool: "terminal"}, Answers: answers}
	}
	hostileText := "I write it. " + hostile
	return &modeltest.Script{Key: runModelKey, Stories: []*modeltest.Story{
		{When: modeltest.When{Tool: "-"}, Answers: []modeltest.Answer{modeltest.Text("A title")}},
		story("write a file",
			modeltest.Answer{Text: hostileText, Calls: []modeltest.Call{
				command(`printf 'one\ntwo\n' > new.txt; echo made`)}},
			modeltest.Answer{Calls: []modeltest.Call{command("sh -c 'exit 3'")}},
			finish("new.txt is "+hostile)),
		story("and now", finish("That too.")),
		story("touch", modeltest.Calls(command("touch asked.txt; ls asked.txt")), finish("It is there.")),
		story("in circles", modeltest.Calls(command("echo same"))),
		story("without end", modeltest.Calls(command("date +%N")), modeltest.Calls(command("date +%N%N"))),
		story("hold", modeltest.Calls(command("echo before")), modeltest.Answer{
			Hold: held, Calls: []modeltest.Call{command("echo after")}}, finish("Held on.")),
	}}
}

// runs is a cluster with a scripted model.
type runs struct {
	*running
	model *modeltest.Server
	held  chan struct{}
}

func startRuns(t *testing.T) *runs {
	t.Helper()
	held := make(chan struct{})
	s := &runs{running: startDev(t, t.TempDir()), held: held}
	s.model = modeltest.New(t, runScript(held))
	return s
}

// kill ends a node. In one process it can't cut off the answer that the model holds back.
func (s *runs) kill(t testing.TB, i int) {
	t.Helper()
	if err := s.nodes[i].stop(cluster.ErrAbrupt); err != nil && !strings.Contains(err.Error(), "requests in progress") {
		t.Errorf("killing %s: %v", s.nodes[i].name, err)
	}
}

// user makes a user whose settings name the model.
func (s *runs) user(t testing.TB, name string, settings map[string]any) (map[string]string, caller) {
	t.Helper()
	env, c := s.running.user(t, name)
	body := map[string]any{
		"llm_model": "openai/scripted", "llm_api_key": runModelKey, "llm_base_url": s.model.BaseURL(),
	}
	for name, value := range settings {
		body[name] = value
	}
	c.do(t, http.StatusOK, http.MethodPost, "/api/settings", body)
	return env, c
}

// awaitText waits until a program has printed a text on stdout.
func awaitText(t testing.TB, c *child, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("it prints %q", text), func() error {
		if !strings.Contains(c.stdout.String(), text) {
			return fmt.Errorf("it has printed %q and %q", c.stdout.String(), c.stderr.String())
		}
		return nil
	})
}

// conversationOf returns the id that a run has printed.
func conversationOf(t testing.TB, printed string) string {
	t.Helper()
	_, rest, found := strings.Cut(printed, "conversation ")
	id, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
	if !found || len(strings.TrimSpace(id)) != 32 {
		t.Fatalf("there is no conversation in %q", printed)
	}
	return strings.TrimSpace(id)
}

// stateOf returns the conversation's execution status, as events have told it so far.
func stateOf(t testing.TB, c caller, id string) string {
	t.Helper()
	var list []conversationInfo
	c.do(t, http.StatusOK, http.MethodGet, "/api/v1/app-conversations?ids="+id, nil).json(t, &list)
	if len(list) != 1 {
		t.Fatalf("conversation %s: %+v", id, list)
	}
	return text(list[0].ExecutionStatus)
}

// awaitState waits until the conversation's events say its execution status.
func awaitState(t testing.TB, c caller, id, want string) {
	t.Helper()
	eventually(t, "the conversation is "+want, func() error {
		if state := stateOf(t, c, id); state != want {
			return errors.New(state)
		}
		return nil
	})
}

// TestRun_Ends: what a run prints in a pipe, and its exit code, for each end that it can have.
func TestRun_Ends(t *testing.T) {
	t.Parallel()
	s := startRuns(t)
	t.Run("finished", func(t *testing.T) {
		env, c := s.user(t, "finished", nil)
		code, stdout, stderr := runCommand(t, env, "run", "write a file")
		id := conversationOf(t, stdout)
		want := "conversation " + id + "\n> write a file\nI write it. " + shownHostile + "\n" +
			`$ printf 'one\ntwo\n' > new.txt; echo made` + "\n  made\n" +
			"$ sh -c 'exit 3'\n  exit 3\n\nnew.txt is " + shownHostile + "\n\n1 file changed, 2 insertions(+)\n"
		if code != exitOK || stdout != want {
			t.Errorf("exit %d, printed\n%q\nwant\n%q\n%s", code, stdout, want, stderr)
		}
		if !strings.Contains(stderr, "start: ") {
			t.Errorf("stderr does not say how the start goes: %q", stderr)
		}
		conversationsOf(t, env, c, id)
	})
	t.Run("json", func(t *testing.T) {
		env, _ := s.user(t, "json", nil)
		code, stdout, stderr := runCommand(t, env, "run", "--json", "write a file")
		events, end := linesOfRun(t, stdout)
		if code != exitOK || end.Status != statusFinished || end.Answer != "new.txt is "+hostile ||
			events["ActionEvent"] != 3 || events["ObservationEvent"] != 3 || end.Changes == nil ||
			*end.Changes != (diffSize{1, 2, 0}) {
			t.Errorf("exit %d, %v, %+v\n%s", code, events, end, stderr)
		}
		if strings.ContainsAny(stdout, "\x1b\x07\u009b\u202e") {
			t.Error("the lines of JSON have what a terminal obeys")
		}
	})
	t.Run("rejected", func(t *testing.T) {
		env, c := s.user(t, "rejected", map[string]any{"confirmation_mode": true})
		code, stdout, stderr := runCommand(t, env, "run", "touch it")
		if code != exitRejected || !strings.Contains(stdout, "there is no terminal to ask at") ||
			!strings.Contains(stdout, "rejected: Nobody could be asked") {
			t.Errorf("exit %d: %s%s", code, stdout, stderr)
		}
		id := conversationOf(t, stdout)
		awaitState(t, c, id, statusIdle)
		goesOn(t, env, c, id)
	})
	t.Run("accepted", func(t *testing.T) {
		env, _ := s.user(t, "accepted", map[string]any{"confirmation_mode": true})
		code, stdout, stderr := runCommand(t, env, "run", "--confirm", "accept", "touch it")
		if code != exitOK || !strings.Contains(stdout, "  asked.txt\n") || !strings.Contains(stdout, "\nIt is there.\n") {
			t.Errorf("exit %d: %s%s", code, stdout, stderr)
		}
	})
	t.Run("limit", func(t *testing.T) {
		env, _ := s.user(t, "limit", map[string]any{"max_iterations": 2})
		code, stdout, stderr := runCommand(t, env, "run", "without end")
		if code != exitLimit || !strings.Contains(stdout, "error MaxIterationsReached: ") {
			t.Errorf("exit %d: %s%s", code, stdout, stderr)
		}
	})
	t.Run("stuck", func(t *testing.T) {
		env, _ := s.user(t, "stuck", nil)
		code, stdout, stderr := runCommand(t, env, "run", "in circles")
		if code != exitLimit || !strings.Contains(stdout, "the run has ended: stuck") {
			t.Errorf("exit %d: %s%s", code, stdout, stderr)
		}
	})
	t.Run("setup", func(t *testing.T) {
		env, c := s.user(t, "setup", map[string]any{"confirmation_mode": true})
		for answer, want := range map[string]int{confirmReject: exitRejected, confirmAccept: exitOK} {
			id := c.startSandbox(t)
			inside := c.awaitSandbox(t, id, "RUNNING")
			inSandbox(t, inside, "mkdir -p .openhands; echo 'touch ran-setup' > .openhands/setup.sh")
			code, stdout, stderr := runCommand(t, env, "run", "--sandbox", id, "--confirm", answer, "touch it")
			if code != want || !strings.Contains(stdout, "would run by themselves:\n  .openhands/setup.sh\n") ||
				strings.Contains(stdout, "The conversation began without the files") != (answer == confirmReject) {
				t.Errorf("%s: exit %d: %s%s", answer, code, stdout, stderr)
			}
			if ran := inSandbox(t, inside, "ls"); strings.Contains(ran, "ran-setup") != (answer == confirmAccept) {
				t.Errorf("%s: the sandbox has %s", answer, ran)
			}
		}
	})
	t.Run("failed", func(t *testing.T) {
		env, _ := s.user(t, "failed", map[string]any{"llm_api_key": "sk-wrong"})
		code, stdout, stderr := runCommand(t, env, "run", "write a file")
		if code != exitFailed || !strings.Contains(stdout, "error LLMAuthenticationError: ") {
			t.Errorf("exit %d: %s%s", code, stdout, stderr)
		}
	})
	t.Run("not started", func(t *testing.T) {
		env, _ := s.user(t, "unstarted", nil)
		code, stdout, stderr := runCommand(t, env, "run", "--agent", "nobody", "write a file")
		if code != exitFailed || !strings.Contains(stderr, `has no agent "nobody"`) {
			t.Errorf("exit %d: %s%s", code, stdout, stderr)
		}
	})
}

// goesOn pauses the sandbox of a conversation, and lets the conversation go on.
func goesOn(t *testing.T, env map[string]string, c caller, id string) {
	t.Helper()
	var list []conversationInfo
	c.do(t, http.StatusOK, http.MethodGet, "/api/v1/app-conversations?ids="+id, nil).json(t, &list)
	c.do(t, http.StatusOK, http.MethodPost, "/api/v1/sandboxes/"+list[0].SandboxID+"/pause", nil)
	c.awaitSandbox(t, list[0].SandboxID, "PAUSED")
	code, _, stderr := runCommand(t, env, "conversations", "attach", id)
	if code != exitFailed || !strings.Contains(stderr, "the sandbox is paused: bivouac conversations resume "+id) {
		t.Errorf("attach to a paused sandbox: exit %d: %s", code, stderr)
	}
	if code, stdout, stderr := runCommand(t, env, "conversations", "resume", id); code != exitOK {
		t.Errorf("resume: exit %d: %s%s", code, stdout, stderr)
	}
	awaitState(t, c, id, statusFinished)
}

// conversationsOf uses the other commands on a run that has ended.
func conversationsOf(t *testing.T, env map[string]string, c caller, id string) {
	t.Helper()
	awaitState(t, c, id, statusFinished)
	for _, one := range []struct {
		args string
		want string
	}{
		{"conversations list", id + "  finished  "},
		{"conversations events " + id, "user  message\n    write a file\n"},
		{"conversations list --json", `"id": "` + id + `"`},
		{"conversations show " + id, "status          finished\n"},
		{"conversations attach " + id, "\n\nnew.txt is "},
		{"conversations send " + id + " and_now", "> and_now\n"},
		{"conversations send --detach " + id + " and_now", "sent; follow it with"},
		{"conversations pause " + id, "pauses\n"},
		{"__complete conversations attach ", id + "\t"},
		{"conversations delete --yes " + id, "is deleted\n"},
	} {
		args := strings.Split(one.args, " ")
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "_now", " now")
		}
		want := strings.ReplaceAll(one.want, "_now", " now")
		if code, stdout, stderr := runCommand(t, env, args...); code != exitOK || !strings.Contains(stdout, want) {
			t.Errorf("%s: exit %d: %s%s, want %q", one.args, code, stdout, stderr, want)
		}
	}
	if code, _, stderr := runCommand(t, env, "conversations", "attach", id); code != exitFailed ||
		!strings.Contains(stderr, "you have no conversation") {
		t.Errorf("after the deletion: exit %d: %s", code, stderr)
	}
}

// linesOfRun reads the lines of --json: the number of events of each kind, none twice, and the end.
func linesOfRun(t testing.TB, stdout string) (map[string]int, runResult) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	kinds, seen := map[string]int{}, map[string]bool{}
	for _, line := range lines[:len(lines)-1] {
		var e struct{ ID, Kind string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if e.Kind != "StreamingDeltaEvent" && seen[e.ID] {
			t.Errorf("an event came twice: %s", line)
		}
		seen[e.ID] = true
		kinds[e.Kind]++
	}
	var end runResult
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &end); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	return kinds, end
}

// TestRun_AtATerminal: a person is asked, and answers; the live line is drawn and erased; the text of
// others sends nothing to the terminal.
func TestRun_AtATerminal(t *testing.T) {
	t.Parallel()
	s := startRuns(t)
	env, _ := s.user(t, "ada", map[string]any{"confirmation_mode": true})
	c := startTerminal(t, env, "run", "write a file")
	for _, command := range []string{"$ printf", "$ sh -c"} {
		eventually(t, "it asks about "+command, func() error {
			_, after, _ := strings.Cut(c.stdout.String(), command)
			if !strings.Contains(after, "Allow it? [y/N, or why not] ") {
				return fmt.Errorf("the terminal shows %q", c.stdout.String())
			}
			return nil
		})
		c.types(t, "y\n")
	}
	if code := c.wait(t); code != exitOK {
		t.Errorf("exit %d: %q", code, c.stdout.String())
	}
	out := c.stdout.String()
	for _, want := range []string{"start: ", "\r\x1b[Kthinking", shownHostile, "  made",
		"1 file changed, 2 insertions(+)"} {
		if !strings.Contains(out, want) {
			t.Errorf("the terminal lacks %q: %q", want, out)
		}
	}
	if left := strings.ReplaceAll(out, "\r\x1b[K", ""); strings.ContainsAny(left, "\x1b\x07\u009b\u202e") {
		t.Errorf("the terminal got another's escape codes: %q", left)
	}
}

// TestRun_Signals: the first interrupt breaks the run off, a second one leaves it running.
func TestRun_Signals(t *testing.T) {
	t.Parallel()
	s := startRuns(t)
	env, c := s.user(t, "ada", nil)
	run := startChildWith(t, t.TempDir(), environ(env), "run", "hold it")
	awaitText(t, run, "  before\n")
	if err := run.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := run.wait(t); code != exitInterrupted ||
		!strings.Contains(run.stdout.String(), "the run has ended: paused") {
		t.Errorf("exit %d: %s%s", code, run.stdout.String(), run.stderr.String())
	}
	awaitState(t, c, conversationOf(t, run.stdout.String()), statusPaused)
	id := conversationOf(t, run.stdout.String())

	// The interrupt does not get through.
	env["BIVOUAC_ADDR"] = s.all[0].base
	left := startChildWith(t, t.TempDir(), environ(env), "conversations", "send", id, "hold it")
	awaitText(t, left, "  before\n")
	s.kill(t, 0)
	for range 2 {
		if err := left.cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		awaitText(t, left, "interrupting; ")
	}
	if code := left.wait(t); code != exitInterrupted ||
		!strings.Contains(left.stderr.String(), "the conversation goes on: ") {
		t.Errorf("exit %d: %s%s", code, left.stdout.String(), left.stderr.String())
	}
	s.revive(t, 0)
	awaitState(t, c, id, statusRunning)
	close(s.held)
}

// TestRun_OutlivesItsNodes: while a run works, the node that serves its events is killed, and then
// the leader. No event is lost, none comes twice.
func TestRun_OutlivesItsNodes(t *testing.T) {
	t.Parallel()
	s := startRuns(t)
	env, _ := s.user(t, "ada", nil)
	run := startChildWith(t, t.TempDir(), environ(env), "run", "--json", "hold it")
	awaitText(t, run, `"ObservationEvent"`)
	s.kill(t, 0) // the first address
	lost := s.leader(t)
	s.revive(t, 0)
	if lost != 0 {
		s.kill(t, lost)
		s.leader(t)
	}
	close(s.held)
	if code := run.wait(t); code != exitOK {
		t.Errorf("exit %d: %s", code, run.stderr.String())
	}
	events, end := linesOfRun(t, run.stdout.String())
	if events["ActionEvent"] != 3 || events["ObservationEvent"] != 3 || end.Answer != "Held on." {
		t.Errorf("%v, %+v\n%s", events, end, run.stderr.String())
	}
	if !strings.Contains(run.stderr.String(), "connecting again") {
		t.Errorf("no connection was lost: %s", run.stderr.String())
	}
}

// TestLineChanges_Shortest counts lines as diff does.
func TestLineChanges_Shortest(t *testing.T) {
	long := strings.Repeat("x\n", 3*maxEdits)
	for _, c := range []struct {
		before, after     string
		inserted, deleted int
	}{
		{"", "", 0, 0}, {"", "a\nb\n", 2, 0}, {"a\nb\n", "", 0, 2}, {"a\nb\nc\n", "a\nc\n", 0, 1},
		{"a\nb\nc\n", "a\nB\nc\nd\n", 2, 1}, {"a\nb\nc\na\nb\nb\na\n", "c\nb\na\nb\na\nc\n", 2, 3},
		{"a", "a\n", 0, 0}, {long, "y\n", 1, 3 * maxEdits}, {long, long + "y\n", 1, 0},
	} {
		if inserted, deleted := lineChanges(c.before, c.after); inserted != c.inserted || deleted != c.deleted {
			t.Errorf("%.20q to %.20q: +%d -%d, want +%d -%d", c.before, c.after, inserted, deleted, c.inserted, c.deleted)
		}
	}
}

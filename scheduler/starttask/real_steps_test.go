package starttask

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

// TestStartTask_RealProject_LeaderLostAtEveryStep: with a real agent server and a real repository, the
// clone, the setup script, the git hook, the conversation and its messages are there once, wherever
// the leader is lost, and the token is in no file of the sandbox.
func TestStartTask_RealProject_LeaderLostAtEveryStep(t *testing.T) {
	host := GitHost(t, map[string]string{
		"README": "hi\n", ".openhands/setup.sh": "echo ran >>../setup.log\n",
		".openhands/pre-commit.sh": "#!/bin/sh\nexit 1\n",
	})
	repo := "octo/app"
	bin := agentProgram(t)
	for n := 1; ; n++ {
		w := newTaskWorld(t)
		client, events := w.realAgents(bin)
		w.client = client
		w.must(taskUser, &fsm.ProvidersReplaceBody{Providers: []fsm.Provider{{
			Type: fsm.ProviderGitHub, Host: &host, Ref: w.secret("users/ada/providers/github", "token", GitToken),
		}}})
		task := w.task("1", func(b *fsm.StartTaskCreateBody) { b.Request.SelectedRepository = &repo })
		w.queue(task, strings.Repeat("a", 32), "and then")
		lostAt := w.loseLeaderAt(n)
		if lostAt == "" {
			if n < 20 {
				t.Fatalf("only %d steps were seen", n-1)
			}
			return
		}
		w.run(nil)
		got := w.done(task.ID)
		project := filepath.Join(w.dir, got.SandboxID, "project")
		read := func(name string) string {
			b, _ := os.ReadFile(filepath.Join(project, name)) // "" where it is missing
			return string(b)
		}
		state := fmt.Sprintf("%s %q, %q, %q, %s", got.Status, got.Detail, read("app/README"), read("setup.log"), events(task))
		if want := `READY "", "hi\n", "ran\n", hello, and then`; state != want {
			t.Errorf("lost before step %d (%s): %s, not %s", n, lostAt, state, want)
		}
		if hook := read("app/.git/hooks/pre-commit"); strings.Count(hook, "if [ -x .openhands/pre-commit.sh ]") != 1 {
			t.Errorf("lost before step %d (%s): the hook is %q", n, lostAt, hook)
		}
		if c := w.store.View().Conversation(taskUser, task.ConversationID); c == nil ||
			agent.HexID(c.ID) != task.ConversationID {
			t.Errorf("lost before step %d (%s): the conversation is %+v", n, lostAt, c)
		}
		leftovers, err := filepath.Glob(filepath.Join(project, ".bivouac-clone-*"))
		if err != nil || len(leftovers) > 1 {
			t.Errorf("lost before step %d (%s): %v, %v", n, lostAt, leftovers, err)
		}
		NoCanary(t, w.dir)
	}
}

package starttask_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/starttask"
)

// connect gives the user the git host's token.
func (w *realWorld) connect(host string) {
	w.t.Helper()
	ref, err := w.secrets.Write(w.t.Context(), "users/ada/providers/github",
		map[string]string{"token": starttask.GitToken})
	if err != nil {
		w.t.Fatal(err)
	}
	w.must("ada", &fsm.ProvidersReplaceBody{Providers: []fsm.Provider{{Type: fsm.ProviderGitHub, Host: &host, Ref: ref}}})
}

// watchCommandLines looks for a text in the command lines of all processes until the returned
// function is called, which says how many it saw and which had the text.
func watchCommandLines(text string) (stop func() (seen int, found []string)) {
	done, seen := make(chan struct{}), map[string]bool{}
	var found []string
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, path := range lines {
				line, _ := os.ReadFile(path)
				if line = bytes.ReplaceAll(line, []byte{0}, []byte{' '}); !seen[string(line)] {
					seen[string(line)] = true
					if strings.Contains(string(line), text) {
						found = append(found, string(line))
					}
				}
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	return func() (int, []string) {
		close(done)
		wg.Wait()
		git := 0
		for line := range seen {
			if strings.Contains(line, "git-remote-http") || strings.Contains(line, "clone --quiet") {
				git++
			}
		}
		return git, found
	}
}

func TestStartTasks_RealRepository(t *testing.T) {
	host := starttask.GitHost(t, map[string]string{
		"README": "hi\n",
		// It asks for itself, in case it runs twice or beside itself.
		".openhands/setup.sh": "echo begin >>../setup.log; sleep 1; echo end >>../setup.log; env >../setup.env; touch made\n",
		// The commit has the repository's hook in its way.
		".openhands/pre-commit.sh": "#!/bin/sh\ntest ! -e forbidden\n",
	})
	w := newRealWorld(t)
	w.connect(host)
	repo := "octo/app"
	stop := watchCommandLines("CANARY")
	task := w.start(1, func(q *fsm.StartRequest) { q.SelectedRepository = &repo })
	// Leaders come and go in the middle of every step.
	seen := map[fsm.StartTaskStatus]bool{}
	for !w.store.View().StartTask("ada", task.ID).Done() {
		end := w.lead()
		was := w.store.View().StartTask("ada", task.ID).Status
		timeout := time.After(5 * time.Second)
		for moved := false; !moved; {
			v := w.store.View()
			now := v.StartTask("ada", task.ID)
			seen[now.Status] = true
			if moved = now.Status != was || now.Done(); moved {
				break
			}
			select {
			case <-v.Changed():
			case <-time.After(200 * time.Millisecond):
				moved = seen[fsm.StartTaskRunningSetupScript] && was == fsm.StartTaskRunningSetupScript
			case <-timeout:
				t.Fatalf("the task stays %s: %q", now.Status, now.Detail)
			}
		}
		end()
	}
	w.lead()
	task = w.ready(task)
	for _, status := range []fsm.StartTaskStatus{fsm.StartTaskPreparingRepository, fsm.StartTaskRunningSetupScript,
		fsm.StartTaskSettingUpGitHooks, fsm.StartTaskSettingUpSkills, fsm.StartTaskStartingConversation} {
		if !seen[status] {
			t.Errorf("the task was never %s", status)
		}
	}
	git, found := stop()
	if git == 0 || len(found) > 0 {
		t.Errorf("of %d command lines of git these have the token: %q", git, found)
	}
	url, key, s := w.running(task.SandboxID)
	ws := s.Status.Placement.Workspace
	app := filepath.Join(ws, "project", "app")
	if b, err := os.ReadFile(filepath.Join(app, "README")); err != nil || string(b) != "hi\n" {
		t.Errorf("README: %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(ws, "project", "setup.log")); err != nil || string(b) != "begin\nend\n" {
		t.Errorf("the setup script ran: %q, %v", b, err)
	}
	starttask.NoCanary(t, ws)
	out, err := w.agents.RunCommand(t.Context(), url, key, agent.Command{Dir: app, Command: `set -x
git config user.name a; git config user.email a@b; git remote -v; git branch --show-current
git commit -qm one --allow-empty && touch forbidden && git commit -qm two --allow-empty; git log --oneline | wc -l`})
	if err != nil || !strings.Contains(out.Stdout, "openhands-workspace-c0000000\n2") {
		t.Errorf("in the clone: %+v, %v", out, err)
	}
	// A repository that does not exist fails the task, with git's error.
	gone := "octo/gone"
	bad := w.start(2, func(q *fsm.StartRequest) { q.SelectedRepository, q.SandboxID = &gone, &task.SandboxID })
	w.await("the task ends", func(v *fsm.View) bool { return v.StartTask("ada", bad.ID).Done() })
	if got := w.store.View().StartTask("ada", bad.ID); got.Status != fsm.StartTaskError ||
		!strings.Contains(got.Detail, "octo/gone") ||
		strings.Contains(got.Detail, "CANARY") {
		t.Errorf("task %s %q", got.Status, got.Detail)
	}
}

// A conversation without a repository has an empty one, and does not wait for it.
func TestStartTasks_RealEmptyRepository(t *testing.T) {
	w := newRealWorld(t)
	w.lead()
	task := w.ready(w.start(1, nil))
	_, _, s := w.running(task.SandboxID)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); ; <-tick.C {
		if _, err := os.Stat(filepath.Join(s.Status.Placement.Workspace, "project", ".git", "HEAD")); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("there is no repository")
		}
	}
}

package starttask_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/starttask"
)

// confirm sets a user's confirmation mode, and connects the user to the git host.
func (w *realWorld) confirm(user, host string, on bool) {
	w.t.Helper()
	path := "users/" + user + "/providers/github"
	ref, err := w.secrets.Write(w.t.Context(), path, map[string]string{"token": starttask.GitToken})
	if err != nil {
		w.t.Fatal(err)
	}
	w.must(user, &fsm.SettingsPutBody{Values: fsm.SettingsValues{ConfirmationMode: &on}})
	github := fsm.Provider{Type: fsm.ProviderGitHub, Host: &host, Ref: ref}
	w.must(user, &fsm.ProvidersReplaceBody{Providers: []fsm.Provider{github}})
}

// startApp starts a conversation with the repository octo/app.
func (w *realWorld) startApp(user string, n int) *fsm.StartTask {
	w.t.Helper()
	repo := "octo/app"
	return w.must(user, &fsm.StartTaskCreateBody{
		ID: fmt.Sprintf("%032x", n), ConversationID: fmt.Sprintf("c%031x", n),
		Request: fsm.StartRequest{AgentType: "default", SelectedRepository: &repo},
	}).StartTask
}

// asking waits until the task asks.
func (w *realWorld) asking(task *fsm.StartTask) *fsm.StartTask {
	w.t.Helper()
	var got *fsm.StartTask
	w.await("the task asks", func(v *fsm.View) bool {
		got = v.StartTask(task.UserID, task.ID)
		if got.Done() {
			w.t.Fatalf("the task did not ask: %s %q, %s", got.Status, got.Detail, w.ran(got))
		}
		return strings.Contains(got.Detail, "POST /api/v1/start-tasks/"+task.ID+"/setup")
	})
	return got
}

// end waits for the task and says what ran.
func (w *realWorld) end(task *fsm.StartTask) string {
	w.t.Helper()
	var got *fsm.StartTask
	w.await("the task ends", func(v *fsm.View) bool { got = v.StartTask(task.UserID, task.ID); return got.Done() })
	return fmt.Sprintf("%s, %s", got.Status, w.ran(got))
}

// ran says what the setup script has written, and whether the git hook is there.
func (w *realWorld) ran(task *fsm.StartTask) string {
	w.t.Helper()
	_, _, s := w.running(task.SandboxID)
	project := filepath.Join(s.Status.Placement.Workspace, "project")
	log, _ := os.ReadFile(filepath.Join(project, "setup.log"))
	_, noHook := os.Stat(filepath.Join(project, "app/.git/hooks/pre-commit"))
	return fmt.Sprintf("setup %q, hook %v", log, noHook == nil)
}

// TestStartTasks_RealRepository_AsksFirst: with the program of the sandboxes and a real repository, in
// confirmation mode the repository's scripts run after their user's yes and not without it.
func TestStartTasks_RealRepository_AsksFirst(t *testing.T) {
	host, change := starttask.GitHostToChange(t, map[string]string{
		".openhands/setup.sh": "echo one >>../setup.log\n", ".openhands/pre-commit.sh": "#!/bin/sh\nexit 1\n",
	})
	w := newRealWorld(t)
	w.must("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	w.must("", &fsm.APIKeyCreateBody{Lookup: "bbbbbbbbbbbb", Hash: strings.Repeat("b", 64), Name: "k", UserID: "bob"})
	w.confirm("ada", host, true)
	w.confirm("bob", host, true)
	w.lead()
	const none = `setup "", hook false`
	first := w.asking(w.startApp("ada", 1))
	if got := w.ran(first); got != none {
		t.Errorf("before the answer: %s", got)
	}
	w.must("ada", &fsm.StartTaskAnswerBody{ID: first.ID, Hash: first.Setup.Hash, Accept: true})
	if got := w.end(first); got != `READY, setup "one\n", hook true` {
		t.Errorf("after the yes: %s", got)
	}
	if got := w.end(w.startApp("ada", 2)); got != `READY, setup "one\n", hook true` {
		t.Errorf("the same files again: %s", got)
	}
	other := w.asking(w.startApp("bob", 3))
	if got := w.ran(other); got != none || other.Setup.Hash != first.Setup.Hash {
		t.Errorf("another user, before the answer: %s", got)
	}
	change(".openhands/setup.sh", "echo two >>../setup.log\n")
	changed := w.asking(w.startApp("ada", 4))
	if got := w.ran(changed); got != none || changed.Setup.Hash == first.Setup.Hash {
		t.Errorf("another file, before the answer: %s", got)
	}
	w.must("ada", &fsm.StartTaskAnswerBody{ID: changed.ID, Hash: changed.Setup.Hash})
	if got := w.end(changed); got != "READY, "+none {
		t.Errorf("after the no: %s", got)
	}
	w.must("bob", &fsm.StartTaskAnswerBody{ID: other.ID, Hash: other.Setup.Hash, Accept: true})
	if got := w.end(other); got != `READY, setup "one\n", hook true` {
		t.Errorf("another user, whose branch has moved since: %s", got)
	}
	w.confirm("ada", host, false)
	if got := w.end(w.startApp("ada", 5)); got != `READY, setup "two\n", hook true` {
		t.Errorf("without confirmation mode: %s", got)
	}
}

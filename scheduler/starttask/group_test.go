package starttask

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

// group sets the user's grouping strategy, and whether clones are whole.
func (w *taskWorld) group(strategy string, full bool) {
	w.t.Helper()
	w.must("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	w.must(taskUser,
		&fsm.SettingsPutBody{Values: fsm.SettingsValues{SandboxGroupingStrategy: &strategy, GitFullClone: &full}})
}

// TestStartTask_Grouped: conversations that share a sandbox have a directory each on a real agent
// server, the first of them too, and the sandbox stays until the last one is deleted.
func TestStartTask_Grouped(t *testing.T) {
	w := newTaskWorld(t)
	w.client, _ = w.realAgents(agentProgram(t))
	w.group(fsm.GroupNewest, false)
	w.run(nil)
	var tasks []*fsm.StartTask
	for _, id := range []string{"1", "2", "3"} {
		task := w.task(id, nil)
		if got := w.done(task.ID); got.Status != fsm.StartTaskReady || !got.Grouped {
			t.Fatalf("%+v", got)
		}
		tasks = append(tasks, w.store.View().StartTask(taskUser, task.ID))
	}
	sandbox := tasks[0].SandboxID
	for _, task := range tasks {
		if task.SandboxID != sandbox {
			t.Fatalf("the sandboxes %s and %s", sandbox, task.SandboxID)
		}
		dir := filepath.Join(w.dir, sandbox, "project", task.ConversationID)
		if s, err := os.Stat(dir); err != nil || !s.IsDir() {
			t.Errorf("%s: %v", dir, err)
		}
	}
	for i, task := range tasks {
		w.must(taskUser, &fsm.ConversationDeleteBody{ID: task.ConversationID, DeleteSandbox: true})
		s := w.store.View().SandboxAny(sandbox)
		if kept := s != nil && s.Desired != fsm.DesiredDeleted; kept != (i < 2) {
			t.Errorf("after the deletion of %d of 3 conversations: %+v", i+1, s)
		}
	}
}

// TestStartTask_GroupedRepositories: two conversations clone the same repository into a sandbox, each
// into its own directory, with the whole history where the settings say so.
func TestStartTask_GroupedRepositories(t *testing.T) {
	w := newTaskWorld(t)
	w.group(fsm.GroupAny, true)
	w.run(nil)
	for _, id := range []string{"1", "2"} {
		task := w.task(id, func(b *fsm.StartTaskCreateBody) { b.Request.SelectedRepository = ptr("octo/app") })
		got := w.done(task.ID)
		dir := "/ws/" + got.SandboxID + "/project/" + got.ConversationID
		w.agents.mu.Lock()
		script := w.agents.commands[len(w.agents.commands)-1]
		at := w.agents.created[agent.DashedID(got.ConversationID)].Workspace.WorkingDir
		w.agents.mu.Unlock()
		if got.Status != fsm.StartTaskReady || at != dir+"/app" || !strings.Contains(script, "cd '"+dir+"'\n") ||
			strings.Contains(script, "--depth") {
			t.Errorf("%s in %s by\n%s", got.Status, at, script)
		}
	}
	if n := w.sandboxes(); n != 1 {
		t.Errorf("%d sandboxes", n)
	}
}

// TestStartTask_GroupedOnlyByChoice: a start that names its sandbox has the sandbox's own directory.
func TestStartTask_GroupedOnlyByChoice(t *testing.T) {
	w := newTaskWorld(t)
	w.run(nil)
	first := w.task("1", nil)
	sandbox := w.done(first.ID).SandboxID
	w.group(fsm.GroupFewestConversations, false)
	named := w.task("2", func(b *fsm.StartTaskCreateBody) { b.Request.SandboxID = &sandbox })
	if got := w.done(named.ID); got.Status != fsm.StartTaskReady || got.Grouped || got.SandboxID != sandbox {
		t.Errorf("%+v", got)
	}
}

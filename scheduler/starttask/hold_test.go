package starttask

import (
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// Under a hold a task runs only if it was created since.
func TestStartTask_HeldUntilTheRelease(t *testing.T) {
	w := newTaskWorld(t)
	w.must("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	older := w.task("1", nil)
	w.must("",
		&fsm.HoldBeginBody{
			At:       w.store.View().Index(),
			Findings: []fsm.Finding{{Kind: fsm.FindingRestored, Detail: "a test"}},
		})
	w.run(nil)
	newer := w.done(w.task("2", nil).ID)
	if newer.Status != fsm.StartTaskReady {
		t.Errorf("a task of after the hold began: %+v", newer)
	}
	if now := w.store.View().StartTask(taskUser, older.ID); now.Done() || now.SandboxID != "" {
		t.Errorf("a task of before: %+v", now)
	}
	w.must("", &fsm.HoldReleaseBody{})
	if got := w.done(older.ID); got.Status != fsm.StartTaskReady {
		t.Errorf("after the release: %+v", got)
	}
}

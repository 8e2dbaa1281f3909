package starttask

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/access"
)

// warm gives the default spec a pool with ready members.
func (w *taskWorld) warm(n int) {
	w.t.Helper()
	spec := w.store.View().Specs()[0]
	w.must("", &fsm.SpecPoolBody{ID: spec.ID, Size: n})
	for i := range n {
		id := fmt.Sprintf("warm%d", i)
		ref, hash, err := access.WriteKeys(w.t.Context(), w.secrets, id)
		if err != nil {
			w.t.Fatal(err)
		}
		m := w.must("", &fsm.PoolAddBody{
			ID: id, SpecID: spec.ID, InitRef: w.secret(fsm.SandboxInitPath(id), fsm.MemberSecretKey,
				"init"), KeyRef: ref, KeyHash: hash,
		}).Sandbox
		w.must("", &fsm.SandboxObserveBody{Observations: []fsm.Observation{{ID: id, Status: fsm.SandboxStatus{
			State: fsm.SandboxRunning, Generation: m.Generation,
			Placement: &fsm.Placement{Address: "127.0.0.1", Ports: map[string]int{fsm.PortAgentServer: 8000}, Workspace: "/ws"},
		}}}})
	}
}

func TestStartTask_ClaimsAWarmSandbox(t *testing.T) {
	w := newTaskWorld(t)
	w.warm(2)
	ids := []string{w.task("1", nil).ID, w.task("2", nil).ID, w.task("3", nil).ID}
	defer w.run(nil)()
	claimed := 0
	var used []string
	for _, id := range ids {
		task := w.done(id)
		if task.Status != fsm.StartTaskReady {
			t.Fatalf("%+v", task)
		}
		sb := w.store.View().SandboxAny(task.SandboxID)
		if sb.Claimed {
			claimed++
		}
		used = append(used, sb.ID)
		entry, err := w.secrets.Read(t.Context(), sb.KeyRef)
		if err != nil || entry[fsm.MemberKey] == "" || entry[fsm.MemberSecretKey] == "" {
			t.Errorf("the key of %s: %v", sb.ID, err)
		}
	}
	slices.Sort(used)
	if claimed != 2 || len(slices.Compact(used)) != 3 {
		t.Errorf("%d claimed of two, for the sandboxes %v", claimed, used)
	}
	// Entries: a key for each sandbox and what initialised the members.
	if paths := w.secrets.paths(); len(paths) != 5 {
		t.Errorf("left in the secret store: %v", paths)
	}
}

// The client chooses the conversation's id; its sandbox may be any.
func TestStartTask_WishedConversationIsGivenAWarmSandbox(t *testing.T) {
	w := newTaskWorld(t)
	w.warm(1)
	task := w.task("1", func(b *fsm.StartTaskCreateBody) { b.Request.ConversationID = ptr(b.ConversationID) })
	defer w.run(nil)()
	if task = w.done(task.ID); task.SandboxID != "warm0" {
		t.Errorf("the sandbox is %s", task.SandboxID)
	}
}

// A task that does not get its sandbox after all leaves no key behind: the one that was drawn is
// deleted at once.
func TestStartTask_RefusedSandboxLeavesNoKey(t *testing.T) {
	w := newTaskWorld(t)
	task := w.task("1", nil)
	w.must("", &fsm.SpecDeleteBody{ID: "local"})
	w.run(nil)
	if got := w.done(task.ID); got.Status != fsm.StartTaskError || !strings.Contains(got.Detail, "no sandbox spec") {
		t.Fatalf("%s %q", got.Status, got.Detail)
	}
	w.awaitPathGone(fsm.SandboxKeyPath(newSandboxID(w.store.View(), task)))
	// Its row stays, and with it the row's bytes.
	if u := w.store.View().Usage("ada"); u.Running+u.Total != 0 || u.CPU+u.Memory != 0 {
		t.Errorf("its sandbox still counts: %+v", u)
	}
}

// An accepted task does not fail at a limit that was set or reached since: it shows what it waits
// for, and continues when there is room.
func TestStartTask_WaitsForRoom(t *testing.T) {
	w := newTaskWorld(t)
	task := w.task("1", nil)
	w.must("", &fsm.InstallationConfigureBody{Installation: fsm.Installation{PerUser: fsm.Limits{CPU: 1}}})
	factor := int64(64) // it asks for more than was reserved
	w.must("ada", &fsm.SettingsPutBody{Values: fsm.SettingsValues{RemoteRuntimeResourceFactor: &factor}})
	w.run(nil)
	w.await(task.ID, func(task *fsm.StartTask) bool { return strings.Contains(task.Detail, "limit of CPU") })
	w.must("", &fsm.InstallationConfigureBody{})
	if got := w.done(task.ID); got.Status != fsm.StartTaskReady {
		t.Errorf("%s %q", got.Status, got.Detail)
	}
}

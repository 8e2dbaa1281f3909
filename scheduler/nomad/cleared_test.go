package nomad_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// gitClean makes the directory a repository and cleans it as agents do.
func (l *life) gitClean(dir string) {
	l.Helper()
	for _, args := range [][]string{{"init", "-q"}, {"clean", "-ffdxq"}} {
		out, err := exec.CommandContext(l.Context(), "git", append([]string{"-C", dir}, args...)...).CombinedOutput()
		if err != nil {
			l.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
}

// An agent that runs `git clean -ffdx` in the root of its workspace deletes the marker. The next
// leader finds the row RUNNING in the same allocation, so it writes the marker again.
func TestLife_WorkspaceCleaned_RunsOnUnderTheNextLeader(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	for _, driver := range drivers {
		t.Run(string(driver), func(t *testing.T) {
			t.Parallel()
			l := newLife(t)
			id := l.create(l.template(driver))
			first := l.reach(id, fsm.SandboxRunning).Placement
			dir := l.hostPath(id)
			marker := filepath.Join(dir, ".bivouac", "sandbox")
			l.must(os.WriteFile(filepath.Join(dir, "kept.txt"), []byte("tracked"), 0o644))
			l.gitClean(dir)
			if _, err := os.Stat(marker); err == nil {
				t.Fatal("the clean left the marker")
			}
			l.stop()
			l.lead()
			l.until("the marker again", func() error {
				_, err := os.Stat(marker)
				return err
			})
			if sb := l.store.Sandbox(id); sb.State() != fsm.SandboxRunning || !sb.Status.Placement.Equal(first) {
				t.Fatalf("after the change of leaders: %+v", sb.Status)
			}
			if o := l.observed(scheduler.Job{SandboxID: id, ClusterID: l.cluster}); o.Stopped || o.Live != 1 {
				t.Fatalf("the job: %+v", o)
			}
		})
	}
}

// The marker is deleted, and then the task ends without time to write it again: the sandbox's
// owner accepts the workspace, and it runs.
func TestLife_WorkspaceCleanedAndTaskKilled_IsAcceptedByACommand(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	id := l.create(l.template(fsm.DriverRawExec))
	l.reach(id, fsm.SandboxRunning)
	dir := l.hostPath(id)
	l.must(os.RemoveAll(filepath.Join(dir, ".bivouac")))
	l.must(os.WriteFile(filepath.Join(dir, "work.txt"), []byte("the agent's"), 0o644))
	l.stop()
	l.endTask(id)
	l.lead()
	st := l.reach(id, fsm.SandboxError)
	if st.Reason != fsm.ReasonWorkspace {
		t.Fatalf("status %+v", st)
	}
	l.wish(&fsm.SandboxAcceptWorkspaceBody{ID: id})
	l.wish(&fsm.SandboxResumeBody{ID: id})
	l.reach(id, fsm.SandboxRunning)
	if b, err := os.ReadFile(filepath.Join(dir, "work.txt")); string(b) != "the agent's" {
		t.Errorf("the agent's file: %q, %v", b, err)
	}
	if _, err := os.Stat(filepath.Join(dir, ".bivouac", "sandbox")); err != nil {
		t.Error(err)
	}
}

// endTask stops the sandbox's job by hand and waits for the end of its task.
func (l *life) endTask(id string) {
	l.Helper()
	_, _, err := l.s.client.Jobs().Deregister("sandbox-"+id, false, nil)
	l.must(err)
	job := scheduler.Job{SandboxID: id, ClusterID: l.cluster}
	l.look(job, "stopped", func(o scheduler.Observed) bool { return o.Stopped && o.Live == 0 })
}

package nomad_test

import (
	"os"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// A workspace whose directory is gone from its client must not come back empty.
func TestLife_WorkspaceDirectoryGone_IsAnErrorAndNotAnEmptyOne(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(string(driver), func(t *testing.T) {
			t.Parallel()
			l := newLife(t)
			id := l.create(l.template(driver))
			l.reach(id, fsm.SandboxRunning)
			dir := l.hostPath(id)
			l.wish(&fsm.SandboxPauseBody{ID: id})
			l.reach(id, fsm.SandboxPaused)
			l.must(os.Rename(dir, dir+".kept"))
			for range 2 {
				l.wish(&fsm.SandboxResumeBody{ID: id})
				st := l.reach(id, fsm.SandboxError)
				t.Logf("%s: %s", st.Reason, st.Detail)
				if st.Reason != fsm.ReasonWorkspace || !strings.Contains(st.Detail, dir) {
					t.Errorf("want %s and %s", fsm.ReasonWorkspace, dir)
				}
				if _, err := os.Stat(dir); err == nil {
					t.Errorf("an empty directory is in the place of the workspace")
				}
			}
			// Once the operator restores it, it is the sandbox's again.
			l.must(os.Rename(dir+".kept", dir))
			l.wish(&fsm.SandboxResumeBody{ID: id})
			l.reach(id, fsm.SandboxRunning)
		})
	}
}

package e2e

import (
	"encoding/json"
	"testing"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// workspaceFile is the file that the drills keep in a workspace.
const workspaceFile = "kept.txt"

// keepFile writes the sandbox's id into a file of its workspace.
func keepFile(t testing.TB, sb testcluster.Sandbox, name string) {
	t.Helper()
	testcluster.Eventually(t, "a file in sandbox "+sb.ID, func() error {
		dir, err := sb.WorkspaceDir()
		if err != nil {
			return err
		}
		return sb.WriteFile(dir+"/"+name, sb.ID)
	})
}

// hasFile checks that file.
func hasFile(t testing.TB, sb testcluster.Sandbox, name string) {
	t.Helper()
	testcluster.Eventually(t, "the file in sandbox "+sb.ID, func() error {
		dir, err := sb.WorkspaceDir()
		if err != nil {
			return err
		}
		got, err := sb.ReadFile(dir + "/" + name)
		if err == nil && got != sb.ID {
			raw, _ := json.Marshal(got)
			t.Fatalf("the file in sandbox %s holds %s", sb.ID, raw)
		}
		return err
	})
}

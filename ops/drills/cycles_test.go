package drills

import (
	"testing"

	"bivouac.dev/bivouac/ops/fleet"
)

// TestPauseResumeCycles pauses and resumes one sandbox of each driver, with
// `nomad system gc` between: it keeps its id and its file, and is never twice.
func TestPauseResumeCycles(t *testing.T) {
	f := fleet.Start(t, fleet.Options{Docker: true})
	cycles := 5
	if long() {
		cycles = 20
	}
	ids := map[string]string{}
	for _, spec := range f.Drivers() {
		ids[spec] = f.Nodes[0].StartSandbox(t, spec)
		keepFile(t, f.Nodes[1].AwaitSandbox(t, ids[spec], "RUNNING"), workspaceFile)
	}
	for i := range cycles {
		node := f.Nodes[i%len(f.Nodes)]
		var all []string
		for _, id := range ids {
			all = append(all, id)
			node.Change(t, id, "pause")
		}
		for _, id := range all {
			node.AwaitSandbox(t, id, "PAUSED")
		}
		f.GC(t)
		fleet.Eventually(t, "both are stopped", func() error { return f.Audit(fleet.Expected{Paused: all}) })
		for _, id := range all {
			node.Change(t, id, "resume")
		}
		for _, id := range all {
			hasFile(t, node.AwaitSandbox(t, id, "RUNNING"), workspaceFile)
		}
		fleet.Eventually(t, "both run once", func() error { return f.Audit(fleet.Expected{Running: all}) })
	}
}

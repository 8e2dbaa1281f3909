package e2e

import (
	"testing"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// TestPauseResumeCycles pauses and resumes one sandbox of each driver, with `nomad system gc`
// in between. It keeps its id and its file and never has two copies.
func TestPauseResumeCycles(t *testing.T) {
	f := testcluster.Start(t, testcluster.Options{Docker: true})
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
		f.Holds(t, testcluster.Expected{Paused: all})
		for _, id := range all {
			node.Change(t, id, "resume")
		}
		for _, id := range all {
			hasFile(t, node.AwaitSandbox(t, id, "RUNNING"), workspaceFile)
		}
		f.Holds(t, testcluster.Expected{Running: all})
	}
}

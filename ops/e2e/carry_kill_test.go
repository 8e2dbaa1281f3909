package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// TestLeaderDiesCopying kills the leader when the job beside a workspace is registered. Its successor
// ends that job, makes the copy, and nothing beside the workspace is left.
func TestLeaderDiesCopying(t *testing.T) {
	store := t.TempDir()
	f := testcluster.Start(t, testcluster.Options{
		Tags: "drills", Config: fmt.Sprintf("workspaces {\n  backup   = \"file://%s\"\n  interval = \"1h\"\n}\n", store),
	})
	d := &killDrill{Cluster: f, spec: "raw"}
	followers := f.Followers(t)
	id := d.sandbox(t, followers[0])
	const label = "after run workspace job"
	d.arm(t, label)
	followers[0].Change(t, id, "pause")
	there := d.died(t, label, followers...)
	testcluster.Eventually(t, "there is a copy, and no job beside the workspace", func() error {
		jobs, err := f.Jobs()
		for _, j := range jobs {
			if strings.HasPrefix(j.ID, "workspace-") {
				err = errors.Join(err, fmt.Errorf("the job %s is there", j.ID))
			}
		}
		files := 0
		walked := filepath.WalkDir(store, func(_ string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				files++
			}
			return err
		})
		if files == 0 {
			err = errors.Join(err, errors.New("the store has no copy"))
		}
		return errors.Join(err, walked)
	})
	var log []byte
	for _, n := range f.Nodes {
		raw, err := os.ReadFile(n.Log)
		if err != nil {
			t.Fatal(err)
		}
		log = append(log, raw...)
	}
	if !strings.Contains(string(log), "jobs that a former leader left beside workspaces are ended") {
		t.Error("no leader says that it ended what the dead one left")
	}
	there.Change(t, id, "resume")
	d.hasFile(t, there, id)
	f.Restart(t)
}

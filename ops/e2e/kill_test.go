package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// killPoint is a point in the leader's work at which it is killed.
type killPoint struct {
	// label is the label of that call of scheduler/fault.At.
	label string
	// during is the operation that reaches the point: start, pause, resume or delete.
	during string
}

// killPoints are the labelled points, in the order in which an operation reaches them.
func killPoints() []killPoint {
	return []killPoint{
		{label: "task write key", during: "start"},
		{label: "task bind", during: "start"},
		{label: "before step start", during: "start"},
		{label: "before create volume", during: "start"},
		{label: "after create volume", during: "start"},
		{label: "before register job", during: "start"},
		{label: "after register job", during: "start"},
		{label: "before observe RUNNING", during: "start"},
		{label: "task create conversation", during: "start"},
		{label: "task finish", during: "start"},
		{label: "task forget", during: "start"},
		{label: "before step stop", during: "pause"},
		{label: "after tag version", during: "pause"},
		{label: "before stop job", during: "pause"},
		{label: "after stop job", during: "pause"},
		{label: "before observe PAUSED", during: "pause"},
		{label: "before revert job", during: "resume"},
		{label: "after revert job", during: "resume"},
		{label: "after observe RUNNING", during: "resume"},
		{label: "after stop job", during: "delete"},
		{label: "before deregister job", during: "delete"},
		{label: "after deregister job", during: "delete"},
		{label: "after delete volume", during: "delete"},
		{label: "before remove row", during: "delete"},
		{label: "after remove row", during: "delete"},
	}
}

// TestKilledLeader kills the leader with SIGKILL at each labelled point of a sandbox's life.
// Its successor must finish the operation: one live job for each sandbox that should run and
// none for the others, no other job changed, no volume and no key left of a deleted sandbox,
// and every file in place.
func TestKilledLeader(t *testing.T) {
	f := testcluster.Start(t, testcluster.Options{Tags: "drills", Docker: true})
	d := &killDrill{Cluster: f, spec: "raw"}
	d.foreign = []testcluster.Foreign{f.AddForeign(t, "somebody-elses"), f.AddForeign(t, "sandbox-somebodyElses")}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "killed at\tduring\tspec\tuntil right\tverdict")
	for _, p := range killPoints() {
		d.point(t, w, p)
	}
	if slices.Contains(f.Drivers(), "docker") {
		d.spec = "docker"
		f.SetDefault(t, "docker")
		for _, p := range killPoints() {
			if long() || slices.Contains([]string{
				"after register job",
				"after stop job",
				"after revert job",
				"after deregister job",
			}, p.label) {
				d.point(t, w, p)
			}
		}
	}
	w.Flush()
	t.Logf("\n%s", table.String())
}

// long reports whether the environment selects the long versions.
func long() bool { return os.Getenv("BIVOUAC_DRILL") == "long" }

// killDrill is a test cluster and its sandboxes.
type killDrill struct {
	*testcluster.Cluster
	spec    string
	foreign []testcluster.Foreign
	running []string
}

// point runs one kill as a subtest and a row of the table.
func (d *killDrill) point(t *testing.T, table *tabwriter.Writer, p killPoint) {
	begin := time.Now()
	name := strings.ReplaceAll(d.spec+"/"+p.during+"/"+p.label, " ", "_")
	ok := t.Run(name, func(t *testing.T) { d.kill(t, p) })
	verdict := "as it should be"
	if !ok {
		verdict = "FAILED"
	}
	fmt.Fprintf(table, "%s\t%s\t%s\t%.1f s\t%s\n", p.label, p.during, d.spec, time.Since(begin).Seconds(), verdict)
}

// kill runs the operation through a node that survives, and checks the result.
func (d *killDrill) kill(t *testing.T, p killPoint) {
	defer d.Restart(t)
	followers := d.Followers(t)
	here, there := followers[0], followers[1]
	var paused []string
	switch p.during {
	case "start":
		d.arm(t, p.label)
		task := here.StartConversation(t)
		there = d.died(t, p.label, there, here)
		id := *there.AwaitTask(t, task).SandboxID
		d.running = append(d.running, id)
		d.keepFile(t, there, id)
	case "pause":
		id := d.sandbox(t, here)
		d.arm(t, p.label)
		here.Change(t, id, "pause")
		there = d.died(t, p.label, there, here)
		there.AwaitSandbox(t, id, "PAUSED")
		paused = d.take(id)
		d.Holds(t, testcluster.Expected{Running: d.running, Paused: paused, Foreign: d.foreign})
		there.Change(t, id, "resume")
		d.running = append(d.running, id)
	case "resume":
		id := d.sandbox(t, here)
		here.Change(t, id, "pause")
		here.AwaitSandbox(t, id, "PAUSED")
		d.arm(t, p.label)
		here.Change(t, id, "resume")
		there = d.died(t, p.label, there, here)
	case "delete":
		id := d.sandbox(t, here)
		d.arm(t, p.label)
		here.Change(t, id, "delete")
		there = d.died(t, p.label, there, here)
		d.take(id)
	}
	for _, id := range d.running {
		d.hasFile(t, there, id)
	}
	d.Holds(t, testcluster.Expected{Running: d.running, Foreign: d.foreign})
	if n, err := there.Count("/api/v1/sandboxes/search"); err != nil || n != len(d.running) {
		t.Errorf("%s lists %d sandboxes, want %d: %v", there.Name, n, len(d.running), err)
	}
}

// sandbox returns a running sandbox of the spec with a file in it.
func (d *killDrill) sandbox(t *testing.T, at *testcluster.Node) string {
	t.Helper()
	if n := len(d.running); n > 0 {
		if last := d.running[n-1]; d.specOf(t, at, last) == d.spec {
			return last
		}
	}
	id := at.StartSandbox(t, d.spec)
	d.keepFile(t, at, id)
	d.running = append(d.running, id)
	return id
}

func (d *killDrill) specOf(t *testing.T, at *testcluster.Node, id string) string {
	t.Helper()
	return at.AwaitSandbox(t, id, "RUNNING").SpecID
}

// take removes a sandbox from the running ones.
func (d *killDrill) take(id string) []string {
	d.running = slices.DeleteFunc(d.running, func(r string) bool { return r == id })
	return []string{id}
}

func (d *killDrill) keepFile(t *testing.T, at *testcluster.Node, id string) {
	t.Helper()
	keepFile(t, at.AwaitSandbox(t, id, "RUNNING"), workspaceFile)
}

func (d *killDrill) hasFile(t *testing.T, at *testcluster.Node, id string) {
	t.Helper()
	hasFile(t, at.AwaitSandbox(t, id, "RUNNING"), workspaceFile)
}

// arm sets the point at which the next process dies.
func (d *killDrill) arm(t *testing.T, label string) {
	t.Helper()
	_ = os.Remove(filepath.Join(d.DrillDir, "died"))
	if err := os.WriteFile(filepath.Join(d.DrillDir, "die-at.new"), []byte(label), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(d.DrillDir, "die-at.new"), filepath.Join(d.DrillDir, "die-at")); err != nil {
		t.Fatal(err)
	}
}

// died waits until the leader has died at the point, and returns the first of the nodes that is
// alive: a follower may lead by now.
func (d *killDrill) died(t *testing.T, label string, nodes ...*testcluster.Node) (alive *testcluster.Node) {
	t.Helper()
	testcluster.Eventually(t, "somebody dies at "+label, func() error {
		said, err := os.ReadFile(filepath.Join(d.DrillDir, "died"))
		if err != nil {
			return err
		}
		for _, n := range d.Nodes {
			if strings.HasPrefix(string(said), n.Name+" ") && !n.Alive() {
				return nil
			}
		}
		return errors.New(string(said) + ", and it lives")
	})
	for _, n := range nodes {
		if n.Alive() {
			return n
		}
	}
	t.Fatal("no node lives that was asked for")
	return nil
}

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// envHung sets the number of sandboxes on the client that is cut off.
const envHung = "BIVOUAC_DRILL_HUNG"

// tinySpec needs so little that one machine runs a hundred.
const tinySpec = `
spec "tiny" {
  driver      = "raw_exec"
  isolation   = "none"
  command     = "AGENT"
  args        = ["--host", "HOST", "--port", "${port.agent_server}"]
  working_dir = "project"
  cpu         = 5
  memory      = 10
  port "AGENT_SERVER" {}
}
`

// sizeOf is a number of the environment, or usual.
func sizeOf(t *testing.T, name string, usual int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s: %q is no number of them", name, text)
	}
	return n
}

// cutOff is a test cluster with a healthy Nomad client and one to cut off.
type cutOff struct {
	*testcluster.Cluster
	machine      *local.Nomad
	healthy, cut string
	hung         []string
}

// TestCutOffClient freezes a machine with a hundred sandboxes: their servers accept calls
// without answering. Meanwhile sandboxes start on the other machine, one after the other, while
// every one of the hundred hangs. The test prints the duration of each start, with none hanging
// and with a hundred. When the machine is back, all of its sandboxes are RUNNING again, each
// with one copy, and can be deleted.
func TestCutOffClient(t *testing.T) {
	if !long() {
		t.Skip("takes minutes; BIVOUAC_DRILL=long runs it")
	}
	count := sizeOf(t, envHung, 100)
	c := newCutOff(t, count)
	if err := c.machine.Freeze(); err != nil {
		t.Fatal(err)
	}
	frozen := time.Now()
	c.starts(t, count)
	testcluster.Eventually(t, "the sandboxes of the machine are known to be away", func() error {
		if n, err := c.are("RUNNING"); err != nil || n > 0 {
			return errors.Join(err, fmt.Errorf("%d are RUNNING", n))
		}
		return nil
	})
	t.Logf("%.1f s after the machine was cut off none of its %d sandboxes was shown RUNNING",
		time.Since(frozen).Seconds(), count)
	c.starts(t, count)
	if n, err := c.are("RUNNING"); err != nil || n > 0 {
		t.Errorf("%d of the sandboxes of a frozen machine are RUNNING, %v", n, err)
	}
	c.back(t)
}

// newCutOff starts the sandboxes that will hang on a machine, and those that follow go to the
// other.
func newCutOff(t *testing.T, count int) *cutOff {
	t.Helper()
	f := testcluster.Start(t, testcluster.Options{Specs: tinySpec})
	c := &cutOff{Cluster: f, machine: f.AddMachine(t)}
	var err error
	if c.healthy, err = f.Nomad.NodeID(t.Context()); err == nil {
		c.cut, err = c.machine.NodeID(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	c.only(t, c.cut)
	c.fill(t, count)
	c.only(t, c.healthy)
	c.starts(t, 0)
	return c
}

// TestCutOffClient_Deletions deletes a hundred sandboxes of a machine that hangs. Meanwhile
// sandboxes on the other machine start, and what is deleted there is gone, and when the machine is
// back nothing is left on it.
func TestCutOffClient_Deletions(t *testing.T) {
	if !long() {
		t.Skip("takes minutes; BIVOUAC_DRILL=long runs it")
	}
	count := sizeOf(t, envHung, 100)
	c := newCutOff(t, count)
	if err := c.machine.Freeze(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	for i, id := range c.hung {
		c.Nodes[i%len(c.Nodes)].Change(t, id, "delete")
	}
	t.Logf("%d deletions were acknowledged after %.1f s", count, time.Since(begin).Seconds())
	for _, when := range []string{"at once", "when Nomad knows that the machine is away"} {
		c.starts(t, count)
		begin := time.Now()
		node := c.Nodes[0]
		id := node.StartSandbox(t, "tiny")
		node.AwaitSandbox(t, id, "RUNNING")
		node.Change(t, id, "delete")
		testcluster.Eventually(t, "a sandbox of the other machine is gone, "+when, func() error {
			names, err := c.Volumes()
			if slices.Contains(names, "sandbox-"+id) {
				err = errors.Join(err, errors.New("its volume is there"))
			}
			return err
		})
		t.Logf("--- %s a sandbox of the other machine started and was gone after %.1f s", when, time.Since(begin).Seconds())
		testcluster.Eventually(t, "Nomad knows that the machine is away", func() error {
			var node struct{ Status string }
			err := c.Nomad.Do(t.Context(), http.MethodGet, "node/"+c.cut, nil, &node)
			if err == nil && node.Status == "ready" {
				err = errors.New("it is ready")
			}
			return err
		})
	}
	if err := c.machine.Thaw(); err != nil {
		t.Fatal(err)
	}
	begin = time.Now()
	if err := testcluster.Await(8*testcluster.Patience,
		func() error { return c.Audit(testcluster.Expected{}) }); err != nil {
		t.Fatal(err)
	}
	t.Logf("--- verdict: nothing of %d sandboxes was left %.1f s after the machine was back", count,
		time.Since(begin).Seconds())
}

// beliefAge is longer than nodes cache the state of Nomad's clients.
const beliefAge = 3 * time.Second

// only makes Nomad place new sandboxes on one of the two clients.
func (c *cutOff) only(t *testing.T, node string) {
	t.Helper()
	for _, id := range []string{c.healthy, c.cut} {
		c.Eligible(t, id, id == node)
	}
	<-time.After(beliefAge)
}

// fill starts the sandboxes that will hang.
func (c *cutOff) fill(t *testing.T, count int) {
	t.Helper()
	begin := time.Now()
	c.hung = make([]string, count)
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			for i := worker; i < count; i += 4 {
				if err := c.start(i); err != nil {
					t.Errorf("sandbox %d of the machine: %v", i, err)
					return
				}
			}
		})
	}
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
	t.Logf("%d sandboxes run on the machine that will be cut off after %.0f s", count, time.Since(begin).Seconds())
}

// start starts one of the sandboxes that will hang, by its number.
func (c *cutOff) start(i int) error {
	node, key := c.Nodes[i%len(c.Nodes)].Client, fmt.Sprintf("cut-off-%d-%d", i, time.Now().UnixNano())
	return testcluster.Await(4*testcluster.Patience, func() error {
		if c.hung[i] == "" {
			var made testcluster.Sandbox
			if err := node.Do(http.MethodPost, "/api/v1/sandboxes?sandbox_spec_id=tiny", nil, &made, "Idempotency-Key",
				key); err != nil {
				return err
			}
			c.hung[i] = made.ID
		}
		_, err := node.SandboxIn(c.hung[i], "RUNNING")
		return err
	})
}

// starts starts sandboxes on the healthy client, one after the other, and prints how long each
// took to be RUNNING.
func (c *cutOff) starts(t *testing.T, hung int) {
	t.Helper()
	const rounds = 5
	var took []time.Duration
	for i := range rounds {
		node := c.Nodes[i%len(c.Nodes)].Client
		begin := time.Now()
		sb := node.AwaitSandbox(t, node.StartSandbox(t, "tiny"), "RUNNING")
		took = append(took, time.Since(begin))
		node.Change(t, sb.ID, "delete")
	}
	slices.Sort(took)
	t.Logf("a healthy start beside %4d hung sandboxes: %s at the median, %s to %s", hung,
		took[rounds/2].Round(time.Millisecond), took[0].Round(time.Millisecond), took[rounds-1].Round(time.Millisecond))
}

// are counts the machine's sandboxes with the status.
func (c *cutOff) are(status string) (n int, err error) {
	node := c.Nodes[0].Client
	for ids := range slices.Chunk(c.hung, 50) {
		var list []*testcluster.Sandbox
		if err := node.Get("/api/v1/sandboxes?id="+strings.Join(ids, "&id="), &list); err != nil {
			return 0, err
		}
		for _, sb := range list {
			if sb == nil {
				return 0, errors.New("a sandbox is lost")
			}
			if sb.Status == status {
				n++
			}
		}
	}
	return n, nil
}

// back reconnects the machine and checks its sandboxes.
func (c *cutOff) back(t *testing.T) {
	t.Helper()
	begin := time.Now()
	if err := c.machine.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := testcluster.Await(3*testcluster.Patience, func() error {
		n, err := c.are("RUNNING")
		if err == nil && n < len(c.hung) {
			err = fmt.Errorf("%d of %d are RUNNING", n, len(c.hung))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("all %d were RUNNING again %.1f s after the machine was back", len(c.hung), time.Since(begin).Seconds())
	c.Holds(t, testcluster.Expected{Running: c.hung})
}

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/ops/e2e/chaos"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// upgrade is from one program to another: their files, the cluster's protocol version before, and the
// newest that the newer one knows.
type upgrade struct {
	former, newer string
	was, next     int
}

// TestRollingUpgrade replaces the program of the nodes, one after the other, by one that knows a
// protocol version more, behind the shipped HAProxy, under the clients of TestRollingRestart. Until an
// operator sets the version, each node goes back to the former program and reads what the newer one
// wrote; afterwards the former program refuses the disk.
//
// BIVOUAC_DRILL_FORMER names a former program, instead of this tree's.
func TestRollingUpgrade(t *testing.T) {
	u := upgrade{former: os.Getenv("BIVOUAC_DRILL_FORMER"), next: fsm.ProtocolVersion}
	d := startRolling(t, u.former)
	u.was, u.newer = d.status(t).Protocol, d.Bivouac
	if u.was == u.next {
		overlay, next, err := chaos.NextVersion(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		u.newer, u.next = d.Build(t, "bivouac-newer", overlay), next
	}
	rounds := 1
	if long() {
		rounds = 5
	}
	d.underLoad(t, func() {
		for i := range rounds {
			if i > 0 {
				d.round(t, u.former) // the way back, as a whole
			}
			d.round(t, u.newer)
			d.protocol(t, u.was, u.next)
		}
		if long() {
			d.goBack(t, d.Leader(t), u)
		}
		d.goBack(t, d.Followers(t)[0], u)
		d.set(t, u.next)
		d.tooOld(t, d.Followers(t)[0], u)
	})
}

// status is that of a cluster whose protocol version has risen as a new one's does.
func (d *rollingDrill) status(t *testing.T) (s testcluster.Status) {
	t.Helper()
	testcluster.Eventually(t, "the version has risen", func() (err error) {
		if s, err = d.Nodes[0].Status(); err == nil && s.Protocol < 2 {
			err = fmt.Errorf("it is %d", s.Protocol)
		}
		return err
	})
	return s
}

// protocol waits until the cluster is at a version and all nodes know another. The leader looks at
// the members once a second, so a version that rises by itself has risen meanwhile.
func (d *rollingDrill) protocol(t *testing.T, version, known int) {
	t.Helper()
	testcluster.Pause(t.Context(), 3*time.Second)
	testcluster.Eventually(t, "every node tells its version", func() error {
		var info struct {
			Version int
			Newest  *int
		}
		text := d.Run(t, "operator", "protocol", "--json", "--address", d.Nodes[0].Base, "--api-key-file", d.KeyFile)
		if err := json.Unmarshal([]byte(text), &info); err != nil {
			return err
		}
		if info.Version != version {
			t.Fatalf("the cluster is at protocol version %d, want %d", info.Version, version)
		}
		if info.Newest == nil || *info.Newest != known {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}

// goBack runs one node with the former program for a while, during which the version can't be set.
func (d *rollingDrill) goBack(t *testing.T, n *testcluster.Node, u upgrade) {
	t.Helper()
	d.restart(t, n, u.former)
	asked := d.Nodes[0]
	if asked == n {
		asked = d.Nodes[1]
	}
	out, err := d.setProtocol(t, asked, u.next)
	if want := fmt.Sprintf("node %q knows protocol version %d", n.Member(), u.was); err == nil ||
		!strings.Contains(out+err.Error(), want) {
		t.Errorf("with the former program on %s the version is set: %s, %v, want %q", n.Name, out, err, want)
	}
	d.restart(t, n, u.newer)
}

// set raises the version. One that no node knows is refused.
func (d *rollingDrill) set(t *testing.T, next int) {
	t.Helper()
	if out, err := d.setProtocol(t, d.Nodes[1], next+1); err == nil {
		t.Errorf("a version that no node knows is set: %s", out)
	}
	if out, err := d.setProtocol(t, d.Nodes[1], next); err != nil {
		t.Fatalf("setting the version: %s, %v", out, err)
	}
	for _, n := range d.Nodes {
		testcluster.Eventually(t, n.Name+" is at the version", func() error {
			status, err := n.Status()
			if err == nil && status.Protocol != next {
				err = fmt.Errorf("it is at %d", status.Protocol)
			}
			return err
		})
	}
}

func (d *rollingDrill) setProtocol(t *testing.T, n *testcluster.Node, version int) (string, error) {
	t.Helper()
	return d.Command(t.Context(), "operator", "protocol", "set", strconv.Itoa(version), "--yes", "--address", n.Base,
		"--api-key-file", d.KeyFile)
}

// tooOld starts the former program on a disk of the newer version. It says why it can't, and the
// newer one goes on there.
func (d *rollingDrill) tooOld(t *testing.T, n *testcluster.Node, u upgrade) {
	t.Helper()
	n.Stop(testcluster.Patience)
	said, err := os.ReadFile(n.Log)
	if err != nil {
		t.Fatal(err)
	}
	n.Program = u.former
	n.Start(t)
	code := n.Ended(t)
	text, err := os.ReadFile(n.Log)
	if err != nil {
		t.Fatal(err)
	}
	text = text[len(said):]
	want := fmt.Sprintf("the cluster moved to protocol version %d and this program knows %d", u.next, u.was)
	if u.former != "" {
		want, code = "protocol version", min(code, 1) // an earlier program has its own words
		t.Logf("the former program said:\n%s", text)
	}
	if code != 1 || !strings.Contains(string(text), want) || strings.Contains(string(text), "goroutine ") {
		t.Errorf("the former program ended with %d, want 1 and %q:\n%s", code, want, text)
	}
	n.Program = u.newer
	n.Start(t)
	n.Ready(t)
}

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// plainDisks starts nodes on ordinary folders.
func plainDisks(t *testing.T) *diskDrill {
	t.Helper()
	return &diskDrill{
		acked:   map[string]int{},
		Cluster: testcluster.Start(t, testcluster.Options{Bare: true, Raft: bareRaft}),
	}
}

// TestDiskDamaged damages files of a stopped node's data directory and its certificates, one
// after the other. The node starts with the others' state, or names the file and the way out,
// without a stack trace; then it comes back with an empty directory as the runbook says. The
// tests of package cluster damage far more places; this one runs the whole program.
func TestDiskDamaged(t *testing.T) {
	rounds := 2
	if long() {
		rounds = 60
	}
	d := plainDisks(t)
	stop := d.write(t)
	defer stop()
	d.progress(t, 300)
	refused := 0
	for round := range rounds {
		n := d.Nodes[round%len(d.Nodes)]
		n.Stop(testcluster.Patience)
		what := damageOne(t, n, round)
		if n.Start(t); d.refuses(t, n) {
			refused++
			stopped(t, n, "is damaged")
			if err := os.Rename(n.Data, fmt.Sprintf("%s.damaged-%d", n.Data, round)); err != nil {
				t.Fatal(err)
			}
			n.Start(t)
		}
		n.Ready(t)
		d.voters(t)
		d.progress(t, 10)
		if t.Failed() {
			t.Fatalf("%s: %s", n.Name, what)
		}
	}
	t.Logf("%d damages, %d times refused", rounds, refused)
	d.whole(t, stop)
}

// refuses waits until the node is ready or has ended.
func (d *diskDrill) refuses(t *testing.T, n *testcluster.Node) (refused bool) {
	t.Helper()
	testcluster.Eventually(t, n.Name+" starts or refuses", func() error {
		if refused = !n.Alive(); refused {
			return nil
		}
		return n.Serves()
	})
	return refused
}

// voters waits until all three nodes are voters again.
func (d *diskDrill) voters(t *testing.T) {
	t.Helper()
	testcluster.Eventually(t, "three nodes vote", func() error {
		return d.Leader(t).Votes(3)
	})
}

// damageOne damages one place in a node's files, those of the log first.
func damageOne(t *testing.T, n *testcluster.Node, round int) string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(n.Data, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && e.Name() != "lock" {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	file := files[rand.IntN(len(files))]
	if round == 0 {
		file = filepath.Join(n.Data, "raft.db")
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	used := len(strings.TrimRight(string(raw), "\x00"))
	at := rand.IntN(max(used, 1))
	what := fmt.Sprintf("bit flipped at %d of %s", at, file)
	switch {
	case round == 0: // every start reads both roots
		at, what = 16, "root of "+file+" damaged"
		raw[at] ^= 4
	case round%5 == 4:
		raw, what = raw[:at], fmt.Sprintf("%s cut at %d", file, at)
	default:
		raw[at] ^= 1 << rand.IntN(8)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return what
}

// TestFollowerAway stops a follower until its part of the log is compacted. It gets a snapshot
// while writes continue, is killed once more, starts with the rest of its log, and has the
// others' state.
func TestFollowerAway(t *testing.T) {
	if !long() {
		t.Skip("make drills runs this")
	}
	d := plainDisks(t)
	stop := d.write(t)
	defer stop()
	d.progress(t, 50)
	n := d.pick(t, false)
	n.Kill()
	d.forget(t)
	n.Start(t)
	n.Ready(t)
	testcluster.Eventually(t, n.Name+" gets a snapshot", func() error {
		raw, err := os.ReadFile(n.Log)
		if err == nil && !strings.Contains(strings.ToLower(string(raw)), "installed remote snapshot") {
			err = errors.New("not yet")
		}
		return err
	})
	d.progress(t, 50)
	n.Kill()
	n.Start(t)
	n.Ready(t)
	d.whole(t, stop)
}

// forget writes until the leader has deleted all entries of its present log. The log serves deleted
// entries while their segment is in use, so the segment has to be deleted.
func (d *diskDrill) forget(t *testing.T) {
	t.Helper()
	leader := d.Leader(t)
	at, _, err := leader.PeerClient(t).Checksum(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := testcluster.Client{Base: leader.Base, Key: leader.NewKey(t, "big")}
	big := strings.Repeat("<", 4096) // six bytes each in JSON
	segment := firstSegment(t, leader)
	for compactedTo(t, leader) < at || firstSegment(t, leader) == segment {
		err := c.Do(http.MethodPost, "/api/settings",
			map[string]any{
				"agent":             big,
				"llm_model":         big,
				"llm_base_url":      big,
				"security_analyzer": big,
				"git_user_name":     big,
			}, nil)
		if err != nil {
			t.Fatalf("a big write: %v", err)
		}
	}
}

// firstSegment returns the oldest file of a node's write-ahead log.
func firstSegment(t *testing.T, n *testcluster.Node) string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(n.Data, "wal", "*.wal"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.Min(list)
}

// compactedTo returns the last index that a node deleted from its log, according to its own log
// messages.
func compactedTo(t *testing.T, n *testcluster.Node) (index uint64) {
	t.Helper()
	raw, err := os.ReadFile(n.Log)
	if err != nil {
		t.Fatal(err)
	}
	said := regexp.MustCompile(`compacting logs from=\d+ to=(\d+)`).FindAllSubmatch(raw, -1)
	if len(said) == 0 {
		return 0
	}
	if index, err = strconv.ParseUint(string(said[len(said)-1][1]), 10, 64); err != nil {
		t.Fatal(err)
	}
	return index
}

// TestOutOfMemory makes the kernel's OOM killer end the leader.
func TestOutOfMemory(t *testing.T) {
	if !long() {
		t.Skip("make drills runs this")
	}
	root := "/sys/fs/cgroup/memory"
	limit := "memory.limit_in_bytes"
	if _, err := os.Stat(filepath.Join(root, limit)); err != nil {
		root, limit = "/sys/fs/cgroup", "memory.max"
	}
	group := filepath.Join(root, fmt.Sprintf("bivouac-drill-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o700); err != nil {
		t.Skipf("no control group can be made: %v", err)
	}
	t.Cleanup(func() { _ = os.Remove(group) })
	d := plainDisks(t)
	stop := d.write(t)
	defer stop()
	d.progress(t, 100)
	n := d.Leader(t)
	for file, value := range map[string]string{limit: strconv.Itoa(2 << 20), "cgroup.procs": strconv.Itoa(n.Pid())} {
		if err := os.WriteFile(filepath.Join(group, file), []byte(value), 0o600); err != nil {
			t.Skipf("the control group can't be used: %v", err)
		}
	}
	begin := time.Now()
	testcluster.Eventually(t, "the leader is killed", func() error {
		if n.Alive() {
			return errors.New("it lives")
		}
		return nil
	})
	d.progress(t, 20)
	t.Logf("%s was killed and the others wrote on within %.1f s", n.Name, time.Since(begin).Seconds())
	d.whole(t, stop)
}

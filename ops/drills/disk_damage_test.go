package drills

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

	"bivouac.dev/bivouac/ops/fleet"
)

// plainDisks are nodes on ordinary folders.
func plainDisks(t *testing.T, store string) *diskDrill {
	t.Helper()
	if testing.Short() {
		t.Skip("starts three processes")
	}
	return &diskDrill{store: store, acked: map[string]int{}, Fleet: fleet.StartBare(t, fleet.BareOptions{Raft: raftBlock(bareRaft, store)})}
}

// TestDiskDamaged damages one file after the other of a node's data directory
// and its certificates while it is down: it starts with the state of the others,
// or says which file and what to do, never with a stack trace, and then comes
// back with an empty directory as the runbook has it. cluster's own tests damage
// far more places; this is the whole program.
func TestDiskDamaged(t *testing.T) {
	rounds := 2
	if long() {
		rounds = 60
	}
	for i, store := range logStores() {
		if !long() && i == 0 {
			continue
		}
		t.Run(store, func(t *testing.T) {
			d := plainDisks(t, store)
			stop := d.write(t)
			defer stop()
			d.progress(t, 300)
			refused := 0
			for round := range rounds {
				n := d.Nodes[round%len(d.Nodes)]
				n.Stop(fleet.Patience)
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
		})
	}
}

// refuses waits until the node is ready, or has ended.
func (d *diskDrill) refuses(t *testing.T, n *fleet.Node) (refused bool) {
	t.Helper()
	fleet.Eventually(t, n.Name+" starts or refuses", func() error {
		if refused = !n.Alive(); refused {
			return nil
		}
		a, err := n.Try(http.MethodGet, "/ready", nil)
		if err == nil && a.Status != http.StatusOK {
			err = errors.New(a.String())
		}
		return err
	})
	return refused
}

// voters waits until all three nodes vote again.
func (d *diskDrill) voters(t *testing.T) {
	t.Helper()
	fleet.Eventually(t, "three nodes vote", func() error {
		var status struct{ Servers []struct{ Voter bool } }
		a, err := d.Leader(t).Try(http.MethodGet, "/api/v1/operator/status", nil)
		if err == nil {
			err = a.Decode(&status)
		}
		voters := 0
		for _, s := range status.Servers {
			if s.Voter {
				voters++
			}
		}
		if err == nil && (voters != 3 || len(status.Servers) != 3) {
			err = fmt.Errorf("%d of %d do", voters, len(status.Servers))
		}
		return err
	})
}

// damageOne damages a place in one of a node's files: the log's first.
func damageOne(t *testing.T, n *fleet.Node, round int) string {
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
	case round == 0: // both roots are read at every start
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

// TestFollowerAway keeps a follower away for longer than the log is kept: it
// gets a snapshot while writes go on, is killed once more, starts on what Raft
// left of its log, and has the state of the others.
func TestFollowerAway(t *testing.T) {
	if !long() {
		t.Skip("make drill runs this")
	}
	for _, store := range logStores() {
		t.Run(store, func(t *testing.T) {
			d := plainDisks(t, store)
			stop := d.write(t)
			defer stop()
			d.progress(t, 50)
			n := d.pick(t, false)
			n.Kill()
			d.forget(t)
			n.Start(t)
			n.Ready(t)
			fleet.Eventually(t, n.Name+" gets a snapshot", func() error {
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
		})
	}
}

// forget writes until the leader keeps no entry of those it has now. A
// write-ahead log gives entries that Raft deleted for as long as the segment
// they are in is written to, so that must go.
func (d *diskDrill) forget(t *testing.T) {
	t.Helper()
	leader := d.Leader(t)
	at, _, err := leader.PeerClient(t).Checksum(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	key := d.Run(t, "keys", "create", "--user", "big", "--name", "drill", "--address", leader.Base, "--api-key-file", d.KeyFile)
	c := fleet.Client{Base: leader.Base, Key: key}
	big := strings.Repeat("<", 4096) // six bytes each, in JSON
	segment := firstSegment(t, leader)
	for compactedTo(t, leader) < at || segment != "" && firstSegment(t, leader) == segment {
		a, err := c.Try(http.MethodPost, "/api/settings", map[string]any{"agent": big, "llm_model": big, "llm_base_url": big, "security_analyzer": big, "git_user_name": big})
		if err != nil || a.Status != http.StatusOK {
			t.Fatalf("a big write: %d %s (%v)", a.Status, a.Body, err)
		}
	}
}

// firstSegment is the oldest file of a node's write-ahead log, "" without one.
func firstSegment(t *testing.T, n *fleet.Node) string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(n.Data, "wal", "*.wal"))
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		return ""
	}
	return slices.Min(list)
}

// compactedTo is the last index that a node deleted from its log, by what it
// said.
func compactedTo(t *testing.T, n *fleet.Node) (index uint64) {
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

// TestOutOfMemory has the kernel kill the leader for want of memory.
func TestOutOfMemory(t *testing.T) {
	if !long() {
		t.Skip("make drill runs this")
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
	d := plainDisks(t, "boltdb")
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
	fleet.Eventually(t, "the leader is killed", func() error {
		if n.Alive() {
			return errors.New("it lives")
		}
		return nil
	})
	d.progress(t, 20)
	t.Logf("%s was killed and the others wrote on within %.1f s", n.Name, time.Since(begin).Seconds())
	d.whole(t, stop)
}

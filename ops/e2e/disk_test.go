package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/chaos/faultfs"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// diskDrill is a test cluster without sandboxes whose nodes' disks can fail, with writers on
// all nodes.
type diskDrill struct {
	*testcluster.Cluster
	disks map[string]*faultfs.FS
	// padding makes every write longer.
	padding string

	wrote atomic.Int64
	mu    sync.Mutex
	// acked maps a writer to its newest acknowledged value.
	acked map[string]int
}

// startDisks starts nodes, each with its data on a file system with fault injection.
func startDisks(t *testing.T) *diskDrill {
	t.Helper()
	return startDisksWith(t, testcluster.Options{Raft: bareRaft})
}

func startDisksWith(t *testing.T, o testcluster.Options) *diskDrill {
	t.Helper()
	testcluster.Need(t, "fuse", faultfs.Possible())
	d := &diskDrill{disks: map[string]*faultfs.FS{}, acked: map[string]int{}}
	dir := t.TempDir()
	o.Bare = true
	o.DataDir = func(name string) string {
		backing, point := filepath.Join(dir, name+".disk"), filepath.Join(dir, name)
		if err := errors.Join(os.Mkdir(backing, 0o700), os.Mkdir(point, 0o700)); err != nil {
			t.Fatal(err)
		}
		disk, err := faultfs.Mount(backing, point)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := disk.Close(); err != nil {
				t.Error(err)
			}
		})
		d.disks[name] = disk
		return filepath.Join(point, "data")
	}
	d.Cluster = testcluster.Start(t, o)
	return d
}

const bareRaft = `  snapshot_threshold = 200
  snapshot_interval  = "1s"
  trailing_logs      = 100`

// write writes through every node until stop is called. Each writer has its own user and
// increments one value.
func (d *diskDrill) write(t *testing.T) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var wg sync.WaitGroup
	for i, n := range d.Nodes {
		for j := range 2 {
			user := fmt.Sprintf("w%d-%d-%d", i, j, time.Now().UnixNano()%1e9)
			key := d.Leader(t).NewKey(t, user)
			wg.Go(func() { d.writer(testcluster.Client{Base: n.Base, Key: key}, done) })
		}
	}
	return sync.OnceFunc(func() { close(done); wg.Wait() })
}

func (d *diskDrill) writer(c testcluster.Client, done <-chan struct{}) {
	for value := 1; ; value++ {
		for sent := false; !sent; {
			select {
			case <-done:
				return
			default:
			}
			err := c.Do(http.MethodPost, "/api/settings", map[string]any{
				"language": fmt.Sprint(value), "agent": d.padding, "git_user_name": d.padding, "git_user_email": d.padding,
			}, nil)
			if sent = err == nil; !sent {
				select { // the node is down or has no leader
				case <-done:
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		}
		d.mu.Lock()
		d.acked[c.Key] = value
		d.mu.Unlock()
		d.wrote.Add(1)
	}
}

// progress waits for more acknowledged writes, and returns how long that took.
func (d *diskDrill) progress(t *testing.T, count int64) time.Duration {
	t.Helper()
	begin, want := time.Now(), d.wrote.Load()+count
	testcluster.Eventually(t, "writes go on", func() error {
		if now := d.wrote.Load(); now < want {
			return fmt.Errorf("%d of %d", now, want)
		}
		return nil
	})
	return time.Since(begin)
}

// nothingLost reads every writer's value through every running node. It must not be older than
// the last acknowledged one.
func (d *diskDrill) nothingLost(t *testing.T) (acked int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, value := range d.acked {
		acked += value
		for _, n := range d.Nodes {
			if !n.Alive() {
				continue
			}
			var got struct{ Language string }
			testcluster.Client{Base: n.Base, Key: key}.Sure(t, http.MethodGet, "/api/settings", nil, &got)
			var now int
			if _, err := fmt.Sscan(got.Language, &now); err != nil || now < value {
				t.Errorf("%s shows %q, and %d was acknowledged", n.Name, got.Language, value)
			}
		}
	}
	return acked
}

// stopped waits until the node has ended by itself. Its last output must contain each of the
// words and no stack trace.
func stopped(t *testing.T, n *testcluster.Node, words ...string) {
	t.Helper()
	testcluster.Eventually(t, n.Name+" stops", func() error {
		if n.Alive() {
			return errors.New("it runs")
		}
		return nil
	})
	said := local.Tail(n.Log, 15)
	for _, w := range append(words, n.Data, "bivouac runbook disk") {
		if !strings.Contains(said, w) {
			t.Errorf("%s stopped without saying %q:\n%s", n.Name, w, said)
		}
	}
	if raw, err := os.ReadFile(n.Log); err != nil || strings.Contains(string(raw), "goroutine ") {
		t.Errorf("%s ended with a stack trace (%v):\n%s", n.Name, err, local.Tail(n.Log, 40))
	}
}

// whole ends every drill: all nodes run, no write is lost, all states are equal.
func (d *diskDrill) whole(t *testing.T, stop func()) {
	t.Helper()
	d.Restart(t)
	d.progress(t, 20)
	stop()
	index, sum := d.SameState(t)
	acked := d.nothingLost(t)
	if !t.Failed() {
		t.Logf("VERDICT: as it should be: %d acknowledged writes, 0 lost, states equal at index %d (%s)", acked, index,
			sum[:12])
	}
}

// pick returns the leader or a follower.
func (d *diskDrill) pick(t *testing.T, leader bool) *testcluster.Node {
	t.Helper()
	if leader {
		return d.Leader(t)
	}
	return d.Followers(t)[0]
}

// TestDiskFails makes writes and fsyncs of one node's disk fail, on the leader and on a
// follower. The node stops and names the file and the way out, the others continue, and it
// rejoins when the disk works again.
func TestDiskFails(t *testing.T) {
	d := startDisks(t)
	stop := d.write(t)
	defer stop()
	for j, c := range []struct {
		name   string
		leader bool
		fault  faultfs.Fault
		word   string
	}{
		{
			"fsync on the leader",
			true,
			faultfs.Fault{Operations: []faultfs.Operation{faultfs.Sync}, Errno: syscall.EIO, Times: 1},
			"input/output error",
		},
		{
			"write on a follower",
			false,
			faultfs.Fault{Operations: []faultfs.Operation{faultfs.Write}, Errno: syscall.EIO, Times: 1},
			"input/output error",
		},
		{
			"write on the leader",
			true,
			faultfs.Fault{Operations: []faultfs.Operation{faultfs.Write}, Errno: syscall.EIO},
			"input/output error",
		},
		{
			"fsync on a follower",
			false,
			faultfs.Fault{Operations: []faultfs.Operation{faultfs.Sync}, Errno: syscall.EIO},
			"input/output error",
		},
		{
			"full on the leader",
			true,
			faultfs.Fault{Operations: []faultfs.Operation{faultfs.Write}, Errno: syscall.ENOSPC},
			"no space left on device",
		},
		{
			"read-only on a follower",
			false,
			faultfs.Fault{Operations: []faultfs.Operation{faultfs.Write}, Errno: syscall.EROFS},
			"read-only file system",
		},
	} {
		for i, file := range []string{".wal", "raft.db"} { // Raft's: the lock file has no data
			if !long() && (j%2 > 0 || i != j/2%2) {
				continue
			}
			d.progress(t, 50)
			n := d.pick(t, c.leader)
			c.fault.Path = file
			begin := time.Now()
			d.disks[n.Name].Inject(c.fault)
			stopped(t, n, c.word)
			d.progress(t, 20)
			t.Logf("%s, %s: %s stopped and the others wrote on, all within %.1f s", c.name, file, n.Name,
				time.Since(begin).Seconds())
			if hits := d.disks[n.Name].Hits(); hits != 1 {
				t.Errorf("%s: after its first failure the disk was used %d times more", c.name, hits-1)
			}
			d.disks[n.Name].Clear()
			d.Restart(t)
		}
	}
	d.whole(t, stop)
}

// TestDiskHangs makes the leader's disk hang. The node stops leading, and the others elect a
// leader and continue within seconds. When the disk works again, the node follows without help.
// If the disk hangs for long, the node stops with a message.
func TestDiskHangs(t *testing.T) {
	d := startDisks(t)
	stop := d.write(t)
	defer stop()
	d.progress(t, 50)
	hang := faultfs.Fault{Operations: []faultfs.Operation{faultfs.Write, faultfs.Sync}}
	n := d.Leader(t)
	d.disks[n.Name].Inject(hang)
	begin := time.Now()
	d.led(t, n)
	d.progress(t, 50)
	t.Logf("the leader's disk hung; the others led and wrote 50 more within %.1f s", time.Since(begin).Seconds())
	if a, err := n.Try(http.MethodGet, "/ready", nil); err != nil || a.Status != http.StatusServiceUnavailable ||
		!strings.Contains(string(a.Body), "disk") {
		t.Errorf("/ready of the node whose disk hangs: %s %v", a, err)
	}
	d.disks[n.Name].Clear()
	n.Ready(t)
	if long() {
		n = d.Leader(t)
		d.disks[n.Name].Inject(hang)
		stopped(t, n, "the disk hangs")
		d.progress(t, 50)
		d.disks[n.Name].Clear()
	}
	d.whole(t, stop)
}

// led waits until the other nodes have a leader that is not n.
func (d *diskDrill) led(t *testing.T, n *testcluster.Node) {
	t.Helper()
	testcluster.Eventually(t, "another node leads", func() error {
		for _, other := range d.Nodes {
			if other == n {
				continue
			}
			status, err := other.Status()
			if err != nil || status.Leader == "" || status.Leader == n.Name {
				return fmt.Errorf("%s believes in %q: %v", other.Name, status.Leader, err)
			}
		}
		return nil
	})
}

// mountTmpfs makes a directory with a file system of its own, of a size in MiB, for the test.
func mountTmpfs(t *testing.T, point string, size int) {
	t.Helper()
	if err := os.Mkdir(point, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%dm", size), "tmpfs",
		point).CombinedOutput(); err != nil {
		t.Fatalf("mounting: %v %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", point).CombinedOutput(); err != nil {
			t.Errorf("unmounting: %v %s", err, out)
		}
	})
}

// TestDiskFull fills a node's file system, a small tmpfs.
func TestDiskFull(t *testing.T) {
	if !long() {
		t.Skip("make drills runs this")
	}
	testcluster.Need(t, "mount", os.Geteuid() == 0)
	// The log preallocates 64 MiB files. The padding fills the rest of one, so that the disk is
	// soon full for the node, also on a slow machine.
	d := &diskDrill{acked: map[string]int{}, padding: strings.Repeat("x", 4000)}
	dir := t.TempDir()
	d.Cluster = testcluster.Start(t, testcluster.Options{
		Bare: true,
		Raft: bareRaft,
		DataDir: func(name string) string {
			point := filepath.Join(dir, name)
			mountTmpfs(t, point, 300)
			return filepath.Join(point, "data")
		},
	})
	stop := d.write(t)
	defer stop()
	for _, leader := range []bool{true, false} {
		d.progress(t, 50)
		n := d.pick(t, leader)
		ballast := filepath.Join(filepath.Dir(n.Data), "ballast")
		fill(t, ballast)
		stopped(t, n, "no space left on device", "make room")
		d.progress(t, 50)
		// The disk is too full to start: the node says so, and how much it needs.
		n.Start(t)
		stopped(t, n, "MiB left and the node needs")
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		d.Restart(t)
	}
	d.whole(t, stop)
}

// fill writes until the file system is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 1<<20); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

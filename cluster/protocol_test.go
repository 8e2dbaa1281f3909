package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/cluster/raftfsm"
	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/fsm/snapshotfile"
)

// upgraded is a cluster of three at an older protocol version, as an upgrade leaves it.
func upgraded(t *testing.T, version int, options ...func(int, *cluster.Config)) *clustertest.Cluster {
	t.Helper()
	c := clustertest.NewStopped(t, 3, options...)
	var deaf atomic.Bool
	deaf.Store(true)
	// The leader does not learn what the others know, and leaves the version alone.
	c.SetFault(func(from, _, call string) bool {
		return deaf.Load() && call == "hello" && len(c.Node(0).Status().Servers) > 0
	})
	for i := range 3 {
		c.Start(i)
	}
	raise := fsm.NewCommand(uuid.NewString(), time.Now(), "", &fsm.ProtocolRaiseBody{Version: version})
	if _, err := c.Propose(t.Context(), c.Leader(), raise); err != nil {
		t.Fatal(err)
	}
	deaf.Store(false)
	c.Settle()
	return c
}

// TestCluster_ProtocolVersion_WaitsForTheOperator: a cluster that was upgraded stays at its version
// until an operator sets the newer one, over changes of leaders, and no member that is silent or too
// old is passed over.
func TestCluster_ProtocolVersion_WaitsForTheOperator(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := upgraded(t, fsm.VersionCharacters)
		defer c.Close()
		for range 3 {
			time.Sleep(10 * time.Second)
			leader := c.Leader()
			if v := c.Store(leader).View().ProtocolVersion(); v != fsm.VersionCharacters {
				t.Fatalf("the version rose to %d by itself", v)
			}
			c.Kill(leader)
			c.Settle()
		}
		set := func(i, version int) error { return c.Node(i).SetProtocol(t.Context(), version) }
		asked := c.Follower()
		for version, want := range map[int]string{
			fsm.VersionCharacters - 1: "can't be lowered", 0: "is a number from 1",
			fsm.ProtocolVersion + 1: `node "n0" knows protocol version`,
		} {
			if err := set(asked, version); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%d: %v, want %q", version, err, want)
			}
		}
		away := 3 - asked - c.Leader()
		c.Kill(away)
		if err := set(asked, fsm.ProtocolVersion); fsm.CodeOf(err) != fsm.CodeConflict ||
			!strings.Contains(err.Error(), fmt.Sprintf(`"n%d" does not answer`, away)) {
			t.Errorf("without n%d: %v", away, err)
		}
		c.Settle()
		for range 2 { // the second changes nothing
			if err := set(asked, fsm.ProtocolVersion); err != nil {
				t.Fatal(err)
			}
		}
		c.Settle()
		for i := range 3 {
			if v := c.Store(i).View().ProtocolVersion(); v != fsm.ProtocolVersion {
				t.Errorf("n%d is at %d", i, v)
			}
		}
	})
}

// TestCluster_ProtocolVersion_RisesByItself: in a new cluster, and where the configuration says so.
func TestCluster_ProtocolVersion_RisesByItself(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(*testing.T) *clustertest.Cluster{
		"new": func(t *testing.T) *clustertest.Cluster { return clustertest.New(t, 3) },
		"dev": func(t *testing.T) *clustertest.Cluster {
			return upgraded(t, fsm.VersionHistory, func(_ int, cfg *cluster.Config) { cfg.RaiseProtocol = true })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := make(t)
				defer c.Close()
				leader := c.Leader()
				c.Eventually("the version rises",
					func() bool { return c.Store(leader).View().ProtocolVersion() == fsm.ProtocolVersion })
			})
		})
	}
}

// TestCluster_Join_OlderProgramIsRefused: a node whose program knows an older version does not join,
// and is told why.
func TestCluster_Join_OlderProgramIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		leader := c.Leader()
		c.Eventually("the version rises",
			func() bool { return c.Store(leader).View().ProtocolVersion() == fsm.ProtocolVersion })
		request := fmt.Sprintf(`{"member":{"id":"n9.0123","name":"n9","address":"n9:1"},"protocol":%d}`,
			fsm.ProtocolVersion-1)
		answer, err := c.Stranger("n9").Call(t.Context(), c.Address(leader), "join", []byte(request))
		want := fmt.Sprintf("knows protocol version %d and the cluster uses %d: upgrade the node", fsm.ProtocolVersion-1,
			fsm.ProtocolVersion)
		if err != nil || !strings.Contains(string(answer), want) {
			t.Errorf("%s, %v, want %q", answer, err, want)
		}
	})
}

// TestCluster_Binary_FromTheVersionOn: commands have a binary header from the version on and none
// before it, through a follower too; a log with both is replayed, and read by a member that joins.
func TestCluster_Binary_FromTheVersionOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := upgraded(t, fsm.VersionBinary-1)
		defer c.Close()
		keys := 0
		propose := func() {
			for _, i := range []int{c.Leader(), c.Follower()} {
				keys++
				if _, err := c.Propose(t.Context(), i, newKey(keys)); err != nil {
					t.Fatal(err)
				}
			}
		}
		propose()
		if n := inBinary(t, c.Logs(c.Leader()), 0); n != 0 {
			t.Errorf("%d commands have a header that older programs can't read", n)
		}
		if err := c.Node(c.Leader()).SetProtocol(t.Context(), fsm.VersionBinary); err != nil {
			t.Fatal(err)
		}
		c.Settle()
		propose()
		if n := inBinary(t, c.Logs(c.Leader()), 0); n != 2 {
			t.Errorf("%d of 2 commands have a binary header", n)
		}
		for i := range 3 {
			c.Kill(i)
		}
		for i := range 3 {
			c.Start(i)
		}
		added := c.Join()
		for i := range 4 {
			c.Eventually("the node has every key", func() bool { return len(c.Store(i).View().APIKeys()) == keys })
		}
		if added != 3 {
			t.Errorf("the member that joined is number %d", added)
		}
	})
}

// inBinary counts the commands of a log behind an index that have a binary header.
func inBinary(t *testing.T, logs raft.LogStore, behind uint64) (count int) {
	t.Helper()
	first, err := logs.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	last, err := logs.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	for i := max(first, behind+1); i <= last; i++ {
		var l raft.Log
		if err := logs.GetLog(i, &l); err != nil {
			t.Fatal(err)
		}
		if l.Type != raft.LogCommand {
			continue
		}
		parts, err := raftfsm.SplitCommands(l.Data)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range parts {
			if fsm.IsBinary(part) {
				count++
			}
		}
	}
	return count
}

// TestReal_OlderProgramRefusesTheDisk: a node does not start on a disk whose log or snapshot needs a
// newer program, says so, and leaves the disk as it is.
func TestReal_OlderProgramRefusesTheDisk(t *testing.T) {
	t.Parallel()
	raise := fsm.NewCommand(uuid.NewString(), time.Now(), "", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion + 1})
	data, err := raise.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*testing.T, *real, raftstore.Store){
		"log": func(t *testing.T, _ *real, s raftstore.Store) {
			last, err := s.Logs.LastIndex()
			if err == nil {
				err = s.Logs.StoreLog(&raft.Log{Index: last + 1, Term: 9, Type: raft.LogCommand, Data: data})
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		"snapshot": func(t *testing.T, r *real, s raftstore.Store) {
			var b bytes.Buffer
			if err := r.nodes[0].store.Snapshot().Persist(&b); err != nil {
				t.Fatal(err)
			}
			newer := strings.Replace(b.String(), fmt.Sprintf(`"protocol_version":%d`, fsm.ProtocolVersion),
				fmt.Sprintf(`"protocol_version":%d`, fsm.ProtocolVersion+1), 1)
			last, err := s.Logs.LastIndex()
			if err != nil {
				t.Fatal(err)
			}
			sink, err := s.Snapshots.Create(raft.SnapshotVersionMax, last, 9, raft.Configuration{}, 1, nil)
			if err == nil {
				_, err = sink.Write([]byte(newer))
			}
			if err == nil {
				err = sink.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newReal(t, 1)
			r.startAll()
			eventually(t, func() bool { return r.nodes[0].store.View().ProtocolVersion() == fsm.ProtocolVersion },
				func() string { return "the protocol version" })
			r.kill(0)
			dir := r.nodes[0].cfg.DataDir
			s, err := raftstore.Open(dir,
				raftstore.Options{Logger: slog.New(slog.DiscardHandler), Library: hclog.NewNullLogger()})
			if err != nil {
				t.Fatal(err)
			}
			change(t, r, s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			before := files(t, dir)
			want := fmt.Sprintf("the cluster moved to protocol version %d and this program knows %d", fsm.ProtocolVersion+1,
				fsm.ProtocolVersion)
			_, err = cluster.New(r.nodes[0].cfg, fsm.NewStore())
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("%v, want %q", err, want)
			}
			if after := files(t, dir); after != before {
				t.Errorf("the directory changed:\n%s\n%s", before, after)
			}
		})
	}
}

// files lists the files below a directory with their sizes.
func files(t *testing.T, dir string) (list string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			list += fmt.Sprintf("%s %d\n", path, info.Size())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestReal_Restore_KeepsTheVersionOfItsFile: a backup of an earlier version brings that version, which
// waits for an operator as after an upgrade.
func TestReal_Restore_KeepsTheVersionOfItsFile(t *testing.T) {
	t.Parallel()
	r := newReal(t, 1)
	r.startAll()
	version := func() int { return r.nodes[0].store.View().ProtocolVersion() }
	eventually(t, func() bool { return version() == fsm.ProtocolVersion },
		func() string { return "the new cluster's version" })
	if _, err := r.nodes[0].node.Restore(t.Context(), stateOf(t, fsm.VersionCharacters),
		cluster.RestoreOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	eventually(t, func() bool { return time.Since(began) > 2500*time.Millisecond }, func() string { return "" })
	if v := version(); v != fsm.VersionCharacters {
		t.Errorf("the version is %d, and the file's is %d", v, fsm.VersionCharacters)
	}
	if err := r.nodes[0].node.SetProtocol(t.Context(), fsm.ProtocolVersion); err != nil ||
		version() != fsm.ProtocolVersion {
		t.Errorf("setting it: %v, %d", err, version())
	}
}

// stateOf returns a snapshot file of a state of the protocol version.
func stateOf(t *testing.T, version int) *bytes.Reader {
	t.Helper()
	former := fsm.NewStore()
	for i, body := range []fsm.Body{
		&fsm.TermOpenBody{
			Term:      1,
			Node:      "n0",
			ClusterID: "former",
			Nonce:     "a",
		}, &fsm.ProtocolRaiseBody{Version: version},
		&fsm.TermOpenBody{Term: 2, Node: "n0", ClusterID: "former", Nonce: "b"},
	} {
		if _, err := former.Apply(uint64(i+1), fsm.NewCommand(uuid.NewString(), time.Now(), "", body)); err != nil {
			t.Fatal(err)
		}
	}
	scratch, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer scratch.Close()
	info := snapshotfile.Info{Created: time.Now(), Reason: snapshotfile.ReasonSave}
	packed, err := snapshotfile.Pack(t.Context(), info, former.Snapshot(), scratch)
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if _, err := packed.WriteTo(&file); err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(file.Bytes())
}

// TestReal_Restore_OlderVersion_ReadsWhatFollows: commands wait while a state of an earlier
// protocol version is restored. None of them is in its log in a form that this version's programs
// can't read.
func TestReal_Restore_OlderVersion_ReadsWhatFollows(t *testing.T) {
	t.Parallel()
	r := newReal(t, 1)
	r.startAll()
	node := r.nodes[0]
	eventually(t, func() bool { return node.store.View().Active(fsm.VersionBinary) },
		func() string { return "the new cluster's version" })
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	for i := range 64 {
		writing.Go(func() {
			for ctx.Err() == nil {
				_, err := node.node.Propose(ctx, put("ada", i+1))
				switch fsm.CodeOf(err) {
				case "", fsm.CodeConflict, fsm.CodeOutcomeUnknown, fsm.CodeTimeout, fsm.CodeNoLeader:
				default:
					t.Errorf("a command beside the restore: %v", err)
				}
			}
		})
	}
	eventually(t, func() bool { return got(node.store.View(), "ada") > 0 }, func() string { return "nothing is written" })
	done, err := node.node.Restore(t.Context(), stateOf(t, fsm.VersionBinary-1), cluster.RestoreOptions{Force: true})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return got(node.store.View(), "ada") > 0 }, func() string { return "nothing is written" })
	cancel()
	writing.Wait()
	r.kill(0)
	s, err := raftstore.Open(node.cfg.DataDir,
		raftstore.Options{Logger: slog.New(slog.DiscardHandler), Library: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if n := inBinary(t, s.Logs, done.Index); n != 0 {
		t.Errorf("%d commands behind the restore have a header that older programs can't read", n)
	}
}

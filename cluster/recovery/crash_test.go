package recovery

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/fsm"
)

// survivorDisk makes the data directory of n1, one of three members, with terms
// 1 to 20 opened by commands; poison, if not 0, is an entry that no program
// understands.
func survivorDisk(t *testing.T, poison uint64) cluster.Config {
	t.Helper()
	cfg := cluster.DefaultConfig()
	cfg.NodeName, cfg.DataDir, cfg.PeerAddress = "n1", filepath.Join(t.TempDir(), "data"), "127.0.0.1:9"
	s, err := open(cfg.DataDir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	check(raftstore.Set(s.Stable, raftstore.KeyNodeID, "n1.old"))
	check(s.Stable.SetUint64([]byte("CurrentTerm"), 23))
	check(s.Stable.SetUint64([]byte("LastVoteTerm"), 22))
	members := raft.Configuration{
		Servers: []raft.Server{{ID: "n1.old", Address: "127.0.0.1:9"}, {ID: "n2.old", Address: "127.0.0.1:1"}},
	}
	for i := uint64(1); i <= 20; i++ {
		l := &raft.Log{
			Index:      i,
			Term:       i,
			Type:       raft.LogConfiguration,
			Data:       raft.EncodeConfiguration(members),
			AppendedAt: time.Unix(int64(1e9+i), 0),
		}
		if i > 1 {
			l.Type = raft.LogCommand
			cmd := fsm.NewCommand(fmt.Sprint("c", i), time.Now(), "", &fsm.TermOpenBody{Term: i, Node: "n1", ClusterID: "x"})
			l.Data, err = cmd.Encode()
			check(err)
		}
		if i == poison {
			l.Data = []byte(`no.such{"type":"no.such"}`)
		}
		check(s.Logs.StoreLog(l))
	}
	check(s.Close())
	return cfg
}

// TestRecover_CrashAtAnyPoint: a kill -9 within a recovery leaves what was there,
// or a state that opening the directory finishes; recovering again works either
// way.
func TestRecover_CrashAtAnyPoint(t *testing.T) {
	t.Parallel()
	cfg := survivorDisk(t, 0)
	r, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	copies := map[string]string{}
	r.at = func(point string) {
		copies[point] = filepath.Join(t.TempDir(), point)
		if err := os.CopyFS(copies[point], os.DirFS(cfg.DataDir)); err != nil {
			t.Fatal(err)
		}
	}
	done, err := r.Recover(0, "by a test")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for point, want := range map[string]string{
		raftstore.PointNoted:   "n1.old",
		raftstore.PointWritten: done.ID,
		recoverDone:            done.ID,
	} {
		killed := cfg
		killed.DataDir = copies[point]
		disk, err := Describe(killed)
		if err != nil {
			t.Fatalf("killed when %s: %v", point, err)
		}
		if disk.ID != want || want == done.ID && (disk.LastIndex != done.Index || len(disk.Members) != 1) ||
			want != done.ID && disk.LastIndex != 20 {
			t.Errorf("killed when %s: %+v", point, disk)
		}
		if r, err = Open(killed); err != nil {
			t.Fatal(err)
		}
		again, err := r.Recover(0, "again")
		if err != nil || again.ID == done.ID || again.Index <= disk.LastIndex {
			t.Errorf("killed when %s, again: %+v (%v)", point, again, err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRecover_Until leaves out an entry that stops every node, with all that
// follows.
func TestRecover_Until(t *testing.T) {
	t.Parallel()
	cfg := survivorDisk(t, 15)
	r, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	d := r.Disk()
	if d.Poisoned != 15 || !strings.Contains(d.Problem, "no.such") || d.LastIndex != 20 || d.LastTerm != 20 ||
		d.CurrentTerm != 23 || d.VotedTerm != 22 {
		t.Errorf("%+v", d)
	}
	for _, until := range []uint64{0, 15, 20} {
		if _, err := r.Recover(until, ""); err == nil || !strings.Contains(err.Error(), "--until 14 leaves it out") {
			t.Errorf("until %d: %v", until, err)
		}
	}
	done, err := r.Recover(14, "by a test")
	if err != nil || done.LeftOut != 6 || done.From != 14 {
		t.Fatalf("%+v (%v)", done, err)
	}
	if d := r.Disk(); d.Poisoned != 0 || d.LastTerm != 23 || d.LastIndex != done.Index || d.LastIndex < 20 {
		t.Errorf("%+v", d)
	}
	if _, err := r.Recover(14, ""); err == nil || !strings.Contains(err.Error(), "can't be built any more") {
		t.Errorf("an index from before: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFurthest(t *testing.T) {
	t.Parallel()
	disk := func(node string, term, index uint64) Survivor {
		return Survivor{Node: node, Cluster: "c", History: fsm.History{ID: "h"}, LastTerm: term, LastIndex: index}
	}
	best, err := Furthest([]Survivor{disk("n1", 4, 90), disk("n2", 5, 80), disk("n3", 5, 79)})
	if err != nil || best.Node != "n2" {
		t.Errorf("%+v (%v)", best, err)
	}
	other, later := disk("n2", 5, 80), disk("n3", 5, 80)
	other.Cluster, later.History.ID = "d", "h2"
	for _, d := range []Survivor{other, later} {
		if _, err := Furthest([]Survivor{disk("n1", 4, 90), d}); err == nil {
			t.Errorf("%+v was compared", d)
		}
	}
	if _, err := Furthest(nil); err == nil {
		t.Error("none was compared")
	}
}

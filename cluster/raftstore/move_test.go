package raftstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// moverEnv makes this program a process that opens a data directory: a mover as JSON.
const moverEnv = "BIVOUAC_TEST_MOVER"

// mover is killed before its step of the number Kill, if that is not 0.
type mover struct {
	Dir  string
	Kill int
}

func TestMain(m *testing.M) {
	if text := os.Getenv(moverEnv); text != "" {
		if err := openAsMover(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func openAsMover(text string) error {
	var m mover
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return err
	}
	o, steps := testOptions(), 0
	o.at = func(string) error {
		if steps++; steps == m.Kill {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	}
	s, err := Open(m.Dir, o)
	if err != nil {
		return err
	}
	return s.Close()
}

// startMover starts a process that opens a data directory.
func startMover(t *testing.T, m mover) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env, cmd.Stderr = append(os.Environ(), moverEnv+"="+string(text)), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// killed waits for a mover, and reports whether a SIGKILL ended it.
func killed(t *testing.T, cmd *exec.Cmd) bool {
	t.Helper()
	err := cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return false
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
		return true
	}
	t.Fatalf("the start ended with %v", err)
	return false
}

// mustOpenFormer opens a data directory as programs did that kept the log in raft.db.
func mustOpenFormer(t *testing.T, dir string) Store {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "raft.db")
	bolt, err := raftboltdb.New(raftboltdb.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	files, err := raft.NewFileSnapshotStoreWithLogger(dir, snapshotsKept, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	s := Store{watchdog: newWatchdog(dir, slog.New(slog.DiscardHandler)), Close: bolt.Close}
	sums := snapshotDir(filepath.Join(dir, "snapshots"))
	err = s.check(Stores{Logs: bolt, Stable: bolt, Snapshots: files, Sums: sums}, path, string(sums),
		func(*checkedLogs, func() error) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The log of makeFormer: several batches to copy and to delete.
const (
	formerFirst = 7
	formerLast  = formerFirst + moveEntries + 100
	formerSteps = 11
)

func formerEntry(i uint64) *raft.Log {
	return &raft.Log{
		Index: i, Term: 1 + i/1000, Data: bytes.Repeat([]byte(fmt.Sprintf("entry %d;", i)), 400),
		Extensions: []byte("x")[:i%2], AppendedAt: time.Unix(int64(i), 5),
	}
}

// makeFormer makes a data directory whose log is in raft.db, behind a snapshot.
func makeFormer(t *testing.T) string {
	t.Helper()
	dir := memoryDir(t)
	s := mustOpenFormer(t, dir)
	var batch []*raft.Log
	for i := uint64(formerFirst); i <= formerLast; i++ {
		batch = append(batch, formerEntry(i))
	}
	snapshotUpTo(t, s, formerFirst-1)
	err := errors.Join(Set(s.Stable, KeyNodeID, "n1.x"), s.Stable.SetUint64([]byte("CurrentTerm"), 9),
		s.Logs.StoreLogs(batch), s.MarkEnd(), s.Close())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// copyOf copies a data directory.
func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := memoryDir(t)
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// wantMoved opens a copy of makeFormer's directory: each entry is in the write-ahead log once, and
// none is in raft.db. It goes on behind them.
func wantMoved(t *testing.T, dir string) {
	t.Helper()
	s := mustOpen(t, dir)
	first, last, err := bounds(s.Logs)
	if err != nil || first != formerFirst || last != formerLast {
		t.Fatalf("the log is %d to %d (%v), was %d to %d", first, last, err, formerFirst, formerLast)
	}
	for i := first; i <= last; i++ {
		var l raft.Log
		want := formerEntry(i)
		if err := s.Logs.GetLog(i, &l); err != nil || l.Index != i || l.Term != want.Term ||
			!bytes.Equal(l.Data, want.Data) || !bytes.Equal(l.Extensions, want.Extensions) ||
			!l.AppendedAt.Equal(want.AppendedAt) {
			t.Fatalf("entry %d is %d of term %d (%v)", i, l.Index, l.Term, err)
		}
	}
	term, err := s.Stable.GetUint64([]byte("CurrentTerm"))
	if id, err2 := Get(s.Stable, KeyNodeID); err != nil || err2 != nil || term != 9 || id != "n1.x" {
		t.Errorf("the node is %q in term %d (%v, %v)", id, term, err, err2)
	}
	if err := errors.Join(s.Logs.StoreLog(formerEntry(last+1)), s.MarkEnd(), s.Close()); err != nil {
		t.Fatal(err)
	}
	bolt, err := raftboltdb.New(raftboltdb.Options{Path: filepath.Join(dir, "raft.db")})
	if err != nil {
		t.Fatal(err)
	}
	left, err := bolt.LastIndex()
	if err := errors.Join(err, bolt.Close()); err != nil || left != 0 || exists(filepath.Join(dir, copyName)) {
		t.Errorf("raft.db still ends with entry %d, %v", left, err)
	}
	wantLog(t, dir, formerFirst, formerLast+1)
}

// TestOpen_MoveKilledAtEachStep: a process that is killed with SIGKILL before any step of the move
// leaves a directory that the next start carries on with.
func TestOpen_MoveKilledAtEachStep(t *testing.T) {
	t.Parallel()
	former := makeFormer(t)
	for step := 1; ; step++ {
		dir := copyOf(t, former)
		if !killed(t, startMover(t, mover{dir, step})) {
			if step-1 != formerSteps {
				t.Errorf("the move has %d steps", step-1)
			}
			return
		}
		wantMoved(t, dir)
		if t.Failed() {
			t.Fatalf("killed before step %d", step)
		}
	}
}

// TestOpen_MoveKilledAtAnyTime kills starts on one directory, one after the other, also within what
// the libraries do.
func TestOpen_MoveKilledAtAnyTime(t *testing.T) {
	t.Parallel()
	rounds := 1
	if os.Getenv("BIVOUAC_DRILL") == "long" {
		rounds = 30
	}
	former := makeFormer(t)
	for range rounds {
		dir, kills := copyOf(t, former), 0
		for within := 50 * time.Millisecond; ; within += 50 * time.Millisecond {
			cmd := startMover(t, mover{Dir: dir})
			end := time.AfterFunc(rand.N(within), func() { _ = cmd.Process.Kill() })
			ended := killed(t, cmd)
			end.Stop()
			if !ended {
				break
			}
			kills++
		}
		t.Logf("killed %d times", kills)
		wantMoved(t, dir)
	}
}

// TestOpen_MoveFails: a step that fails ends the start with words, and the next start carries on.
func TestOpen_MoveFails(t *testing.T) {
	t.Parallel()
	former := makeFormer(t)
	for fails := 1; fails <= formerSteps; fails++ {
		errno, word := syscall.ENOSPC, "make room"
		if fails%2 > 0 {
			errno, word = syscall.EIO, "do not trust this disk"
		}
		dir, o, steps := copyOf(t, former), testOptions(), 0
		o.at = func(string) error {
			if steps++; steps == fails {
				return errno
			}
			return nil
		}
		_, err := Open(dir, o)
		if !errors.Is(err, errno) || !strings.Contains(err.Error(), "moving the log of "+filepath.Join(dir, "raft.db")) ||
			!strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), runbook) {
			t.Fatalf("%v in step %d: %v", errno, fails, err)
		}
		if left := exists(filepath.Join(dir, copyName)); steps != fails || left {
			t.Errorf("%v in step %d: %d steps ran, the copy is there: %v", errno, fails, steps, left)
		}
		wantMoved(t, dir)
	}
}

// TestOpen_MovedLogThatDiffers: entries of raft.db are never deleted unless the write-ahead log has
// the same.
func TestOpen_MovedLogThatDiffers(t *testing.T) {
	t.Parallel()
	former := makeFormer(t)
	for want, change := range map[string]func(raft.LogStore) error{
		"has entries 7 to 1130, and raft.db has 7 to 1131": func(l raft.LogStore) error {
			return l.DeleteRange(formerLast, formerLast)
		},
		"its entry 1131 is not the one in raft.db": func(l raft.LogStore) error {
			return errors.Join(l.DeleteRange(formerLast, formerLast), l.StoreLog(&raft.Log{Index: formerLast, Term: 99}))
		},
	} {
		dir := copyOf(t, former)
		o := testOptions()
		o.at = func(step string) error {
			if step == stepDelete {
				return syscall.EIO
			}
			return nil
		}
		if _, err := Open(dir, o); err == nil {
			t.Fatal("the deletion did not fail")
		}
		w, err := openFiles(filepath.Join(dir, walName), o.Library)
		if err == nil {
			err = errors.Join(change(w), w.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := Open(dir, testOptions()); err == nil || !strings.Contains(err.Error(), want) ||
				!strings.Contains(err.Error(), filepath.Join(dir, walName)+" is damaged") {
				t.Errorf("%v, want %q", err, want)
			}
		}
	}
}

// TestOpen_MoveOfALargeLog: 50 MB of entries are copied and deleted in parts, and the node says how
// far it is.
func TestOpen_MoveOfALargeLog(t *testing.T) { // not beside others: it measures the heap
	const count, size, bound = 10_000, 5_000, 4 * moveBytes
	dir := t.TempDir()
	s := mustOpenFormer(t, dir)
	data := bytes.Repeat([]byte("x"), size)
	for i := uint64(1); i <= count; {
		var batch []*raft.Log
		for range 10_000 {
			batch = append(batch, &raft.Log{Index: i, Term: 1, Data: data})
			i++
		}
		if err := s.Logs.StoreLogs(batch); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.MarkEnd(), s.Close()); err != nil {
		t.Fatal(err)
	}
	s = Store{}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, most, steps := heap(), uint64(0), map[string]int{}
	var lines bytes.Buffer
	o := testOptions()
	o.Logger, o.every = slog.New(slog.NewTextHandler(&lines, nil)), time.Nanosecond
	o.at = func(step string) error {
		if steps[step]++; step == stepCopy {
			most = max(most, heap())
		}
		return nil
	}
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	first, last, err := bounds(s.Logs)
	if err := errors.Join(err, s.Close()); err != nil || first != 1 || last != count {
		t.Fatalf("the log is %d to %d (%v)", first, last, err)
	}
	if most > before+bound || steps[stepCopy] < count*size/moveBytes || steps[stepDelete] < count/moveEntries {
		t.Errorf("it took %d KiB and %v", (int64(most)-int64(before))>>10, steps)
	}
	for _, line := range []string{
		"step=" + stepCopy, "step=" + stepCompare, "step=" + stepDelete,
		`"cluster: the log was copied from raft.db to the write-ahead log"`,
	} {
		if !strings.Contains(lines.String(), line) {
			t.Errorf("no line has %s", line)
		}
	}
}

// TestOpen_MoveOfAnEmptyLog: a directory with a snapshot and no entries goes on behind the snapshot,
// and an unfinished copy is never all that is left of a node.
func TestOpen_MoveOfAnEmptyLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := mustOpenFormer(t, dir)
	snapshotUpTo(t, s, 20)
	if err := errors.Join(s.MarkEnd(), s.Close()); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, dir)
	if err := errors.Join(s.Logs.StoreLog(logEntry(21)), s.MarkEnd(), s.Close()); err != nil {
		t.Fatal(err)
	}
	wantLog(t, dir, 21, 21)

	left := t.TempDir()
	if err := os.Rename(filepath.Join(dir, walName), filepath.Join(left, copyName)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(left, testOptions()); err == nil || !strings.Contains(err.Error(), "raft.db is damaged") {
		t.Errorf("a copy without raft.db: %v", err)
	}
	if !exists(filepath.Join(left, copyName)) {
		t.Error("the copy without raft.db was removed")
	}
}

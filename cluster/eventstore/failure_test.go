package eventstore

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"bivouac.dev/bivouac/fsm"
)

// tornDir names the directory in the process that is killed.
const tornDir = "BIVOUAC_TEST_TORN"

// TestStore_AfterAKillItHasAPrefix: whenever a process is killed, what was flushed is there, and of the
// rest whole writes in their order. The log is applied again over it.
func TestStore_AfterAKillItHasAPrefix(t *testing.T) {
	if dir := os.Getenv(tornDir); dir != "" {
		writeUntilKilled(t, dir)
		return
	}
	t.Parallel()
	dir := t.TempDir()
	for range 4 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), tornDir+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		flushed, lines := uint64(0), 0
		for in := bufio.NewScanner(out); lines < 6 && in.Scan(); {
			number, err := strconv.ParseUint(strings.TrimPrefix(in.Text(), "flushed "), 10, 64)
			if err != nil {
				t.Fatalf("%q", in.Text())
			}
			flushed = number
			lines++
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		s := open(t, dir, Options{})
		applied := s.Applied()
		if lines < 6 || applied < flushed {
			t.Errorf("%d was flushed and %d is there", flushed, applied)
		}
		want := state{}
		history(want, applied, nil)
		want.whole(t, s)
		shut(t, s)
	}
}

// history makes the same writes each time, up to an index, and calls each.
func history(s state, last uint64, each func(index uint64, changes []fsm.EventChange)) {
	for index := uint64(1); index <= last; index++ {
		name := fmt.Sprint("c", index%7)
		changes := []fsm.EventChange{
			s.add(name, event(fmt.Sprint("e", index), strings.Repeat("x", int(index*7919%30000)))),
		}
		if index%23 == 0 {
			changes = append(changes, s.drop(name))
		}
		if each != nil {
			each(index, changes)
		}
	}
}

// writeUntilKilled applies the history again from its beginning, and on. It says what was flushed.
func writeUntilKilled(t *testing.T, dir string) {
	s := open(t, dir, Options{MemTableBytes: 1 << 20})
	begin := s.Applied()
	history(state{}, begin+100000, func(index uint64, changes []fsm.EventChange) {
		write(t, s, index, changes...)
		if index > begin && index%97 == 0 {
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
			fmt.Println("flushed", index)
		}
	})
}

// TestStore_FailsAtAnyWrite: an error at any write of the file system ends neither the process nor a
// wait, names the directory, is the last operation, and leaves what was flushed before.
func TestStore_FailsAtAnyWrite(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{syscall.ENOSPC, syscall.EIO} {
		for _, from := range []int64{1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 60, 100} {
			t.Run(fmt.Sprint(fault, " from write ", from), func(t *testing.T) { failingFrom(t, fault, from) })
		}
	}
}

// TestStore_Flush_WaitsForTheOneUnderWay: it has what this one is for.
func TestStore_Flush_WaitsForTheOneUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Bool
		disk := make(chan struct{})
		fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if slow.Load() && op.Kind == errorfs.OpCreate {
				<-disk
			}
			return nil
		}))
		s, want := open(t, "events", Options{FS: fs}), state{}
		defer shut(t, s)
		write(t, s, 1, want.add("c1", event("a", "one")))
		slow.Store(true)
		var ended atomic.Int64
		for range 2 {
			go func() {
				if err := s.Flush(); err != nil {
					t.Error(err)
				}
				ended.Add(1)
			}()
			synctest.Wait()
		}
		if n := ended.Load(); n > 0 {
			t.Errorf("%d flushes returned, and nothing is on the disk", n)
		}
		close(disk)
		synctest.Wait()
		if n := ended.Load(); n != 2 {
			t.Errorf("%d flushes returned, want 2", n)
		}
	})
}

func failingFrom(t *testing.T, fault error, from int64) {
	mem := vfs.NewCrashableMem()
	s, want := open(t, "events", Options{FS: mem}), state{}
	write(t, s, 1, want.add("c1", event("a", "flushed")))
	shut(t, s)

	var writes atomic.Int64
	broken := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && writes.Add(1) >= from {
			return fault
		}
		return nil
	}))
	err := func() error {
		s, err := Open("events", Options{FS: broken, MemTableBytes: 256 << 10})
		if err != nil {
			return err
		}
		for index := uint64(2); index < 40; index++ {
			more := state{"c1": new(*want["c1"])}
			change := more.add("c1", event(fmt.Sprint("e", index), strings.Repeat("x", 20000)))
			if err := s.Write(index, []fsm.EventChange{change}); err != nil {
				return err
			}
			if index%10 == 0 {
				if err := s.Flush(); err != nil {
					return err
				}
			}
			*want["c1"] = *more["c1"]
		}
		return s.Flush()
	}()
	if err == nil && writes.Load() >= from {
		t.Error("nobody noticed")
	}
	if err != nil && (!strings.Contains(err.Error(), " in events: ") || !errors.Is(err, fault)) {
		t.Errorf("the error is %v", err)
	}
	again, err := Open("events", Options{FS: mem.CrashClone(vfs.CrashCloneCfg{})})
	if err != nil {
		t.Fatalf("opened again: %v", err)
	}
	defer shut(t, again)
	head, err := again.Head(chain("c1").Key)
	if err != nil || head == nil || head.Number < 1 {
		t.Fatalf("the head is %+v, %v", head, err)
	}
	if got, err := again.Follow(chain("c1").EventChain, head.Number); err != nil || got != head.EventChain {
		t.Errorf("the events make %+v, the head is %+v, %v", got, head, err)
	}
}

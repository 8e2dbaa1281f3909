package recovery

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/fsm"
)

// TestReplay: the log of a stopped node gives the state it had, command by
// command; one whose beginning is gone is refused.
func TestReplay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	storage, err := open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	want := fsm.NewStore()
	for i := uint64(1); i <= 20; i++ {
		l := &raft.Log{Index: i, Term: 1, Type: raft.LogNoop}
		if i > 1 {
			cmd := fsm.NewCommand(fmt.Sprint("c", i), time.Now(), "", &fsm.TermOpenBody{Term: i, Node: "n1", ClusterID: "x"})
			if l.Data, err = cmd.Encode(); err != nil {
				t.Fatal(err)
			}
			l.Type = raft.LogCommand
			if _, err := want.Apply(i, cmd); err != nil {
				t.Fatal(err)
			}
		}
		if err := storage.Logs.StoreLog(l); err != nil {
			t.Fatal(err)
		}
	}
	if err := storage.Close(); err != nil {
		t.Fatal(err)
	}
	var got *fsm.Store
	commands := 0
	last, err := Replay(dir, func(s *fsm.Store, cmd fsm.Command, o fsm.Outcome) error {
		got = s
		commands++
		if o.Err != nil || s.Index() != o.Result.Index || cmd.Type != fsm.TermOpen {
			t.Errorf("%s: %+v", cmd.Type, o)
		}
		return nil
	})
	if err != nil || last != 20 || commands != 19 || got.Checksum() != want.Checksum() {
		t.Errorf("%d commands to %d: %v", commands, last, err)
	}
	boom := errors.New("boom")
	if last, err := Replay(dir,
		func(*fsm.Store, fsm.Command, fsm.Outcome) error { return boom }); !errors.Is(err, boom) || last != 2 {
		t.Errorf("%d, %v", last, err)
	}
	if storage, err = open(dir, slog.New(slog.DiscardHandler)); err == nil {
		err = errors.Join(storage.Logs.DeleteRange(1, 5), storage.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Replay(dir, nil); err == nil {
		t.Error("a log without its beginning was replayed")
	}
}

package recovery

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/raftfsm"
	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/fsm"
)

// Replay applies the log of a stopped node to a new store, one command at a time, and calls each
// after every command; its error ends the replay. The log must begin at its first entry, so the node
// must not have taken snapshots. The last entries may not be committed. It is for end-to-end tests.
func Replay(dir string, each func(*fsm.Store, fsm.Command, fsm.Outcome) error) (last uint64, err error) {
	storage, err := open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, storage.Close()) }()
	first, err := storage.Logs.FirstIndex()
	if err == nil {
		last, err = storage.Logs.LastIndex()
	}
	if err != nil {
		return 0, fmt.Errorf("reading the bounds of the log: %w", err)
	}
	if first != 1 {
		return 0, fmt.Errorf("the log in %s begins at %d: what came before was cut off", dir, first)
	}
	store := fsm.NewStore()
	for i := first; i <= last; i++ {
		var l raft.Log
		if err := storage.Logs.GetLog(i, &l); err != nil {
			return i, fmt.Errorf("reading log entry %d: %w", i, err)
		}
		if l.Type != raft.LogCommand {
			continue
		}
		commands, err := raftfsm.CommandsIn(&l)
		if err != nil {
			return i, err
		}
		for _, cmd := range commands {
			if err := each(store, cmd, store.ApplyBatch([]fsm.Entry{{Index: i, Command: cmd}})[0]); err != nil {
				return i, err
			}
		}
	}
	return last, nil
}

// open opens the data directory of a stopped node as a start does.
func open(dir string, logger *slog.Logger) (raftstore.Store, error) {
	return raftstore.Open(dir, cluster.StorageOptions(logger))
}

// Adopt is raftstore.Adopt.
func Adopt(dir string, logger *slog.Logger) error {
	return raftstore.Adopt(dir, cluster.StorageOptions(logger))
}

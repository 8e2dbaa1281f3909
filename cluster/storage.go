package cluster

import (
	"context"
	"log/slog"
	"time"

	"bivouac.dev/bivouac/cluster/raftfsm"
	"bivouac.dev/bivouac/cluster/raftstore"
)

// openStorage opens the data directory with the cluster's log options.
func openStorage(dir, logStore string, logger *slog.Logger) (raftstore.Store, error) {
	return raftstore.Open(dir, StorageOptions(logStore, logger))
}

// StorageOptions are the cluster's log options for a data directory, as raftstore.Open takes them.
// logStore is the node's Config.LogStore.
func StorageOptions(logStore string, logger *slog.Logger) raftstore.Options {
	return raftstore.Options{
		Kind:    logStore,
		Logger:  logger,
		Library: raftLogger(logger),
		Entry:   raftfsm.CheckEntry,
		State:   raftfsm.CheckState,
	}
}

// every calls fn at each tick until ctx ends.
func every(ctx context.Context, interval time.Duration, fn func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			fn()
		case <-ctx.Done():
			return
		}
	}
}

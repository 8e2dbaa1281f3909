package cluster

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/raftfsm"
	"bivouac.dev/bivouac/cluster/raftstore"
)

// StorageOptions are the cluster's log options for a data directory, as raftstore.Open takes them.
func StorageOptions(logger *slog.Logger) raftstore.Options {
	return raftstore.Options{
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

const (
	// logCheckInterval is how often a node looks at the size of its log.
	logCheckInterval = time.Second
	// minTrailingBytes is the least Config.TrailingBytes: room for four full batches of commands.
	minTrailingBytes = 1 << 20
)

// boundLog keeps the log within Config.TrailingBytes: Raft counts entries, and their sizes differ.
// It lowers TrailingLogs to the entries that half of the bytes hold, and takes a snapshot when the
// log is larger than all of them. Raft then deletes entries that the snapshot covers.
func (n *Node) boundLog(ctx context.Context, r *raft.Raft) {
	ticker := time.NewTicker(logCheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		bytes, newest, known := n.storage.LogBytes(n.cfg.TrailingBytes / 2)
		if !known {
			return
		}
		n.reloadRaft(r, func(c *raft.ReloadableConfig) { c.TrailingLogs = min(n.cfg.TrailingLogs, newest) })
		if bytes <= n.cfg.TrailingBytes {
			continue
		}
		if err := n.await(ctx, r.Snapshot()); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) &&
			ctx.Err() == nil {
			n.logger.Warn("cluster: the log is larger than raft.trailing_bytes and the snapshot failed; it is tried again",
				"bytes", bytes, "error", err)
		}
	}
}

// reloadRaft changes Raft's configuration. Raft replaces it as a whole.
func (n *Node) reloadRaft(r *raft.Raft, change func(*raft.ReloadableConfig)) {
	n.reloading.Lock()
	defer n.reloading.Unlock()
	old := r.ReloadableConfig()
	c := old
	if change(&c); c == old {
		return
	}
	if err := r.ReloadConfig(c); err != nil {
		n.logger.Error("cluster: changing Raft's configuration", "error", err)
	}
}

// abandonTimeout bounds the stop of a node whose disk failed or hangs. Goroutines that wait for the
// disk end with the process.
const abandonTimeout = 5 * time.Second

// abandon stops a node without waiting for its disk. Raft and the network end first, so that the
// other nodes elect a leader.
func (n *Node) abandon(r *raft.Raft, end func() error) error {
	ended := make(chan error, 1)
	go func() {
		r.Shutdown()
		n.inbox.Shut()
		closed := make(chan error, 1)
		go func() { closed <- n.network.Close() }()
		err := end()
		ended <- errors.Join(err, <-closed)
	}()
	select {
	case err := <-ended:
		return err
	case <-time.After(abandonTimeout):
		n.logger.Warn("cluster: the disk does not answer; the node stops without closing it")
		return nil
	}
}

// newRaft runs raft.NewRaft in a new goroutine, because a store that fails ends the goroutine that
// calls it (raftstore's endCaller).
func (n *Node) newRaft(conf *raft.Config, transport raft.Transport) (r *raft.Raft, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		r, err = raft.NewRaft(
			conf, n.raftFSM, n.storage.Logs, n.storage.Stable, n.storage.Snapshots, transport,
		)
	}()
	<-done
	if r == nil && err == nil {
		err = n.storage.Watchdog().Failure()
	}
	return r, err
}

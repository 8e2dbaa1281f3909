package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// logCheckInterval is how often a node looks at the size of its log.
	logCheckInterval = time.Second
	// minTrailingBytes is the least Config.TrailingBytes: room for some entries of the largest size.
	minTrailingBytes = 1 << 20
)

// boundLog keeps the log within Config.TrailingBytes, because entries may be of any size. It lowers
// Raft's TrailingLogs to what half of the bytes hold, and takes a snapshot when the log has more
// than all of them. Only what the snapshot covers is deleted, and only by Raft.
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

package cluster

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/fsm"
)

// EventsRoom is what events leave free on the file system of a node's data directory, in bytes: settings,
// pauses and deletions need the log, and a node whose log finds no room stops. Events are refused before
// that, as backups are (raftstore.SpareFile), with room for what the store rewrites.
const EventsRoom = 384 << 20

// A snapshot or a backup ends before events are refused. This does not compile if it does not.
const _ = uint(raftstore.SpareBytes - EventsRoom - 1)

// roomInterval is how often a node looks at its room, roomRetry when senders of refused events are to
// come again.
const (
	roomInterval = time.Second
	roomRetry    = 10 * time.Second
)

// room is whether events find room: on this node's disk, and on the voters' as the leader sees it.
type room struct {
	low atomic.Bool
	// without names the voters without room; the leader's alone.
	without atomic.Pointer[[]string]
}

// watchRoom looks at this node's room until ctx ends.
func (n *Node) watchRoom(ctx context.Context) {
	if n.cfg.Free == nil {
		return
	}
	every(ctx, roomInterval, func() {
		free, err := n.cfg.Free()
		if err != nil {
			return // the log's own writes say what is wrong with the disk
		}
		low := free < EventsRoom
		switch was := n.room.low.Swap(low); {
		case low && !was:
			n.logger.Warn("cluster: events are refused: the disk of this node has no room for them (bivouac runbook disk)",
				"bytes", free)
		case was && !low:
			n.logger.Info("cluster: the disk of this node has room for events again", "bytes", free)
		}
	})
}

// noteRoom keeps which voters have no room, by their last answers.
func (n *Node) noteRoom(servers []raft.Server, contacts map[raft.ServerID]contact) {
	var without []string
	for _, s := range servers {
		if c := contacts[s.ID]; s.Suffrage == raft.Voter && c.alive && c.hello.EventsFull {
			without = append(without, peernet.NodeName(s.ID))
		}
	}
	n.room.without.Store(&without)
}

// roomForEvents refuses events while a voter that answers has no room for them. It runs on the leader,
// before the log.
func (n *Node) roomForEvents() *fsm.Error {
	var names []string
	if n.room.low.Load() {
		names = append(names, n.cfg.NodeName)
	}
	if others := n.room.without.Load(); others != nil {
		names = append(names, *others...)
	}
	if len(names) == 0 {
		return nil
	}
	return &fsm.Error{Code: fsm.CodeNoRoom, RetryAfter: roomRetry, Message: fmt.Sprintf(
		"no events are taken: the disk of %s has less than %d MiB left; nothing was done",
		strings.Join(names, ", "), EventsRoom>>20)}
}

package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/peernet"
)

// maxClockSpread is the largest accepted difference between a voter's clock and the leader's.
const maxClockSpread = time.Minute

// ClocksAgree is nil when, by their last answers, the clocks of a majority of the voters are within
// a minute of this leader's. An answer without a time counts as right.
func (n *Node) ClocksAgree(context.Context) error {
	voters, right, wrong := 0, 0, ""
	for _, s := range n.servers() {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		c, heard := n.contacts.get(s.ID)
		switch {
		case s.ID == n.id:
			right++
		case !heard || c.heard.IsZero():
		case c.hello.Time.IsZero(), c.ahead.Abs() <= maxClockSpread:
			right++
		default:
			wrong = fmt.Sprintf(
				"; that of %s is off by %s", peernet.NodeName(s.ID), c.ahead.Round(time.Second),
			)
		}
	}
	if right > voters/2 {
		return nil
	}
	return fmt.Errorf(
		"the clocks of %d of %d voters are known to be within %s of this node's%s", right, voters,
		maxClockSpread, wrong,
	)
}

// get returns a member's contact.
func (l *contactBook) get(id raft.ServerID) (contact, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.known[id]
	return c, ok
}

// clock is this node's wall clock.
func (n *Node) clock() time.Time {
	if n.cfg.Clock != nil {
		return n.cfg.Clock()
	}
	return time.Now()
}

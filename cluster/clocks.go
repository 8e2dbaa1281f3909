package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// maxClockSpread is how far a voter's clock may be from the leader's.
const maxClockSpread = time.Minute

// ClocksAgree is nil when the clocks of a majority of the voters are within a
// minute of this node's, which leads, by their last answers. An answer of a
// program that does not tell the time counts as right.
func (n *Node) ClocksAgree(context.Context) error {
	voters, right, wrong := 0, 0, ""
	for _, s := range n.servers() {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		c, heard := n.lookout.get(s.ID)
		switch {
		case s.ID == n.id:
			right++
		case !heard || c.heard.IsZero():
		case c.hello.Time.IsZero(), c.ahead.Abs() <= maxClockSpread:
			right++
		default:
			wrong = fmt.Sprintf("; that of %s is off by %s", nodeName(s.ID), c.ahead.Round(time.Second))
		}
	}
	if right > voters/2 {
		return nil
	}
	return fmt.Errorf("the clocks of %d of %d voters are known to be within %s of this node's%s", right, voters, maxClockSpread, wrong)
}

// get gives what is known of a member.
func (l *lookout) get(id raft.ServerID) (contact, bool) {
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

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// hastenTick is how often a follower looks whether its leader is overdue.
	hastenTick = 25 * time.Millisecond
	// hastenStep is how much later each next follower does so. The last of a
	// majority to give the leader up is elected, the pre-votes of those before it
	// are refused; two at once would share the votes.
	hastenStep = 2 * hastenTick
	// goneTimeout bounds asking whether anybody listens at the leader's address.
	goneTimeout = 50 * time.Millisecond
)

// doorbell is what a Network may know besides: whether the process at an address
// is gone for certain, which is more than that it does not answer.
type doorbell interface {
	Gone(ctx context.Context, address string) bool
}

// Gone reports whether the machine at address says that nobody listens there. A
// process that is starved, stopped or cut off does not look like that.
func (p *peerPort) Gone(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// hasten has this node give its leader up as soon as that is known to be gone.
// hashicorp/raft alone looks at intervals of one to two heartbeat timeouts, and
// each follower by itself: the last of the majority to notice decides when there
// is an election (ops/decisions/0017).
type hasten struct {
	node  *Node
	raft  *raft.Raft
	bell  doorbell
	lease time.Duration
	// short is whether Raft's heartbeat timeout is shortened at the moment.
	short bool
	// asked is when it was asked whether the leader is there, since it was last
	// heard, and pause how long after that it is asked again: a leader that is
	// starved has better things to do than take connections.
	asked time.Time
	pause time.Duration
	// process is the nonce of the leader's process as of when its term was first
	// seen; followed is whose, and in which term.
	process, followed string
}

func (n *Node) watchLeader(r *raft.Raft, tasks *sync.WaitGroup) {
	bell, ok := n.network.(doorbell)
	if !ok || n.cfg.LeaderLeaseTimeout >= n.cfg.HeartbeatTimeout {
		return
	}
	h := &hasten{node: n, raft: r, bell: bell, lease: n.cfg.LeaderLeaseTimeout}
	tasks.Go(func() { every(n.stopping, hastenTick, h.look) })
}

// look is one look at the leader. A leader that was not heard for as long as its
// lease has stepped down or soon does, if it lives at all.
func (h *hasten) look() {
	if h.short { // Raft has looked by now
		h.setTimeout(h.node.cfg.HeartbeatTimeout)
		h.short = false
	}
	address, id := h.raft.LeaderWithID()
	if h.raft.State() != raft.Follower || id == "" || id == h.node.id {
		return
	}
	restarted := h.restarted(id)
	heard := h.raft.LastContact()
	if h.asked.Before(heard) {
		h.pause = hastenStep
	} else if time.Since(h.asked) < h.pause && !restarted {
		return
	}
	if time.Since(heard) < h.lease+h.turn(id)*hastenStep {
		return
	}
	h.asked, h.pause = time.Now(), 2*h.pause
	switch {
	case restarted:
		h.node.metrics.leaderRestarts.Inc()
		h.node.logger.Warn("cluster: the leader's process is another one than led", "peer", nodeName(id), "address", string(address))
	case h.bell.Gone(h.node.stopping, string(address)):
		h.node.logger.Warn("cluster: the leader's process is gone", "peer", nodeName(id), "address", string(address))
	default:
		return
	}
	h.setTimeout(h.lease)
	h.short = true
}

// restarted reports whether the leader's process has said by its nonce that it is
// another one than this node began to follow in this term. A process never leads the
// term of the one before it. Nodes say their nonce with their first hello.
func (h *hasten) restarted(id raft.ServerID) bool {
	now := h.node.identity.startOf(id)
	if followed := fmt.Sprint(id, " ", h.raft.CurrentTerm()); followed != h.followed || h.process == "" {
		h.followed, h.process = followed, now
	}
	return now != h.process
}

// turn is how many of the other voters give the leader up before this node.
func (h *hasten) turn(leader raft.ServerID) (before time.Duration) {
	for _, s := range h.node.servers() {
		if s.ID != leader && s.ID != h.node.id && s.Suffrage == raft.Voter && s.ID < h.node.id {
			before++
		}
	}
	return before
}

// setTimeout changes Raft's heartbeat timeout. When it gets shorter a follower
// looks at once how long ago it heard its leader.
func (h *hasten) setTimeout(d time.Duration) {
	c := h.raft.ReloadableConfig()
	c.HeartbeatTimeout = d
	if err := h.raft.ReloadConfig(c); err != nil {
		h.node.logger.Error("cluster: changing the heartbeat timeout", "error", err)
	}
}

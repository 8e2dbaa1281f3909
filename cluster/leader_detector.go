package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/peernet"
)

const (
	// detectInterval is how often a follower checks a leader that is overdue. Before that it waits until
	// the leader can be.
	detectInterval = 25 * time.Millisecond
	// detectStagger delays each follower behind the one before it. The last voter of a majority to
	// drop the leader wins the election. Two voters at the same moment would split the votes.
	detectStagger = 2 * detectInterval
)

// livenessProber is a Network that can prove that no process listens at an address. A missing
// answer is no proof.
type livenessProber interface {
	Gone(ctx context.Context, address string) bool
}

// leaderDetector makes this node drop a leader as soon as its process is known to be gone.
// hashicorp/raft checks once in one to two heartbeat timeouts, and each follower on its own; the
// last follower of a majority decides when the election starts (ops/decisions/0016).
type leaderDetector struct {
	node   *Node
	raft   *raft.Raft
	prober livenessProber
	lease  time.Duration
	// shortened is set while Raft's heartbeat timeout is shortened.
	shortened bool
	// probed is the time of the last probe since the leader was heard. probePause is the time to the
	// next one; it doubles, so that probes do not burden a starved leader.
	probed     time.Time
	probePause time.Duration
	// process is the nonce of the leader's process when this node first saw its term. followed names
	// that leader and term.
	process, followed string
}

// watchLeader runs the detector until the node stops, if the network can probe.
func (n *Node) watchLeader(r *raft.Raft, tasks *sync.WaitGroup) {
	prober, ok := n.network.(livenessProber)
	if !ok || n.cfg.LeaderLeaseTimeout >= n.cfg.HeartbeatTimeout {
		return
	}
	d := &leaderDetector{node: n, raft: r, prober: prober, lease: n.cfg.LeaderLeaseTimeout}
	tasks.Go(func() {
		for wait := time.NewTimer(detectInterval); ; wait.Reset(d.check()) {
			select {
			case <-wait.C:
			case <-n.stopping.Done():
				wait.Stop()
				return
			}
		}
	})
}

// check looks once, and returns when to look again. A leader that was not heard for its lease has stepped
// down or is about to. A node that begins to follow one has heard it then, so a lease is not too late.
func (d *leaderDetector) check() (again time.Duration) {
	if d.shortened { // Raft has looked by now
		d.setTimeout(d.node.cfg.HeartbeatTimeout)
		d.shortened = false
	}
	address, id := d.raft.LeaderWithID()
	if d.raft.State() != raft.Follower || id == "" || id == d.node.id {
		return d.lease
	}
	restarted := d.restarted(id)
	heard := d.raft.LastContact()
	due := time.Until(heard.Add(d.lease + d.votersBefore(id)*detectStagger))
	if d.probed.Before(heard) {
		d.probePause = detectStagger
	} else if time.Since(d.probed) < d.probePause && !restarted {
		return detectInterval
	}
	if due > 0 {
		return due
	}
	d.probed, d.probePause = time.Now(), 2*d.probePause
	switch {
	case restarted:
		d.node.metrics.LeaderRestarts.Inc()
		d.node.logger.Warn(
			"cluster: the leader's process was restarted", "peer", peernet.NodeName(id), "address",
			string(address),
		)
	case d.prober.Gone(d.node.stopping, string(address)):
		d.node.logger.Warn(
			"cluster: the leader's process is gone", "peer", peernet.NodeName(id), "address",
			string(address),
		)
	default:
		return detectInterval
	}
	d.setTimeout(d.lease)
	d.shortened = true
	return detectInterval
}

// restarted reports whether the leader's process is another one than the one this node followed in
// this term. A process never leads the term of its predecessor. Nodes send their nonce with the
// first hello.
func (d *leaderDetector) restarted(id raft.ServerID) bool {
	now := d.node.identity.startOf(id)
	if followed := fmt.Sprint(id, " ", d.raft.CurrentTerm()); followed != d.followed || d.process == "" {
		d.followed, d.process = followed, now
	}
	return now != d.process
}

// votersBefore counts the other voters that drop the leader before this node.
func (d *leaderDetector) votersBefore(leader raft.ServerID) (count time.Duration) {
	for _, s := range d.node.servers() {
		if s.ID != leader && s.ID != d.node.id && s.Suffrage == raft.Voter && s.ID < d.node.id {
			count++
		}
	}
	return count
}

// setTimeout changes Raft's heartbeat timeout. A follower checks the last contact at once when the
// timeout gets shorter.
func (d *leaderDetector) setTimeout(timeout time.Duration) {
	d.node.reloadRaft(d.raft, func(c *raft.ReloadableConfig) { c.HeartbeatTimeout = timeout })
}

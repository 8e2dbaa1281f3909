//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/ops/e2e/testcluster/nodeconfig"
)

// snapshotWithin bounds when a node with a full log takes a snapshot: the drill's interval plus
// Raft's random delay of up to the same.
const snapshotWithin = 2 * time.Second

// notNow is the description of a fault that did not happen.
const notNow = "not now: enough disks are touched"

// tamper touches the disk of a minority's node. Usually it chooses the most dangerous case: a
// minority is behind, the others acknowledge writes meanwhile, all of them are killed, and the
// node with the touched disk starts with those that were behind, so that together they are a
// majority.
func (n *Nemesis) tamper(ctx context.Context, kind Kind, first int, chance *rand.Rand) (string, func() error) {
	victim, t, ok := n.claim(kind, first)
	if !ok {
		return notNow, healed
	}
	behind, others := n.sides(victim, chance)
	n.stop(behind...)
	if len(behind) > 0 {
		testcluster.Pause(ctx, keepUp)
	}
	n.stop(victim)
	if len(behind) > 0 {
		n.stop(others...)
	} else {
		others = nil
	}
	what, err := n.change(victim, t, chance)
	what = n.names([]int{victim}) + what
	if len(behind) > 0 {
		what += fmt.Sprintf(", after %s had been behind, and before %s come", n.names(behind), n.names(others))
	}
	err = errors.Join(err, n.start(append(behind, victim)...))
	return what, func() error { return errors.Join(err, n.start(others...)) }
}

// sides chooses the nodes that are behind when a disk is touched, and those that are dead when
// its node starts.
func (n *Nemesis) sides(victim int, chance *rand.Rand) (behind, others []int) {
	for _, i := range chance.Perm(len(n.cluster.Nodes)) {
		switch {
		case i == victim:
		case len(behind) < n.limit() && chance.IntN(5) > 0:
			behind = append(behind, i)
		default:
			others = append(others, i)
		}
	}
	return behind, others
}

// change changes the disk of a stopped node.
func (n *Nemesis) change(node int, t *touch, chance *rand.Rand) (string, error) {
	place := n.cluster.Nodes[node]
	defer n.changed(t)
	if t.kind == EmptyDisk {
		return " with an empty disk", place.EmptyData()
	}
	name, peer := place.Member(), place.Peer
	n.disks.mu.Lock()
	n.disks.made++
	made := n.disks.made
	n.disks.mu.Unlock()
	what := " on a new machine"
	if t.kind == NewName {
		t.old = name
		name = fmt.Sprintf("%s-%d", place.Name, made)
		what += " that is " + name
	}
	if chance.IntN(2) == 0 {
		peer = fmt.Sprintf("%s:%d", n.net.Host(node), 8310+made%1000)
		what += " at another address"
	}
	return what, errors.Join(place.Configure(func(c *nodeconfig.Config) { c.Name, c.Peer = name, peer }),
		place.EmptyData(), n.cluster.TellPeers())
}

// changed records that a disk has been changed.
func (n *Nemesis) changed(t *touch) {
	n.disks.mu.Lock()
	defer n.disks.mu.Unlock()
	t.changed = true
}

// bounce kills a node and starts it again at once, several times. Nothing waits between the end
// of one process and the start of the next. On an idle machine (or with chrt -f on a busy one)
// the next process starts 4 to 12 ms after the kill and its ports accept connections 18 to 33
// ms after it, namespace included; the measured time is logged. It serves later: it verifies
// its disk and asks the members first.
func (n *Nemesis) bounce(ctx context.Context, node int, chance *rand.Rand) (string, func() error) {
	times, slowest := 1+chance.IntN(3), time.Duration(0)
	var errs []error
	for i := range times {
		if i > 0 {
			testcluster.Pause(ctx, time.Duration(chance.IntN(600))*time.Millisecond)
		}
		begin := time.Now()
		n.stop(node)
		errs = append(errs, n.start(node))
		n.answers(ctx, node)
		slowest = max(slowest, time.Since(begin))
	}
	err := errors.Join(errs...)
	return fmt.Sprintf("%s, %d times, its port back within %s", n.names([]int{node}), times,
		slowest.Round(time.Millisecond)), func() error { return err }
}

// answers waits, within bounds, until a node's port accepts connections.
func (n *Nemesis) answers(ctx context.Context, node int) {
	ctx, cancel := context.WithTimeout(ctx, readyPatience)
	defer cancel()
	for ctx.Err() == nil {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(n.cluster.Nodes[node].Base, "http://"))
		if err == nil {
			_ = c.Close()
			return
		}
		testcluster.Pause(ctx, time.Millisecond)
	}
}

// late makes the nodes send messages late and twice.
func (n *Nemesis) late(chance *rand.Rand) (string, func() error) {
	l := Lateness{
		Twice: 10,
		Held:  5,
		Lost:  2,
		Most:  []time.Duration{200 * time.Millisecond, time.Second, 4 * time.Second}[chance.IntN(3)],
	}
	if chance.IntN(2) == 0 {
		l.Twice, l.Lost = 40, 0
	}
	err := n.post(l)
	what := fmt.Sprintf("of a hundred %d twice, %d held, %d behind others, by up to %s", l.Twice, l.Held, l.Lost, l.Most)
	return what, func() error { return errors.Join(err, n.post(Lateness{})) }
}

// post sets how all nodes send their messages.
func (n *Nemesis) post(l Lateness) error {
	var errs []error
	for _, m := range n.mail {
		errs = append(errs, m.Set(l))
	}
	return errors.Join(errs...)
}

// behindBy is how many entries behind a node gets a snapshot: more than the drill's threshold
// and trailing log.
const behindBy = 64

// lateSnapshot keeps a node dead until the leader's log no longer reaches back to it. After its
// start the node gets a snapshot and the following entries, and then that snapshot again.
func (n *Nemesis) lateSnapshot(ctx context.Context, node int) (string, func() error) {
	n.stop(node)
	begin, from := time.Now(), n.watch.commit()
	for ctx.Err() == nil && time.Since(begin) < readyPatience && (from == 0 || n.watch.commit() < from+behindBy) {
		testcluster.Pause(ctx, watchEvery)
		if from == 0 {
			from = n.watch.commit()
		}
	}
	testcluster.Pause(ctx, snapshotWithin)
	what := fmt.Sprintf("%s, dead for %s", n.names([]int{node}), time.Since(begin).Round(time.Millisecond))
	err := errors.Join(n.post(Lateness{Snapshots: 100, Most: 2 * time.Second}), n.start(node))
	return what, func() error { return errors.Join(err, n.post(Lateness{})) }
}

// clockElection kills the leader and moves the clocks of all others, each by another offset,
// before they elect a leader.
func (n *Nemesis) clockElection(leader int, chance *rand.Rand) (string, func() error) {
	n.stop(leader)
	var what []string
	var errs []error
	for i := range n.cluster.Nodes {
		if i == leader {
			continue
		}
		by := jumps[chance.IntN(len(jumps))]
		if chance.IntN(2) == 0 {
			by = -by
		}
		errs = append(errs, n.clocks[i].Set(by))
		what = append(what, fmt.Sprintf("%s by %s", n.cluster.Nodes[i].Name, by))
	}
	return n.names([]int{leader}) + " killed; " + strings.Join(what, ", "), func() error {
		for _, c := range n.clocks {
			errs = append(errs, c.Set(0))
		}
		return errors.Join(append(errs, n.start(leader))...)
	}
}

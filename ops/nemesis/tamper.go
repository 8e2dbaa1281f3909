//go:build linux

package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
)

// snapshotWithin is how soon a node with a full log takes a snapshot: the drill's
// interval, and as much by chance.
const snapshotWithin = 2 * time.Second

// notNow is said of a fault that did not happen.
const notNow = "not now: enough disks are touched"

// tamper touches a minority's disk. In most cases it happens as it hurts most: a
// minority is behind, what the others wrote meanwhile was acknowledged, all of
// them are killed, and the one with the touched disk comes back with those that
// were behind, so that together they are a majority.
func (n *Nemesis) tamper(ctx context.Context, kind Kind, first int, chance *rand.Rand) (string, func() error) {
	victim, t, ok := n.claim(ctx, kind, first)
	if !ok {
		return notNow, healed
	}
	behind, others := n.sides(victim, chance)
	n.stop(behind...)
	if len(behind) > 0 {
		wait(ctx, keepUp)
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

// sides chooses who is behind when a disk is touched, and who is dead while it
// comes back.
func (n *Nemesis) sides(victim int, chance *rand.Rand) (behind, others []int) {
	for _, i := range chance.Perm(len(n.fleet.Nodes)) {
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

// change is what happens to the disk of a node that does not run.
func (n *Nemesis) change(node int, t *touch, chance *rand.Rand) (string, error) {
	place := n.fleet.Nodes[node]
	defer n.changed(t)
	if t.kind == EmptyDisk {
		return " with an empty disk", place.EmptyData()
	}
	r := fleet.Replacement{}
	n.disks.mu.Lock()
	n.disks.made++
	made := n.disks.made
	n.disks.mu.Unlock()
	what := " on a new machine"
	if t.kind == NewName {
		t.old = place.Member()
		r.Member = fmt.Sprintf("%s-%d", place.Name, made)
		what += " that is " + r.Member
	}
	if chance.IntN(2) == 0 {
		r.Peer = fmt.Sprintf("%s:%d", n.net.Host(node), 8310+made%1000)
		what += " at another address"
	}
	return what, errors.Join(place.Replace(r), place.EmptyData(), n.fleet.TellPeers())
}

// changed notes that a disk is another from now on.
func (n *Nemesis) changed(t *touch) {
	n.disks.mu.Lock()
	defer n.disks.mu.Unlock()
	t.changed = true
}

// bounce kills a node and has it back at once, some times over. Nothing waits between
// the end of the one process and the start of the next. On an idle machine (or with
// chrt -f on a busy one) the next starts 4 to 12 ms after the kill and its ports answer
// 18 to 33 ms after it, namespace included; what it took here is said. That it serves
// again takes longer: it verifies its disk and asks the members first.
func (n *Nemesis) bounce(ctx context.Context, node int, chance *rand.Rand) (string, func() error) {
	times, slowest := 1+chance.IntN(3), time.Duration(0)
	var errs []error
	for i := range times {
		if i > 0 {
			wait(ctx, time.Duration(chance.IntN(600))*time.Millisecond)
		}
		begin := time.Now()
		n.stop(node)
		errs = append(errs, n.start(node))
		n.answers(ctx, node)
		slowest = max(slowest, time.Since(begin))
	}
	err := errors.Join(errs...)
	return fmt.Sprintf("%s, %d times, its port back within %s", n.names([]int{node}), times, slowest.Round(time.Millisecond)), func() error { return err }
}

// answers waits until a node's port takes connections, within bounds.
func (n *Nemesis) answers(ctx context.Context, node int) {
	ctx, cancel := context.WithTimeout(ctx, readyPatience)
	defer cancel()
	for ctx.Err() == nil {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(n.fleet.Nodes[node].Base, "http://"))
		if err == nil {
			_ = c.Close()
			return
		}
		wait(ctx, time.Millisecond)
	}
}

// late makes the nodes send their messages late, and twice.
func (n *Nemesis) late(chance *rand.Rand) (string, func() error) {
	l := Lateness{Twice: 10, Held: 5, Lost: 2, Most: []time.Duration{200 * time.Millisecond, time.Second, 4 * time.Second}[chance.IntN(3)]}
	if chance.IntN(2) == 0 {
		l.Twice, l.Lost = 40, 0
	}
	err := n.post(l)
	what := fmt.Sprintf("of a hundred %d twice, %d held, %d behind others, by up to %s", l.Twice, l.Held, l.Lost, l.Most)
	return what, func() error { return errors.Join(err, n.post(Lateness{})) }
}

// post tells all nodes how to send their messages.
func (n *Nemesis) post(l Lateness) error {
	var errs []error
	for _, m := range n.mail {
		errs = append(errs, m.Set(l))
	}
	return errors.Join(errs...)
}

// behindBy is how many entries a node must be behind to be sent a snapshot: more
// than the drill's threshold and trailing log.
const behindBy = 64

// lateSnapshot keeps a node dead until its log can't be continued. It comes back and
// is sent a snapshot and what follows, and then that snapshot again.
func (n *Nemesis) lateSnapshot(ctx context.Context, node int) (string, func() error) {
	n.stop(node)
	begin, from := time.Now(), n.watch.commit(ctx)
	for ctx.Err() == nil && time.Since(begin) < readyPatience && (from == 0 || n.watch.commit(ctx) < from+behindBy) {
		wait(ctx, watchEvery)
		if from == 0 {
			from = n.watch.commit(ctx)
		}
	}
	wait(ctx, snapshotWithin)
	what := fmt.Sprintf("%s, dead for %s", n.names([]int{node}), time.Since(begin).Round(time.Millisecond))
	err := errors.Join(n.post(Lateness{Snapshots: 100, Most: 2 * time.Second}), n.start(node))
	return what, func() error { return errors.Join(err, n.post(Lateness{})) }
}

// clockElection kills the leader and moves the clocks of all others, each by
// another time, before they have elected.
func (n *Nemesis) clockElection(leader int, chance *rand.Rand) (string, func() error) {
	n.stop(leader)
	var what []string
	var errs []error
	for i := range n.fleet.Nodes {
		if i == leader {
			continue
		}
		by := jumps[chance.IntN(len(jumps))]
		if chance.IntN(2) == 0 {
			by = -by
		}
		errs = append(errs, n.clocks[i].Set(by))
		what = append(what, fmt.Sprintf("%s by %s", n.fleet.Nodes[i].Name, by))
	}
	return n.names([]int{leader}) + " killed; " + strings.Join(what, ", "), func() error {
		for _, c := range n.clocks {
			errs = append(errs, c.Set(0))
		}
		return errors.Join(append(errs, n.start(leader))...)
	}
}

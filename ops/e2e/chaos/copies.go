//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// Parts of the messages with which a node refuses a disk.
const (
	saysCopy      = "is a copy: "
	saysObjection = "objects to the start of this node"
	saysTwice     = "another process has started on a copy of this node's disk"
)

const (
	// refusalPatience is how long a node may take to refuse a disk.
	refusalPatience = 15 * time.Second
	// After secondsKnown all members know what one has acknowledged. A disk that lacks
	// refusableBy entries since then must be refused.
	secondsKnown = 2500 * time.Millisecond
	refusableBy  = 20
)

// remedy is what the operator does about a disk that a node refused.
type remedy int

const (
	emptyIt    remedy = iota // the runbook's "another disk"
	newestBack               // the newest directory still exists
	adoptIt                  // an older copy is adopted: members object
	movedIt                  // the copy is the newest state: adopted, and it runs
	remedies
)

var remedyWords = map[remedy]string{
	emptyIt: "then emptied", newestBack: "then with the newest again", adoptIt: "then adopted",
	movedIt: "that is the newest, adopted",
}

// older is an older copy of a data directory, and the id of its member.
type older struct{ dir, member string }

// copyOf returns the older copy of a node's data directory.
func (n *Nemesis) copyOf(node int) older {
	n.disks.mu.Lock()
	defer n.disks.mu.Unlock()
	return n.disks.copies[node]
}

// shelve copies a node's disk, but sometimes keeps the earlier copy. It either stops the node
// and starts it again, so that the others know a later start than the copy does, or pauses it,
// so that the copy has the current start.
func (n *Nemesis) shelve(node int, member string, paused bool, chance *rand.Rand) error {
	if n.copyOf(node).dir != "" && !paused && chance.IntN(3) == 0 {
		return nil
	}
	place := n.cluster.Nodes[node]
	to := place.Data + ".copy"
	n.disks.mu.Lock()
	delete(n.disks.copies, node)
	n.disks.mu.Unlock()
	err := n.copyDisk(node, to, paused)
	if err != nil {
		return fmt.Errorf("copying the disk of %s: %w", place.Name, err)
	}
	n.disks.mu.Lock()
	defer n.disks.mu.Unlock()
	n.disks.copies[node] = older{to, member}
	return nil
}

// copyDisk copies a node's disk while the node is paused or stopped. Then the node serves
// again.
func (n *Nemesis) copyDisk(node int, to string, paused bool) error {
	place := n.cluster.Nodes[node]
	if paused {
		_, back := n.pause(node)
		return errors.Join(testcluster.CopyTree(place.Data, to), back())
	}
	n.stop(node)
	if err := errors.Join(testcluster.CopyTree(place.Data, to), n.start(node)); err != nil {
		return err
	}
	return testcluster.Await(testcluster.Patience, n.watch.client(node).Serves)
}

// oldDisk replaces a node's disk with a copy of it, with a minority behind and the others dead
// as in tamper. The node must refuse the disk. Then the operator applies a remedy; before an
// older copy is adopted, all other nodes run.
func (n *Nemesis) oldDisk(ctx context.Context, first int, chance *rand.Rand) (string, func() error) {
	victim, t, ok := n.claim(OldDisk, first)
	if !ok {
		return notNow, healed
	}
	way := remedy(chance.IntN(int(remedies)))
	place, newest := n.cluster.Nodes[victim], n.cluster.Nodes[victim].Data+".newest"
	behind, others := n.sides(victim, chance)
	var err error
	if way != movedIt {
		err = n.shelve(victim, t.former, false, chance)
	}
	n.stop(behind...)
	testcluster.Pause(ctx, keepUp)
	n.stop(victim)
	if len(behind) > 0 {
		n.stop(others...)
	} else {
		others = nil
	}
	from := n.copyOf(victim).dir
	err = errors.Join(err, os.RemoveAll(newest), os.Rename(place.Data, newest))
	if way == movedIt {
		from = newest
	}
	err = errors.Join(err, testcluster.CopyTree(from, place.Data), n.start(behind...))
	n.refuses(victim, saysCopy)
	if way != adoptIt {
		err = errors.Join(err, n.remedied(victim, t, way, newest))
	}
	what := fmt.Sprintf("%s with a copy, %s", place.Name, remedyWords[way])
	if len(behind) > 0 {
		what += fmt.Sprintf(", after %s had been behind, and before %s come", n.names(behind), n.names(others))
	}
	return what, func() error {
		err := errors.Join(err, n.start(others...))
		if way != adoptIt {
			return err
		}
		return errors.Join(err, n.adoptOlder(ctx, victim, t, newest, chance))
	}
}

// adoptOlder adopts an older copy, against the runbook, while the others run. They must object
// at every attempt. A copy of a removed member starts, but is not readmitted. The caller holds
// the node, which does not run.
func (n *Nemesis) adoptOlder(ctx context.Context, node int, t *touch, newest string, chance *rand.Rand) error {
	known := n.othersServe(node)
	err := n.adopt(ctx, n.cluster.Nodes[node])
	switch {
	case !known: // no member may be up to object, so the runbook forbids the start
	case n.copyOf(node).member != t.former:
		err = errors.Join(err, n.cluster.Nodes[node].Spawn())
		testcluster.Pause(ctx, time.Second)
		n.cluster.Nodes[node].Kill()
	default:
		for range 1 + chance.IntN(3) { // a service manager tries again
			n.refuses(node, saysObjection, saysTwice)
		}
	}
	return errors.Join(err, n.remedied(node, t, []remedy{emptyIt, newestBack}[chance.IntN(2)], newest))
}

// remedied applies a remedy and starts the node, which must run now. The caller holds the node,
// which does not run.
func (n *Nemesis) remedied(node int, t *touch, way remedy, newest string) error {
	place := n.cluster.Nodes[node]
	var err error
	switch way {
	case emptyIt:
		err = place.EmptyData()
	case newestBack:
		err = errors.Join(os.RemoveAll(place.Data), os.Rename(newest, place.Data))
	case movedIt:
		err = n.adopt(context.Background(), place)
	}
	err = errors.Join(err, os.RemoveAll(newest))
	n.mendable(t)
	return errors.Join(err, n.start(node))
}

// mendable records that a disk has its final state: its node must run from now on.
func (n *Nemesis) mendable(t *touch) {
	n.disks.mu.Lock()
	defer n.disks.mu.Unlock()
	t.changed, t.refusable = true, false
}

// adopt runs `bivouac operator adopt-disk`.
func (n *Nemesis) adopt(ctx context.Context, place *testcluster.Node) error {
	// The recovery goes on after the end of the run.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	_, err := n.cluster.Command(ctx, "operator", "adopt-disk", "--yes", "--config", place.File())
	n.disks.mu.Lock()
	defer n.disks.mu.Unlock()
	n.disks.adopted++
	return err
}

// refuses starts a node that must refuse its disk and say why. The caller holds the node, which
// does not run before or after. If no member responds within the second for which a starting
// node asks, the leader stops it a moment later.
func (n *Nemesis) refuses(node int, words ...string) {
	n.alive(node)
	defer n.dies(node)
	if err := n.mustRefuse(n.cluster.Nodes[node], words...); err != nil {
		n.disks.mu.Lock()
		defer n.disks.mu.Unlock()
		n.disks.ended = append(n.disks.ended, err.Error())
	}
}

// mustRefuse starts a process and waits until it has ended with one of the messages.
func (n *Nemesis) mustRefuse(place *testcluster.Node, words ...string) error {
	if err := place.Spawn(); err != nil {
		return err
	}
	err := testcluster.Await(refusalPatience, func() error {
		if place.Alive() {
			return errors.New("it runs")
		}
		return nil
	})
	if err != nil {
		place.Kill()
		return fmt.Errorf("%s runs with a disk that it must refuse (%q):\n%s", place.Name, words,
			local.Tail(place.Log, 12))
	}
	said := lastWords(place.Log)
	n.say("         %s refuses its disk: %s", place.Name, said)
	for _, w := range words {
		if strings.Contains(said, w) {
			n.disks.mu.Lock()
			defer n.disks.mu.Unlock()
			n.disks.refused++
			return nil
		}
	}
	return fmt.Errorf("%s refuses its disk without the words %q:\n%s", place.Name, words, local.Tail(place.Log, 12))
}

// othersServe waits, within bounds, until every other node serves: only then do they report
// what they know of a node.
func (n *Nemesis) othersServe(node int) bool {
	return testcluster.Await(readyPatience, func() error {
		for i := range n.cluster.Nodes {
			if i == node {
				continue
			}
			if err := n.watch.client(i).Serves(); err != nil {
				return err
			}
		}
		return nil
	}) == nil
}

// rollBack restores a disk's earlier content in the same files, like a storage snapshot. The
// others run all the time, so they can tell that it went back. If the copy has the current
// start, they tell it by the writes acknowledged since.
func (n *Nemesis) rollBack(ctx context.Context, first int, chance *rand.Rand) (string, func() error) {
	victim, t, ok := n.claim(RolledBack, first)
	if !ok {
		return notNow, healed
	}
	if !n.othersServe(victim) {
		return n.unclaim(victim)
	}
	place, paused := n.cluster.Nodes[victim], chance.IntN(2) == 0
	err := n.shelve(victim, t.former, paused, chance)
	atMost, current := n.watch.commit(), n.copyOf(victim).member == t.former
	testcluster.Pause(ctx, keepUp)
	known := n.watch.ask()[victim].Applied
	if paused {
		testcluster.Pause(ctx, secondsKnown)
	}
	n.stop(victim)
	newest := place.Data + ".newest"
	err = errors.Join(err, testcluster.CopyTree(place.Data, newest), restoreInPlace(n.copyOf(victim).dir, place.Data))
	what := place.Name + " with what its files held before"
	switch {
	case !paused && current, paused && atMost > 0 && known > atMost+refusableBy:
		n.refuses(victim, saysObjection, saysTwice, saysCopy)
	default: // the copy may lack nothing, or its member was removed
		what += ", and nobody need mind"
		n.changed(t)
		return what, func() error { return errors.Join(err, n.start(victim), os.RemoveAll(newest)) }
	}
	n.mendable(t)
	if chance.IntN(2) == 0 {
		what += ", then emptied"
		err = errors.Join(err, place.EmptyData())
	} else {
		what += ", then with the newest again"
		err = errors.Join(err, restoreInPlace(newest, place.Data))
	}
	err = errors.Join(err, n.start(victim), os.RemoveAll(newest))
	return what, func() error { return err }
}

// unclaim releases a node whose disk was not touched after all.
func (n *Nemesis) unclaim(node int) (string, func() error) {
	n.disks.mu.Lock()
	defer n.disks.mu.Unlock()
	delete(n.disks.touched, node)
	return notNow, healed
}

// clone runs a copy of a disk beside its original under the same name: first as it is, then
// adopted, to which the others object. By chance another node is dead meanwhile, so that there
// are elections.
func (n *Nemesis) clone(ctx context.Context, first int, chance *rand.Rand) (string, func() error) {
	node, t, ok := n.claim(CloneDisk, first)
	if !ok {
		return notNow, healed
	}
	if !n.othersServe(node) {
		return n.unclaim(node)
	}
	place, data := n.cluster.Nodes[node], n.cluster.Nodes[node].Data+".clone"
	paused, what := chance.IntN(2) == 0, place.Name+" twice"
	if paused {
		what += ", copied while it ran"
	}
	err := n.copyDisk(node, data, paused)
	host := n.net.Host(node)
	twin, cloneErr := place.Clone(host+":8081", host+":8302", data)
	n.mendable(t) // the original did not change
	if err = errors.Join(err, cloneErr); err != nil {
		return what, func() error { return err }
	}
	var killed []int
	if chance.IntN(2) == 0 {
		killed = []int{(node + 1 + chance.IntN(len(n.cluster.Nodes)-1)) % len(n.cluster.Nodes)}
		n.stop(killed...)
		what += ", and " + n.names(killed) + " dead"
	}
	refused := n.mustRefuse(twin, saysCopy)
	err = n.adopt(ctx, twin)
	for range 1 + chance.IntN(2) {
		refused = errors.Join(refused, n.mustRefuse(twin, saysObjection))
	}
	if refused != nil {
		n.disks.mu.Lock()
		n.disks.ended = append(n.disks.ended, "a clone: "+refused.Error())
		n.disks.mu.Unlock()
	}
	return what, func() error { return errors.Join(err, n.start(killed...), os.RemoveAll(data)) }
}

// commit returns the leader's commit index, 0 without a leader.
func (w *watch) commit() uint64 {
	said := w.ask()
	if i := leading(said); i >= 0 {
		return said[i].Commit
	}
	return 0
}

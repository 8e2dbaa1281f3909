//go:build linux

package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
)

// What a node says when it does not run on a disk.
const (
	saysCopy      = "is a copy: "
	saysObjection = "objects to the start of this node"
	saysTwice     = "another process has started on a copy of this node's disk"
)

const (
	// refusalPatience is how long a node may take to refuse a disk.
	refusalPatience = 15 * time.Second
	// secondsKnown is how long after it all members know what one has acknowledged,
	// and refusableBy how many entries a disk must lack then to be refused for it.
	secondsKnown = 2500 * time.Millisecond
	refusableBy  = 20
)

// remedy is what the operator does about a disk that a node refused.
type remedy int

const (
	emptyIt    remedy = iota // the runbook's "another disk"
	newestBack               // the newest directory is still there
	adoptIt                  // adopted although it is older: members object
	movedIt                  // the copy is the newest state: adopted, and it runs
	remedies
)

var remedyWords = map[remedy]string{
	emptyIt: "then emptied", newestBack: "then with the newest again", adoptIt: "then adopted", movedIt: "that is the newest, adopted",
}

// older is an older copy of a data directory, of the member that had it.
type older struct{ dir, member string }

// copyOf is the older copy of a node's data directory.
func (n *Nemesis) copyOf(node int) older {
	n.disks.mu.Lock()
	defer n.disks.mu.Unlock()
	return n.disks.copies[node]
}

// shelve copies the disk of a node and keeps the copy of a former time sometimes.
// The node is stopped for it and serves again, so that the others know a later start
// than the copy does; or it is paused, and the copy is of the same start.
func (n *Nemesis) shelve(ctx context.Context, node int, member string, paused bool, chance *rand.Rand) error {
	if n.copyOf(node).dir != "" && !paused && chance.IntN(3) == 0 {
		return nil
	}
	place := n.fleet.Nodes[node]
	to := place.Data + ".copy"
	n.disks.mu.Lock()
	delete(n.disks.copies, node)
	n.disks.mu.Unlock()
	err := n.copyDisk(ctx, node, to, paused)
	if err != nil {
		return fmt.Errorf("copying the disk of %s: %w", place.Name, err)
	}
	n.disks.mu.Lock()
	defer n.disks.mu.Unlock()
	n.disks.copies[node] = older{to, member}
	return nil
}

// copyDisk copies the disk of a node that is paused or stopped for it, and serves
// again then.
func (n *Nemesis) copyDisk(ctx context.Context, node int, to string, paused bool) error {
	place := n.fleet.Nodes[node]
	if paused {
		_, back := n.pause(node)
		return errors.Join(fleet.CopyTree(place.Data, to), back())
	}
	n.stop(node)
	if err := errors.Join(fleet.CopyTree(place.Data, to), n.start(node)); err != nil {
		return err
	}
	return fleet.Await(fleet.Patience, func() error {
		return n.watch.get(context.WithoutCancel(ctx), place.Base+"/ready", nil)
	})
}

// oldDisk puts a copy of its disk in a node's place, with a minority behind and
// the others dead as in tamper. The node must refuse it; then the operator does
// one of the remedies. One that adopts an older copy has all others run first.
func (n *Nemesis) oldDisk(ctx context.Context, first int, chance *rand.Rand) (string, func() error) {
	victim, t, ok := n.claim(ctx, OldDisk, first)
	if !ok {
		return notNow, healed
	}
	way := remedy(chance.IntN(int(remedies)))
	place, newest := n.fleet.Nodes[victim], n.fleet.Nodes[victim].Data+".newest"
	behind, others := n.sides(victim, chance)
	var err error
	if way != movedIt {
		err = n.shelve(ctx, victim, t.former, false, chance)
	}
	n.stop(behind...)
	wait(ctx, keepUp)
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
	err = errors.Join(err, fleet.CopyTree(from, place.Data), n.start(behind...))
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

// adoptOlder has an operator adopt an older copy, against the runbook, while the
// others run: they object, as often as it is tried. A copy of a member that is none
// any more starts, and is not taken back. The caller has hold of the node, and it
// does not run.
func (n *Nemesis) adoptOlder(ctx context.Context, node int, t *touch, newest string, chance *rand.Rand) error {
	known := n.othersServe(ctx, node)
	err := n.adopt(ctx, n.fleet.Nodes[node])
	switch {
	case !known: // nobody may be there to object: the runbook forbids to start it
	case n.copyOf(node).member != t.former:
		err = errors.Join(err, n.fleet.Nodes[node].Spawn())
		wait(ctx, time.Second)
		n.fleet.Nodes[node].Kill()
	default:
		for range 1 + chance.IntN(3) { // a service manager tries again
			n.refuses(node, saysObjection, saysTwice)
		}
	}
	return errors.Join(err, n.remedied(node, t, []remedy{emptyIt, newestBack}[chance.IntN(2)], newest))
}

// remedied carries out a remedy and starts the node, which must run now. The caller
// has hold of the node, and it does not run.
func (n *Nemesis) remedied(node int, t *touch, way remedy, newest string) error {
	place := n.fleet.Nodes[node]
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

// mendable notes that a disk is as it stays: its node must run.
func (n *Nemesis) mendable(t *touch) {
	n.disks.mu.Lock()
	defer n.disks.mu.Unlock()
	t.changed, t.refusable = true, false
}

// adopt is `bivouac operator adopt-disk`.
func (n *Nemesis) adopt(ctx context.Context, place *fleet.Node) error {
	// The run may be over, its undoing is not.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	_, err := n.fleet.Command(ctx, "operator", "adopt-disk", "--yes", "--config", place.Config())
	n.disks.mu.Lock()
	defer n.disks.mu.Unlock()
	n.disks.adopted++
	return err
}

// refuses starts a node that must not run on its disk and say why. The caller has
// hold of the node, and it does not run; nor does it afterwards. Where nobody answered
// within the second for which a starting node asks, the leader stops it a moment later.
func (n *Nemesis) refuses(node int, words ...string) {
	n.alive(node)
	defer n.dies(node)
	if err := n.mustRefuse(n.fleet.Nodes[node], words...); err != nil {
		n.disks.mu.Lock()
		defer n.disks.mu.Unlock()
		n.disks.ended = append(n.disks.ended, err.Error())
	}
}

// mustRefuse starts a process and waits until it has ended with one of the words.
func (n *Nemesis) mustRefuse(place *fleet.Node, words ...string) error {
	if err := place.Spawn(); err != nil {
		return err
	}
	err := fleet.Await(refusalPatience, func() error {
		if place.Alive() {
			return errors.New("it runs")
		}
		return nil
	})
	if err != nil {
		place.Kill()
		return fmt.Errorf("%s runs with a disk that it must refuse (%q):\n%s", place.Name, words, fleet.Tail(place.Log, 12))
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
	return fmt.Errorf("%s refuses its disk without the words %q:\n%s", place.Name, words, fleet.Tail(place.Log, 12))
}

// othersServe waits until every other node serves, within bounds: what they know
// of a node they say only then.
func (n *Nemesis) othersServe(ctx context.Context, node int) bool {
	ctx = context.WithoutCancel(ctx) // as in adopt
	return fleet.Await(readyPatience, func() error {
		for i, place := range n.fleet.Nodes {
			if i == node {
				continue
			}
			if err := n.watch.get(ctx, place.Base+"/ready", nil); err != nil {
				return err
			}
		}
		return nil
	}) == nil
}

// rollBack puts back what a disk held before, file by file, so that the files are
// the same and hold less, as after a storage's own snapshot. The others run all
// the time: they can say that it went back. Where the copy is of the same start,
// they say so of what was acknowledged since.
func (n *Nemesis) rollBack(ctx context.Context, first int, chance *rand.Rand) (string, func() error) {
	victim, t, ok := n.claim(ctx, RolledBack, first)
	if !ok {
		return notNow, healed
	}
	if !n.othersServe(ctx, victim) {
		return n.unclaim(victim)
	}
	place, paused := n.fleet.Nodes[victim], chance.IntN(2) == 0
	err := n.shelve(ctx, victim, t.former, paused, chance)
	atMost, current := n.watch.commit(ctx), n.copyOf(victim).member == t.former
	wait(ctx, keepUp)
	known := n.watch.ask(ctx)[victim].Applied
	if paused {
		wait(ctx, secondsKnown)
	}
	n.stop(victim)
	newest := place.Data + ".newest"
	err = errors.Join(err, fleet.CopyTree(place.Data, newest), restoreInPlace(n.copyOf(victim).dir, place.Data))
	what := place.Name + " with what its files held before"
	switch {
	case !paused && current, paused && atMost > 0 && known > atMost+refusableBy:
		n.refuses(victim, saysObjection, saysTwice, saysCopy)
	default: // nothing is known to be lost with it, or its member is none any more
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

// unclaim lets go of a node whose disk was not touched after all.
func (n *Nemesis) unclaim(node int) (string, func() error) {
	n.disks.mu.Lock()
	defer n.disks.mu.Unlock()
	delete(n.disks.touched, node)
	return notNow, healed
}

// clone runs a copy of a disk beside its original, under the same name: as it is,
// and then adopted, which the others object to. By chance another node is dead
// meanwhile, so that votes are asked for.
func (n *Nemesis) clone(ctx context.Context, first int, chance *rand.Rand) (string, func() error) {
	node, t, ok := n.claim(ctx, CloneDisk, first)
	if !ok {
		return notNow, healed
	}
	if !n.othersServe(ctx, node) {
		return n.unclaim(node)
	}
	place, data := n.fleet.Nodes[node], n.fleet.Nodes[node].Data+".clone"
	paused, what := chance.IntN(2) == 0, place.Name+" twice"
	if paused {
		what += ", copied while it ran"
	}
	err := n.copyDisk(ctx, node, data, paused)
	host := n.net.Host(node)
	twin, cloneErr := place.Clone(host+":8081", host+":8302", data)
	n.mendable(t) // the original is as it was
	if err = errors.Join(err, cloneErr); err != nil {
		return what, func() error { return err }
	}
	var killed []int
	if chance.IntN(2) == 0 {
		killed = []int{(node + 1 + chance.IntN(len(n.fleet.Nodes)-1)) % len(n.fleet.Nodes)}
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

// commit is the leader's commit index, 0 where nobody leads.
func (w *watch) commit(ctx context.Context) uint64 {
	said := w.ask(ctx)
	if i := leading(said); i >= 0 {
		return said[i].Commit
	}
	return 0
}

//go:build linux

package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
)

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
	var behind, others []int
	for _, i := range chance.Perm(len(n.fleet.Nodes)) {
		switch {
		case i == victim:
		case len(behind) < n.limit() && chance.IntN(5) > 0:
			behind = append(behind, i)
		default:
			others = append(others, i)
		}
	}
	if kind == OldDisk {
		n.shelve(victim, chance)
	}
	n.stop(behind...)
	if len(behind) > 0 || kind == OldDisk {
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

// change is what happens to the disk of a node that does not run.
func (n *Nemesis) change(node int, t *touch, chance *rand.Rand) (string, error) {
	place := n.fleet.Nodes[node]
	defer n.changed(t)
	switch t.kind {
	case OldDisk:
		return " with an older copy", fleet.CopyTree(n.copyOf(node), place.Data)
	case RolledBack:
		return " with what its files held before", restoreInPlace(n.copyOf(node), place.Data)
	case EmptyDisk:
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

// copyOf is where the older copy of a node's data directory is.
func (n *Nemesis) copyOf(node int) string {
	n.disks.mu.Lock()
	defer n.disks.mu.Unlock()
	return n.disks.copies[node]
}

// shelve copies the disk of a node, which is stopped for a moment; sometimes the
// copy of a former time is kept.
func (n *Nemesis) shelve(node int, chance *rand.Rand) {
	if n.copyOf(node) != "" && chance.IntN(3) == 0 {
		return
	}
	place := n.fleet.Nodes[node]
	to := place.Data + ".copy"
	n.stop(node)
	err := errors.Join(fleet.CopyTree(place.Data, to), n.start(node))
	if err != nil {
		n.say("         copying the disk of %s: %v", place.Name, err)
		return
	}
	n.disks.mu.Lock()
	n.disks.copies[node] = to
	n.disks.mu.Unlock()
}

// rollBack puts back what a disk held a moment before, file by file, so that the
// files are the same and hold less, as after a storage's own snapshot. The
// others run all the time: they can say that it went back.
func (n *Nemesis) rollBack(ctx context.Context, first int, chance *rand.Rand) (string, func() error) {
	victim, t, ok := n.claim(ctx, RolledBack, first)
	if !ok {
		return notNow, healed
	}
	n.shelve(victim, chance)
	wait(ctx, keepUp)
	n.stop(victim)
	what, err := n.change(victim, t, chance)
	return n.names([]int{victim}) + what, func() error { return errors.Join(err, n.start(victim)) }
}

// clone runs a copy of a disk beside its original, under the same name. By
// chance another node is killed meanwhile, so that votes are asked for.
func (n *Nemesis) clone(ctx context.Context, first int, chance *rand.Rand) (string, func() error) {
	node, t, ok := n.claim(ctx, CloneDisk, first)
	if !ok {
		return notNow, healed
	}
	place := n.fleet.Nodes[node]
	data := place.Data + ".clone"
	n.stop(node)
	err := fleet.CopyTree(place.Data, data)
	err = errors.Join(err, n.start(node))
	host := n.net.Host(node)
	twin, cloneErr := place.Clone(host+":8081", host+":8302", data)
	if err = errors.Join(err, cloneErr); err != nil {
		return place.Name, func() error { return err }
	}
	err = twin.Spawn()
	what := place.Name + " twice"
	var killed []int
	if chance.IntN(2) == 0 {
		killed = []int{(node + 1 + chance.IntN(len(n.fleet.Nodes)-1)) % len(n.fleet.Nodes)}
		n.stop(killed...)
		what += ", and " + n.names(killed) + " dead"
	}
	return what, func() error {
		if err != nil {
			return err
		}
		n.disks.mu.Lock()
		if !twin.Alive() {
			n.disks.refused++
		}
		n.disks.mu.Unlock()
		twin.Kill()
		n.changed(t)
		return errors.Join(n.start(killed...), os.RemoveAll(data))
	}
}

// restoreInPlace makes a directory hold what a copy of it holds, writing into
// the files that are there.
func restoreInPlace(from, to string) error {
	if from == "" {
		return errors.New("there is no copy")
	}
	var errs []error
	keep := map[string]bool{}
	errs = append(errs, filepath.WalkDir(from, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		keep[rel] = true
		if e.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		return overwrite(path, filepath.Join(to, rel))
	}))
	var gone []string
	errs = append(errs, filepath.WalkDir(to, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if rel, err := filepath.Rel(to, path); err == nil && !keep[rel] && !e.IsDir() {
			gone = append(gone, path)
		}
		return nil
	}))
	for _, path := range gone {
		errs = append(errs, os.Remove(path))
	}
	return errors.Join(errs...)
}

// overwrite gives a file the content of another.
func overwrite(from, to string) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	return errors.Join(err, f.Truncate(int64(len(raw))), f.Sync(), f.Close())
}

// bounce kills a node and has it back at once, some times over.
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
		slowest = max(slowest, time.Since(begin))
	}
	err := errors.Join(errs...)
	return fmt.Sprintf("%s, %d times, back within %s", n.names([]int{node}), times, slowest.Round(time.Millisecond)), func() error { return err }
}

// late makes the nodes send their messages late, and twice.
func (n *Nemesis) late(chance *rand.Rand) (string, func() error) {
	l := Lateness{Twice: 10, Held: 5, Lost: 2, Most: []time.Duration{200 * time.Millisecond, time.Second, 4 * time.Second}[chance.IntN(3)]}
	if chance.IntN(2) == 0 {
		l.Twice, l.Lost = 40, 0
	}
	set := func(l Lateness) error {
		var errs []error
		for _, m := range n.mail {
			errs = append(errs, m.Set(l))
		}
		return errors.Join(errs...)
	}
	err := set(l)
	what := fmt.Sprintf("of a hundred %d twice, %d held, %d behind others, by up to %s", l.Twice, l.Held, l.Lost, l.Most)
	return what, func() error { return errors.Join(err, set(Lateness{})) }
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

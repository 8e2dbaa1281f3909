//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

const (
	// keepUp is how long the majority keeps writing without the others before their disks are
	// touched.
	keepUp = 700 * time.Millisecond
	// repairEvery is the interval at which touched disks are checked for recovery.
	repairEvery = 300 * time.Millisecond
	// turnedAway is how long a node may fail to take part while there is a leader before its
	// disk is emptied, as the runbook says.
	turnedAway = 10 * time.Second
	// maxEnds is how often a node may end by itself before it stays dead.
	maxEnds = 2
)

// disks records the touched disks. A disk counts as touched until its node is a voter that has
// everything that was committed at that time. At most a minority is touched at a time.
type disks struct {
	mu      sync.Mutex
	touched map[int]*touch
	// copies holds the older copies of data directories, by node.
	copies map[int]older
	// made counts the members with new names.
	made int
	// refused counts starts on a disk that the node refused. adopted counts adoptions. away
	// counts nodes that the others did not readmit with their disk.
	refused, adopted, away int
	// ended lists processes that ended by themselves and should not have, or should have and
	// did not. lost counts the former by node.
	ended []string
	lost  map[int]int
}

// touch is one touched disk.
type touch struct {
	kind Kind
	// former is the member's id before. old is its name if it has to be removed.
	former, old string
	// changed: the disk differs from before. Until then there is nothing to check.
	changed bool
	// refusable: the node may refuse the disk, or the others may refuse the node.
	refusable bool
	// waited is the time since which it does not take part although there is a leader.
	waited time.Time
	// goal is the index that the node must reach to have recovered.
	goal uint64
}

// limit is how many disks may be touched at a time.
func (n *Nemesis) limit() int { return (len(n.cluster.Nodes) - 1) / 2 }

// claim chooses a node whose disk may be touched now, and records it.
func (n *Nemesis) claim(kind Kind, first int) (node int, t *touch, ok bool) {
	said := n.watch.ask()
	d := &n.disks
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.touched) >= n.limit() {
		return 0, nil, false
	}
	for i := range n.cluster.Nodes {
		node = (first + i) % len(n.cluster.Nodes)
		if d.touched[node] == nil && said[node].ID != "" {
			t = &touch{kind: kind, former: said[node].ID, refusable: kind != EmptyDisk && kind != SameName && kind != NewName}
			d.touched[node] = t
			return node, t, true
		}
	}
	return 0, nil, false
}

// stop kills nodes and holds them. start starts them and releases them.
func (n *Nemesis) stop(nodes ...int) {
	for _, i := range nodes {
		n.hands[i].Lock()
		n.endedItself(i)
		n.dies(i)
		n.cluster.Nodes[i].Kill()
	}
}

func (n *Nemesis) start(nodes ...int) error {
	var errs []error
	for _, i := range nodes {
		errs = append(errs, n.cluster.Nodes[i].Spawn())
		n.alive(i)
		n.hands[i].Unlock()
	}
	return errors.Join(errs...)
}

// endedItself records a process that ended by itself. The caller holds the node.
func (n *Nemesis) endedItself(node int) bool {
	place := n.cluster.Nodes[node]
	if place.Alive() {
		return false
	}
	n.disks.mu.Lock()
	defer n.disks.mu.Unlock()
	if t := n.disks.touched[node]; t != nil && t.refusable && refusal(place.Log) {
		n.disks.refused++
		return true
	}
	if n.disks.lost[node]++; n.disks.lost[node] <= maxEnds {
		n.disks.ended = append(n.disks.ended,
			fmt.Sprintf("%s ended by itself:\n%s", place.Name, local.Tail(place.Log, 12)))
	}
	return true
}

// refusal reports whether a process ended because of its disk and said so.
func refusal(log string) bool {
	said := lastWords(log)
	return slices.ContainsFunc([]string{saysCopy, saysObjection, saysTwice},
		func(w string) bool { return strings.Contains(said, w) })
}

// repair restarts nodes that ended by themselves and checks touched disks until ctx ends.
func (n *Nemesis) repair(ctx context.Context) {
	tick := time.NewTicker(repairEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		n.repairOnce(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (n *Nemesis) repairOnce(ctx context.Context) {
	for i := range n.cluster.Nodes {
		n.revive(i)
	}
	d := &n.disks
	d.mu.Lock()
	var nodes []int
	for i, t := range d.touched {
		if t.changed {
			nodes = append(nodes, i)
		}
	}
	d.mu.Unlock()
	if len(nodes) == 0 {
		return
	}
	said := n.watch.ask()
	leader := leading(said)
	for _, i := range nodes {
		n.mend(ctx, i, said, leader)
	}
}

// revive restarts a node that ended by itself, with an empty disk if it refused its disk.
func (n *Nemesis) revive(node int) {
	if !n.hands[node].TryLock() {
		return // a fault holds the node
	}
	defer n.hands[node].Unlock()
	if !n.endedItself(node) {
		return
	}
	n.disks.mu.Lock()
	t, lost := n.disks.touched[node], n.disks.lost[node]
	n.disks.mu.Unlock()
	if lost > maxEnds {
		return // it stays dead
	}
	place := n.cluster.Nodes[node]
	n.say("         %s ended by itself: %s", place.Name, lastWords(place.Log))
	n.dies(node)
	if t != nil && t.refusable {
		if err := place.EmptyData(); err != nil {
			n.say("         emptying the disk of %s: %v", place.Name, err)
		}
		n.mendable(t)
	}
	if err := place.Spawn(); err != nil {
		n.say("         starting %s: %v", place.Name, err)
	}
	n.alive(node)
}

// lastWords returns the end of a log's last line.
func lastWords(log string) string {
	line := local.Tail(log, 1)
	return line[max(0, len(line)-600):]
}

// mend removes a disk from the list when its node has recovered. It removes the former member
// if the new one has another name.
func (n *Nemesis) mend(ctx context.Context, node int, said []testcluster.Status, leader int) {
	d := &n.disks
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.touched[node]
	if leader < 0 || t == nil {
		return
	}
	now, name := said[node], n.cluster.Nodes[node].Member()
	voter, former := false, false
	for _, s := range said[leader].Servers {
		voter = voter || s.ID == now.ID && s.Voter && s.Name == name
		former = former || s.ID == t.former && s.ID != now.ID
	}
	if voter && t.goal == 0 {
		t.goal = said[leader].Commit
	}
	switch {
	case former && t.old != "": // the new member waits beside a dead voter
		old := t.old
		d.mu.Unlock()
		n.expel(ctx, leader, old)
		d.mu.Lock()
	case !voter && t.refusable:
		n.turnAway(node, t)
	case voter && now.Applied >= t.goal && !former:
		delete(d.touched, node)
	}
}

// turnAway empties the disk of a node that no member readmits. The caller holds the lock of
// disks.
func (n *Nemesis) turnAway(node int, t *touch) {
	if t.waited.IsZero() {
		t.waited = time.Now()
	}
	if time.Since(t.waited) < turnedAway || !n.hands[node].TryLock() {
		return
	}
	defer n.hands[node].Unlock()
	place := n.cluster.Nodes[node]
	n.say("         %s is not taken back with its disk: %s", place.Name, lastWords(place.Log))
	n.disks.away++
	t.waited, t.refusable = time.Time{}, false
	n.dies(node)
	place.Kill()
	if err := errors.Join(place.EmptyData(), place.Spawn()); err != nil {
		n.say("         %s: %v", place.Name, err)
	}
	n.alive(node)
}

// expel removes a dead member from the cluster, as an operator does with `bivouac operator
// remove`.
func (n *Nemesis) expel(ctx context.Context, leader int, member string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := n.cluster.Command(ctx, "operator", "remove", member, "--yes",
		"--config", n.cluster.Nodes[leader].File(), "--api-key-file", n.cluster.KeyFile)
	if err != nil {
		out = err.Error()
	}
	n.say("         operator remove %s: %s", member, strings.TrimSpace(out))
}

// whole returns nil if no disk is touched.
func (d *disks) whole() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []string
	for i, t := range d.touched {
		list = append(list, fmt.Sprintf("node %d after %s (member before: %s)", i+1, t.kind, t.former))
	}
	if len(list) == 0 {
		return nil
	}
	slices.Sort(list)
	return fmt.Errorf("not yet voters again: %s", strings.Join(list, "; "))
}

//go:build linux

package nemesis

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind is one way to disturb the cluster.
type Kind string

// The kinds. "Leader" is whoever leads when the fault begins.
const (
	KillLeader     Kind = "kill-leader"     // kill -9, started again at the end
	KillNode       Kind = "kill-node"       // the same, any node
	KillAll        Kind = "kill-all"        // every node at once
	PauseLeader    Kind = "pause-leader"    // SIGSTOP, SIGCONT at the end
	PauseNode      Kind = "pause-node"      // the same, any node
	RollingRestart Kind = "rolling-restart" // SIGTERM, start, one after the other
	IsolateLeader  Kind = "isolate-leader"  // the leader and the others do not hear each other
	Minority       Kind = "minority"        // the same with the smaller half, leader or not
	DeafNode       Kind = "deaf-node"       // one node hears no other, and is heard
	MuteNode       Kind = "mute-node"       // one node is not heard, and hears
	Bridge         Kind = "bridge"          // two halves that only one node joins
	Slow           Kind = "slow"            // packets between nodes are delayed
	Lossy          Kind = "lossy"           // packets between nodes are lost
	ClockJump      Kind = "clock-jump"      // one wall clock jumps, and back at the end
	ClockElection  Kind = "clock-election"  // the leader is killed, and the clocks of those that elect jump
	Bounce         Kind = "bounce"          // kill -9, and started again at once, some times over
	Late           Kind = "late-messages"   // Raft's messages come late, twice, and behind others
	LateSnapshot   Kind = "late-snapshot"   // a node that is behind gets a snapshot, and the same one again, later
	EmptyDisk      Kind = "empty-disk"      // a minority's disk is emptied
	OldDisk        Kind = "old-disk"        // a minority's disk is replaced by a copy, older or moved
	RolledBack     Kind = "rolled-back"     // the same, in the same files, while the others run
	CloneDisk      Kind = "clone-disk"      // a copy of a disk is run beside the original, under its name
	SameName       Kind = "same-name"       // a new machine takes a member's name
	NewName        Kind = "new-name"        // a new machine takes a member's place, under a new name
)

// class groups what can't be done twice at the same time.
type class int

const (
	processes class = iota
	cuts
	packets
	messages
	clocks
)

// kindClasses is the list of all kinds, with what each of them needs for itself.
var kindClasses = map[Kind][]class{
	KillLeader: {processes}, KillNode: {processes}, KillAll: {processes}, PauseLeader: {processes}, PauseNode: {processes},
	RollingRestart: {processes}, Bounce: {processes},
	IsolateLeader: {cuts}, Minority: {cuts}, DeafNode: {cuts}, MuteNode: {cuts}, Bridge: {cuts},
	Slow: {packets}, Lossy: {packets}, Late: {messages}, LateSnapshot: {processes, messages}, ClockJump: {clocks}, ClockElection: {processes, clocks},
	EmptyDisk: {processes}, SameName: {processes}, NewName: {processes},
	// That a disk went back, or runs twice, nobody can say who can't be reached.
	OldDisk: {processes, cuts, packets}, RolledBack: {processes, cuts, packets}, CloneDisk: {processes, cuts, packets},
}

// Kinds lists all kinds, in order.
func Kinds() []Kind {
	var all []Kind
	for k := range kindClasses {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}

// Fault is one entry of the schedule.
type Fault struct {
	Kind Kind
	// After is when in its round it begins.
	After time.Duration
	// Chance seeds what else it has to choose: which node, how far, how much.
	Chance uint64
}

// Round is some faults at once, held, and then a calm.
type Round struct {
	Faults     []Fault
	Hold, Calm time.Duration
	// Ready says to wait, within bounds, until all nodes serve before the next
	// round; else that hits a cluster that has not recovered.
	Ready bool
}

// String is the round as the log shows it.
func (r Round) String() string {
	var names []string
	for _, f := range r.Faults {
		names = append(names, string(f.Kind))
	}
	return fmt.Sprintf("%s for %s", strings.Join(names, " + "), r.Hold)
}

// Schedule deals faults. The same seed and kinds give the same rounds, and
// every kind comes once before any comes again.
type Schedule struct {
	seed  uint64
	rand  *rand.Rand
	kinds []Kind
	deck  []Kind
}

// NewSchedule makes a schedule of those kinds, all where none are named.
func NewSchedule(seed uint64, kinds ...Kind) *Schedule {
	if len(kinds) == 0 {
		kinds = Kinds()
	}
	return &Schedule{seed: seed, rand: rand.New(rand.NewPCG(seed, 0x6e656d65736973)), kinds: kinds}
}

// Seed is what the schedule was made from.
func (s *Schedule) Seed() uint64 { return s.seed }

// Next gives the next round.
func (s *Schedule) Next() Round {
	r := Round{
		Hold:  s.between(800*time.Millisecond, 3500*time.Millisecond),
		Calm:  s.between(100*time.Millisecond, time.Second),
		Ready: s.rand.IntN(4) > 0,
	}
	taken := map[class]bool{}
	for range 1 + s.rand.IntN(3) {
		kind, there := s.deal(taken)
		if !there {
			break
		}
		for _, c := range kindClasses[kind] {
			taken[c] = true
		}
		r.Faults = append(r.Faults, Fault{Kind: kind, After: s.between(0, 400*time.Millisecond), Chance: s.rand.Uint64()})
	}
	slices.SortFunc(r.Faults, func(a, b Fault) int { return int(a.After - b.After) })
	return r
}

// deal takes the next kind whose classes are free from the deck.
func (s *Schedule) deal(taken map[class]bool) (Kind, bool) {
	if len(s.deck) == 0 {
		s.deck = slices.Clone(s.kinds)
		s.rand.Shuffle(len(s.deck), func(i, j int) { s.deck[i], s.deck[j] = s.deck[j], s.deck[i] })
	}
	for i, k := range s.deck {
		if !slices.ContainsFunc(kindClasses[k], func(c class) bool { return taken[c] }) {
			s.deck = slices.Delete(s.deck, i, i+1)
			return k, true
		}
	}
	return "", false
}

func (s *Schedule) between(low, high time.Duration) time.Duration {
	return (low + time.Duration(s.rand.Int64N(int64(high-low)))).Round(time.Millisecond)
}

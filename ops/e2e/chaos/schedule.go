//go:build linux

package chaos

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind is a kind of fault.
type Kind string

// The kinds. "Leader" is the node that leads when the fault begins.
const (
	KillLeader     Kind = "kill-leader"     // SIGKILL, started again at the end
	KillNode       Kind = "kill-node"       // the same, any node
	KillAll        Kind = "kill-all"        // every node at once
	PauseLeader    Kind = "pause-leader"    // SIGSTOP, SIGCONT at the end
	PauseNode      Kind = "pause-node"      // the same, any node
	RollingRestart Kind = "rolling-restart" // SIGTERM and start, one after the other
	IsolateLeader  Kind = "isolate-leader"  // cut between the leader and the others
	Minority       Kind = "minority"        // the same for a minority, leader or not
	DeafNode       Kind = "deaf-node"       // one node sends but does not receive
	MuteNode       Kind = "mute-node"       // one node receives but does not send
	Bridge         Kind = "bridge"          // two halves that share only one node
	Slow           Kind = "slow"            // packets between nodes are delayed
	Lossy          Kind = "lossy"           // packets between nodes are lost
	ClockJump      Kind = "clock-jump"      // one wall clock jumps, and back at the end
	ClockElection  Kind = "clock-election"  // the leader is killed, the electors' clocks jump
	Bounce         Kind = "bounce"          // SIGKILL and an immediate start, several times
	Late           Kind = "late-messages"   // Raft's messages late, twice, and reordered
	LateSnapshot   Kind = "late-snapshot"   // a lagging node gets a snapshot twice
	EmptyDisk      Kind = "empty-disk"      // the disk of a minority's node is emptied
	OldDisk        Kind = "old-disk"        // such a disk is replaced by a copy, older or moved
	RolledBack     Kind = "rolled-back"     // the same, in the same files, while the others run
	CloneDisk      Kind = "clone-disk"      // a copy runs beside the original
	SameName       Kind = "same-name"       // a new machine takes a member's name
	NewName        Kind = "new-name"        // a new machine replaces a member under a new name
	Forged         Kind = "forged"          // strangers send all the time, in its rounds a flood
	KillTwo        Kind = "kill-two"        // the leader and another node
	KillNomad      Kind = "kill-nomad"      // SIGKILL of Nomad, started again at the end
	KillVault      Kind = "kill-vault"      // the same of Vault
	SealVault      Kind = "seal-vault"      // Vault is sealed, unsealed at the end
	RevokeTokens   Kind = "revoke-tokens"   // the tasks' Vault tokens are revoked
	FreezeClient   Kind = "freeze-client"   // Nomad's client and its sandboxes stop, and go on
	CollectNomad   Kind = "nomad-gc"        // nomad system gc
)

// class groups faults that can't run at the same time.
type class int

const (
	processes class = iota
	cuts
	packets
	messages
	clocks
	stack
	strangers
)

// stackClasses are the kinds that kindClasses does not have and that need Nomad or Vault.
var stackClasses = map[Kind][]class{
	KillTwo: {
		processes,
	}, KillNomad: {
		stack,
	}, KillVault: {stack}, SealVault: {stack}, RevokeTokens: {stack}, FreezeClient: {stack}, CollectNomad: {stack},
}

// kindClasses lists the kinds of faults of nodes, their disks and their network with the classes
// that each needs exclusively.
var kindClasses = map[Kind][]class{
	KillLeader: {processes}, KillNode: {processes}, KillAll: {processes}, PauseLeader: {processes}, PauseNode: {processes},
	RollingRestart: {processes}, Bounce: {processes},
	IsolateLeader: {cuts}, Minority: {cuts}, DeafNode: {cuts}, MuteNode: {cuts}, Bridge: {cuts},
	Slow: {
		packets,
	}, Lossy: {
		packets,
	}, Late: {messages}, LateSnapshot: {processes, messages}, ClockJump: {clocks}, ClockElection: {processes, clocks},
	Forged: {strangers}, EmptyDisk: {processes}, SameName: {processes}, NewName: {processes},
	// A member that can't be reached can't object to a disk that went back or runs twice.
	OldDisk: {processes, cuts, packets}, RolledBack: {processes, cuts, packets}, CloneDisk: {processes, cuts, packets},
}

// Kinds lists the kinds of faults of nodes, their disks and their network, in order.
func Kinds() []Kind { return slices.Sorted(maps.Keys(kindClasses)) }

// StackKinds lists the kinds of faults on the whole stack, in order. They need no Network.
func StackKinds() []Kind {
	return slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(stackClasses)), KillLeader, KillNode, KillAll,
		PauseLeader, PauseNode)))
}

// classesOf returns the classes of a kind.
func classesOf(k Kind) []class { return append(kindClasses[k], stackClasses[k]...) }

// Fault is one entry of the schedule.
type Fault struct {
	Kind Kind
	// After is the fault's start, relative to its round's.
	After time.Duration
	// Chance seeds the fault's other choices: which node, how far, how much.
	Chance uint64
}

// Round is a set of concurrent faults, their duration, and a pause.
type Round struct {
	Faults     []Fault
	Hold, Calm time.Duration
	// Ready: wait until all nodes serve before the next round, within bounds with a Network, and
	// else until they do. Otherwise that round hits a cluster that has not recovered.
	Ready bool
}

// String returns the round as it is logged.
func (r Round) String() string {
	var names []string
	for _, f := range r.Faults {
		names = append(names, string(f.Kind))
	}
	return fmt.Sprintf("%s for %s", strings.Join(names, " + "), r.Hold)
}

// Schedule generates rounds. The same seed and kinds give the same rounds, and every kind comes
// once before any comes again.
type Schedule struct {
	seed  uint64
	rand  *rand.Rand
	kinds []Kind
	deck  []Kind
}

// NewSchedule makes a schedule of those kinds, of Kinds if none are named.
func NewSchedule(seed uint64, kinds ...Kind) *Schedule {
	if len(kinds) == 0 {
		kinds = Kinds()
	}
	return &Schedule{seed: seed, rand: rand.New(rand.NewPCG(seed, 0x6e656d65736973)), kinds: kinds}
}

// Has reports whether a kind is among the schedule's.
func (s *Schedule) Has(k Kind) bool { return slices.Contains(s.kinds, k) }

// Seed returns the schedule's seed.
func (s *Schedule) Seed() uint64 { return s.seed }

// Next returns the next round.
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
		for _, c := range classesOf(kind) {
			taken[c] = true
		}
		r.Faults = append(r.Faults, Fault{Kind: kind, After: s.between(0, 400*time.Millisecond), Chance: s.rand.Uint64()})
	}
	slices.SortFunc(r.Faults, func(a, b Fault) int { return int(a.After - b.After) })
	return r
}

// deal removes the next kind with free classes from the deck.
func (s *Schedule) deal(taken map[class]bool) (Kind, bool) {
	if len(s.deck) == 0 {
		s.deck = slices.Clone(s.kinds)
		s.rand.Shuffle(len(s.deck), func(i, j int) { s.deck[i], s.deck[j] = s.deck[j], s.deck[i] })
	}
	for i, k := range s.deck {
		if !slices.ContainsFunc(classesOf(k), func(c class) bool { return taken[c] }) {
			s.deck = slices.Delete(s.deck, i, i+1)
			return k, true
		}
	}
	return "", false
}

func (s *Schedule) between(low, high time.Duration) time.Duration {
	return (low + time.Duration(s.rand.Int64N(int64(high-low)))).Round(time.Millisecond)
}

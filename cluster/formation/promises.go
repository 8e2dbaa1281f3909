package formation

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/raftstore"
)

// Limit bounds the nodes without state that a node remembers.
const Limit = 64

// Promises is what a node without state knows about the first start. The writer of a configuration
// needs the promise of every node in it, its own included, and a node gives its promise, on disk, to
// one node at a time.
type Promises struct {
	stable raft.StableStore

	mu sync.Mutex
	// promised is stored in stable before any answer contains it. granted counts its changes, so that
	// an answer from before a change is recognized as old.
	promised string
	granted  int
	// discovered holds the fresh nodes by address.
	discovered map[string]Node
}

// Open reads the promise from a stable store.
func Open(stable raft.StableStore) (*Promises, error) {
	b := &Promises{stable: stable, discovered: map[string]Node{}}
	var err error
	if b.promised, err = raftstore.Get(stable, raftstore.KeyPromise); err != nil {
		return nil, fmt.Errorf("reading promise: %w", err)
	}
	return b, nil
}

// promise stores the node that this one may form a cluster with, "" for none. The caller holds mu.
func (b *Promises) promise(id string) error {
	if b.promised == id {
		return nil
	}
	if err := raftstore.Set(b.stable, raftstore.KeyPromise, id); err != nil {
		return fmt.Errorf("storing promise: %w", err)
	}
	b.promised = id
	b.granted++
	return nil
}

// To returns the id of the node that this one may form a cluster with, "" for none, and a count of its
// changes.
func (b *Promises) To() (id string, granted int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.promised, b.granted
}

// Grant promises to form a cluster with a node, or returns the reason why not. It asks fresh, whether
// this node has no state, while no other promise can be made.
func (b *Promises) Grant(id string, fresh func() bool) (refused string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !fresh():
		return "this node has state", nil
	case b.promised != "" && b.promised != id:
		return "promised to " + b.promised, nil
	}
	return "", b.promise(id)
}

// Begin promises this node, self, to itself, and returns the count of changes.
func (b *Promises) Begin(self string) (granted int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.promised != "" && b.promised != self {
		return 0, fmt.Errorf("promised to %s", b.promised)
	}
	err = b.promise(self)
	return b.granted, err
}

// Write runs fn, which writes the first configuration, if the promise to self has not changed since
// Begin.
func (b *Promises) Write(self string, granted int, fn func() error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.promised != self || b.granted != granted {
		return errors.New("the promise changed meanwhile")
	}
	return fn()
}

// Meet records nodes without state but this one.
func (b *Promises) Meet(self string, nodes ...Node) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range nodes {
		if m.ID != self && len(b.discovered) < Limit {
			b.discovered[m.Address] = m
		}
	}
}

// Forget drops the node at an address.
func (b *Promises) Forget(address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.discovered, address)
}

// Known are the nodes without state that were met.
func (b *Promises) Known() []Node {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.discovered))
}

// Release withdraws a promise when that is safe. granted is the count from before the peers were asked.
func (b *Promises) Release(self string, granted int, step Step, peers []Peer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.promised == self && step.Kind != Bootstrap {
		return b.promise("") // it binds only this node
	}
	if b.promised == "" || b.promised == self || b.granted != granted {
		return nil
	}
	for _, p := range peers {
		// The promised node answered after the promise that it does not form a cluster; it would have to
		// ask again. Or it lost its disk, and the promise with it.
		abandoned := p.ID == b.promised && p.Fresh && p.Promised != b.promised
		reborn := p.ID != b.promised && p.Name == peernet.NodeName(raft.ServerID(b.promised))
		if abandoned || reborn {
			return b.promise("")
		}
	}
	return nil
}

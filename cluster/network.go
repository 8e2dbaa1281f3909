package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

const (
	// MaxReadTimeout is the upper bound of Config.ReadTimeout. A caller of View with a longer deadline
	// needs no timer of its own.
	MaxReadTimeout time.Duration = peernet.MaxCallTimeout

	// A peer call holds any command, and a result, which repeats what its command holds, with
	// room for its frame. This does not compile if it does not.
	_ = uint(peernet.MaxCallBytes - fsm.MaxCommandBytes - 1<<20)
)

// Network connects a node with its peers: a peernet.Port, or clustertest's network in memory.
type Network interface {
	// Addr is the address by which peers reach this node.
	Addr() string
	// Transport returns Raft's transport. Run calls it once. addresses overrides the addresses of
	// Raft's configuration.
	Transport(addresses raft.ServerAddressProvider, logger hclog.Logger) raft.Transport
	// Call sends one peer call and returns its response; see peernet.Client.Call.
	Call(ctx context.Context, address, name string, request []byte) ([]byte, error)
	// Serve answers peers' calls with handle until ctx ends or Close. It returns when no handler runs.
	Serve(ctx context.Context, handle peernet.Handler) error
	// Close releases the listener and every connection. Run calls it last.
	Close() error
}

// portOptions say where the node's peer port listens.
func portOptions(cfg Config) peernet.Options {
	return peernet.Options{
		Address:   cfg.PeerAddress,
		Listener:  cfg.Listener,
		Advertise: cfg.AdvertiseAddress,
		Logger:    cfg.Logger,
	}
}

// directed refuses a call for another member, or from a member whose name is not the certificate's.
func (n *Node) directed(ctx context.Context, name string) error {
	from, to := peernet.Parties(ctx)
	switch {
	case to != "" && to != string(n.id):
		return fmt.Errorf("%w: this is %s, not %s", peernet.ErrMisdirected, n.id, to)
	case from != "" && peernet.NodeName(raft.ServerID(from)) != name:
		return fmt.Errorf("%w: node %q can't call as %s", peernet.ErrMisdirected, name, from)
	}
	return nil
}

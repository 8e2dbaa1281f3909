package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// Network is how a node reaches its peers. New makes the real one, a TLS
// listener; clustertest has one in memory, with faults.
type Network interface {
	// Addr is the address by which peers reach this node.
	Addr() string
	// Transport gives Raft's transport. Run calls it once; addresses overrides
	// what Raft's configuration says of where a peer is.
	Transport(addresses raft.ServerAddressProvider, logger hclog.Logger) raft.Transport
	// Call sends one peer call and returns its answer. An address that names a member
	// (see SplitAddress) is for that one alone. An error that wraps
	// errNotSent (see NotSent) promises that the peer never saw the call.
	Call(ctx context.Context, address, name string, request []byte) ([]byte, error)
	// Serve answers peers' calls with handle until ctx ends or Close, and
	// returns when no handler runs any more.
	Serve(ctx context.Context, handle Handler) error
	// Close releases the listener and every connection. Run calls it last.
	Close() error
}

// Handler answers one peer call. from is the name of the calling node, as its
// certificate has it. Failures that the caller must tell apart are part of the
// answer; an error means the call made no sense.
type Handler func(ctx context.Context, from, name string, request []byte) ([]byte, error)

const (
	// maxCallBytes bounds requests and answers of peer calls: a command or a
	// result, with room for its frame.
	maxCallBytes = 4 << 20
	// maxCallTimeout bounds every peer call on both ends.
	maxCallTimeout = 30 * time.Second
	// MaxReadTimeout is the most that Config.ReadTimeout may be; a caller of View
	// who allows as much needs no deadline of its own.
	MaxReadTimeout = maxCallTimeout
)

var errNotSent = errors.New("peer not reached")

// NotSent wraps err to say that a call never left this node, so that its
// outcome is known: nothing happened.
func NotSent(err error) error { return &notSentError{err} }

type notSentError struct{ err error }

func (e *notSentError) Error() string        { return errNotSent.Error() + ": " + e.err.Error() }
func (e *notSentError) Unwrap() error        { return e.err }
func (e *notSentError) Is(target error) bool { return target == errNotSent }

// Package peernet connects the nodes of a cluster: one TCP port of each node, with TLS and
// certificates on both ends, carries Raft's connections and peer calls over HTTP/2. ALPN
// tells the two apart.
//
// The package knows certificates, connections and messages. It does not know what a call
// means or who is a member: package cluster hands in a Handler and a Host.
package peernet

import (
	"context"
	"errors"
	"time"
)

// Handler answers one peer call. from is the calling node's name, as its certificate has it.
// A failure that the caller must tell apart is part of the response; an error means that the
// call made no sense. Port.Serve calls it, from many goroutines.
type Handler func(ctx context.Context, from, name string, request []byte) ([]byte, error)

// The calls whose messages are short JSON and come with every linearizable read. Their
// messages travel in a header: see messageHeader.
const (
	CallIndex = "index"
	CallTerm  = "term"
)

const (
	// MaxCallBytes bounds requests and responses of peer calls, in bytes: a command or a
	// result, which repeats what its command holds, with room for its frame.
	MaxCallBytes = 7<<20 + 256<<10
	// MaxCallTimeout bounds every peer call on both ends.
	MaxCallTimeout = 30 * time.Second
)

// ErrNotSent marks an error of a call that the peer never saw, so its outcome is known:
// nothing happened. Test with errors.Is.
var ErrNotSent = errors.New("peer not reached")

// NotSent wraps err so that it is ErrNotSent.
func NotSent(err error) error { return &notSentError{err} }

type notSentError struct{ err error }

func (e *notSentError) Error() string        { return ErrNotSent.Error() + ": " + e.err.Error() }
func (e *notSentError) Unwrap() error        { return e.err }
func (e *notSentError) Is(target error) bool { return target == ErrNotSent }

package senders

import (
	"context"

	"github.com/hashicorp/raft"
)

// Node is the node whose Raft gets the messages.
type Node interface {
	// AskVoted asks the member at an address for its Voted.
	AskVoted(ctx context.Context, address string) (Voted, error)
	// CurrentAddress is the newest known address of a member, "" for none.
	CurrentAddress(s raft.Server) string
	// PromisedTo reports whether the node promised to form a cluster with another.
	PromisedTo(id raft.ServerID) bool
	// Stopping ends when the node begins to stop.
	Stopping() context.Context
}

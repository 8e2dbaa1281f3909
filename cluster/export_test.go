package cluster

import (
	"context"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/eventstore"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

// PortOf returns the peer port of a node on real sockets.
func PortOf(n *Node) *peernet.Port { return n.network.(*peernet.Port) }

// Learned returns how many nodes' addresses and starts the node keeps.
func Learned(n *Node) (addresses, starts int) {
	n.addresses.mu.Lock()
	addresses = len(n.addresses.known)
	n.addresses.mu.Unlock()
	n.identity.mu.Lock()
	defer n.identity.mu.Unlock()
	return addresses, len(n.identity.starts)
}

// Hang makes the writes of a node's log wait for a send on the channel while it is not nil. Call it
// before Run.
func Hang(n *Node, hung func() <-chan struct{}) {
	logs := n.storage.Logs
	n.storage.Logs = hangingLogs{logs, func(write func() error) error {
		return n.storage.Watchdog().Do("writing the log", func() error {
			if wait := hung(); wait != nil {
				<-wait
			}
			return write()
		})
	}}
}

type hangingLogs struct {
	raft.LogStore
	do func(write func() error) error
}

func (h hangingLogs) StoreLog(l *raft.Log) error { return h.StoreLogs([]*raft.Log{l}) }

func (h hangingLogs) StoreLogs(logs []*raft.Log) error {
	return h.do(func() error { return h.LogStore.StoreLogs(logs) })
}

func (h hangingLogs) IsMonotonic() bool {
	m, ok := h.LogStore.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

// StoredEvents returns the ids of a conversation's events in the order of this node's own store, and
// whether they are the chain of its state.
func StoredEvents(n *Node, userID, conversationID string) (ids []string, whole bool) {
	_ = n.raftFSM.Together(func(v *fsm.View) error {
		chain, s := v.EventChain(userID, conversationID), n.events.present()
		if chain == nil || s == nil {
			whole = chain == nil
			return nil
		}
		at := chain.Key.Begin()
		err := s.Events(chain.Key, 0, false, func(position uint64, stored []byte) bool {
			if position != at.Number {
				return false
			}
			at = at.Next(stored)
			ids = append(ids, string(fsm.EventID(stored)))
			return true
		})
		head, headErr := s.Head(chain.Key)
		whole = err == nil && headErr == nil && head != nil && at == *chain && head.EventChain == *chain
		return nil
	})
	return ids, whole
}

// CompareEvents compares the chains of a node with its state, and fetches.
func CompareEvents(ctx context.Context, n *Node) error {
	n.events.filling.Lock()
	defer n.events.filling.Unlock()
	return (&filler{node: n, store: n.events.present()}).look(ctx)
}

// PutEvents stores events at a node as if they had been fetched.
func PutEvents(n *Node, userID, conversationID string, at uint64, events [][]byte) error {
	chain := n.store.View().EventChain(userID, conversationID)
	return n.events.present().Put(
		eventstore.Head{UserID: userID, ConversationID: conversationID, EventChain: *chain}, at, events)
}

// EventsOpen reports whether a node has opened its store of events.
func EventsOpen(n *Node) bool { return n.events.present() != nil }

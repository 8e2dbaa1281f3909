package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/formation"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/raftfix"
	"bivouac.dev/bivouac/cluster/raftmetrics"
	"bivouac.dev/bivouac/cluster/replication"
	"bivouac.dev/bivouac/cluster/senders"
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

// newTransport decorates the network's transport with commit hints and with the fixes of raftfix.
// Outgoing messages pass it top down. Incoming messages pass it bottom up, the inbox last.
func (n *Node) newTransport(logger hclog.Logger) *raftfix.Inbox {
	inner := n.network.Transport(&n.addresses, logger)
	port, real := inner.(*peernet.Transport)
	if real {
		inner = &diskTransport{port, n}
	}
	f := replication.New(
		&raftfix.Answers{
			Transport: &raftfix.Pipelines{Transport: inner}, Wrong: n.onWrongMember,
			Absurd: func(raft.ServerID, uint64) { n.metrics.RefusedMessages.WithLabelValues(raftmetrics.RefusedTerm).Inc() },
		},
	)
	f.Resend, f.Matched = n.resend, n.records.Match
	if real {
		port.Receive(f.Take)
	}
	n.hints.Store(f)
	n.inbox = raftfix.NewInbox(f, n.id, n.storage.Logs, n.failWith)
	n.inbox.Admit = n.senders.Admit
	return n.inbox
}

// diskTransport sends no entries or heartbeats while this node's disk does not answer, so that the
// others elect a leader whose disk does. Raft's heartbeat goroutine itself never waits for the
// disk.
type diskTransport struct {
	*peernet.Transport
	node *Node
}

// EncodePeer implements raft.Transport. The address of a message's header has the sender's id too:
// Raft stores that of the candidate with a vote. Raft itself decodes it to the place alone.
func (t *diskTransport) EncodePeer(id raft.ServerID, address raft.ServerAddress) []byte {
	if place := t.node.addresses.lookup(id); place != "" {
		address = raft.ServerAddress(place)
	}
	if id == "" || !t.node.store.View().Active(fsm.VersionHistory) { // programs before it don't decode it
		return []byte(address)
	}
	return []byte(peernet.AddressFor(id, string(address)))
}

// DecodePeer implements raft.Transport.
func (t *diskTransport) DecodePeer(raw []byte) raft.ServerAddress {
	_, hostPort := peernet.SplitAddress(string(raw))
	return raft.ServerAddress(hostPort)
}

// AppendEntries implements raft.Transport.
func (t *diskTransport) AppendEntries(
	id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse,
) error {
	if err := t.node.storage.Watchdog().Trouble(); err != nil {
		return err
	}
	return t.Transport.AppendEntries(id, target, args, resp)
}

// newJudge makes the judge of who sends Raft's messages.
func (n *Node) newJudge() (*senders.Judge, error) {
	own := n.network.Addr()
	return senders.New(senders.Options{
		Node: senderHost{n}, ID: n.id, DataDir: n.cfg.DataDir, Stable: n.storage.Stable, Logger: n.logger,
		Join:    slices.DeleteFunc(slices.Clone(n.cfg.RetryJoin), func(a string) bool { return a == own }),
		Lease:   n.cfg.LeaderLeaseTimeout,
		Decode:  func(raw []byte) raft.ServerAddress { return n.inbox.DecodePeer(raw) },
		Active:  func() bool { return n.store.View().Active(fsm.VersionPeers) },
		Refused: func(reason string) { n.metrics.RefusedMessages.WithLabelValues(reason).Inc() },
	})
}

// senderHost is the node as its judge sees it. It implements senders.Node.
type senderHost struct{ *Node }

// AskVoted implements senders.Node.
func (n senderHost) AskVoted(ctx context.Context, address string) (v senders.Voted, err error) {
	err = n.ask(ctx, address, callVoted, struct{}{}, &v)
	return v, err
}

// CurrentAddress implements senders.Node.
func (n senderHost) CurrentAddress(s raft.Server) string { return n.currentAddress(s) }

// PromisedTo implements senders.Node.
func (n senderHost) PromisedTo(id raft.ServerID) bool { return n.promisedTo(id) }

// Stopping implements senders.Node.
func (n senderHost) Stopping() context.Context { return n.stopping }

// stopTransport undoes newTransport. Raft must have ended, if it started.
func (n *Node) stopTransport() {
	if n.inbox == nil {
		return
	}
	n.inbox.Stop()
	n.senders.Wait()
	n.hints.Load().Stop()
}

// hintCommit passes on the commit index of a leader's answer.
func (n *Node) hintCommit(l *leadership, index, term uint64) {
	h := n.hints.Load()
	if h == nil || term == 0 || n.store.Index() >= index {
		return
	}
	h.HintCommitted(l.id, raft.ServerAddress(l.address), index, term)
}

// announceCommits tells followers what this node has applied, while it leads.
func (n *Node) announceCommits(ctx context.Context, r *raft.Raft) {
	for index := uint64(0); n.store.Wait(ctx, index+1) == nil; {
		index = n.store.Index()
		// A message of a term that has ended meanwhile is refused.
		if term := r.CurrentTerm(); r.State() == raft.Leader {
			n.hints.Load().Announce(index, term)
		}
	}
}

// resend reports whether this node leads in the term and the peer is a member at that address.
func (n *Node) resend(id raft.ServerID, target raft.ServerAddress, term uint64) bool {
	r := n.raft.Load()
	if r == nil || r.State() != raft.Leader || r.CurrentTerm() != term {
		return false
	}
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.ID == id {
			return s.Address == target
		}
	}
	return false
}

// successorTimeout bounds the search for a leader's successor.
const successorTimeout = 250 * time.Millisecond

// successors returns the voters that answer and may lead: those that have all events first, of them the
// most advanced, and how many of them have all.
func (n *Node) successors(ctx context.Context, r *raft.Raft) (peers []raft.Server, whole int) {
	ctx, cancel := context.WithTimeout(ctx, successorTimeout)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	applied, lacks := map[raft.ServerID]uint64{}, map[raft.ServerID]int{}
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.ID == n.id || s.Suffrage != raft.Voter {
			continue
		}
		wg.Go(func() {
			if hello, err := n.hello(ctx, n.currentAddress(s)); err == nil && hello.Member.ID == string(s.ID) && !hello.Unfit {
				mu.Lock()
				defer mu.Unlock()
				peers, applied[s.ID] = append(peers, s), hello.Applied
				if hello.EventsMissing != 0 {
					lacks[s.ID] = 1
				}
			}
		})
	}
	wg.Wait()
	slices.SortFunc(peers, func(a, b raft.Server) int {
		return cmp.Or(
			cmp.Compare(lacks[a.ID], lacks[b.ID]), cmp.Compare(applied[b.ID], applied[a.ID]), cmp.Compare(a.ID, b.ID),
		)
	})
	return peers, len(peers) - len(lacks)
}

// beginTransfer begins a leadership transfer to one of the peers.
func (n *Node) beginTransfer(r *raft.Raft, peers []raft.Server) (raft.Future, error) {
	future, err := n.transfers.To(r, peers)
	if err != nil {
		return nil, fsm.Errorf(
			fsm.CodeConflict,
			"leadership was not handed over: %v; try again in another term, or stop this node", err,
		)
	}
	return future, nil
}

// transferToAny transfers leadership to the most advanced voter that answers and was not asked in
// this term. The error may be raftfix.ErrTransferSpent.
func (n *Node) transferToAny(ctx context.Context, r *raft.Raft) error {
	peers, _ := n.successors(ctx, r)
	future, err := n.transfers.To(r, peers)
	if err != nil {
		return err
	}
	return n.await(ctx, future)
}

// failWith stops the node because its Raft must be restarted.
func (n *Node) failWith(err error) {
	select {
	case n.broken <- err:
	default: // the node is ending already
	}
}

// countWrongMembers returns the callback for members that answer for others, in Raft's messages
// (raftfix.Answers) or at a connection's handshake. It logs each pair once: a member that is gone
// is asked several times a second.
func (n *Node) countWrongMembers() func(
	asked raft.ServerID, target raft.ServerAddress, answered raft.ServerID,
) {
	type pair struct{ asked, answered raft.ServerID }
	var mu sync.Mutex
	logged := map[pair]bool{}
	return func(asked raft.ServerID, target raft.ServerAddress, answered raft.ServerID) {
		n.metrics.WrongAnswers.Inc()
		mu.Lock()
		first := !logged[pair{asked, answered}] && len(logged) < formation.Limit
		if first {
			logged[pair{asked, answered}] = true
		}
		mu.Unlock()
		if first {
			n.logger.Warn("cluster: another member answers than was asked; its answers are ignored",
				"peer", string(asked), "address", string(target), "error", "answered by "+string(answered))
		}
	}
}

package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/formation"
	"bivouac.dev/bivouac/cluster/membership"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/records"
	"bivouac.dev/bivouac/fsm"
)

// The first start. Nodes without state say hello to each other. When BootstrapExpect of them have
// found each other, the one whose name sorts first writes the first configuration, with all of
// them as voters; the others receive it from Raft. Promises make sure that exactly one cluster
// forms: the writer needs the promise of every node in the configuration, its own included, and a
// node gives its promise, on disk, to one node at a time. A node that finds an existing cluster
// joins it instead. A list of members in each file would be shorter and less safe: two files that
// differ make two clusters, and an emptied disk votes as before (ops/decisions/0025).

const (
	// bootstrapRetryMin and bootstrapRetryMax bound the pause between attempts to bootstrap or join.
	bootstrapRetryMin = 100 * time.Millisecond
	bootstrapRetryMax = time.Second
	// settledInterval is how often a member checks that it still is one.
	settledInterval = 2 * time.Second
)

// helloRequest introduces the caller.
type helloRequest struct {
	Member member `json:"member"`
	// Fresh: the node has no state and may form a cluster.
	Fresh bool `json:"fresh,omitempty"`
	// Start is the nonce of the caller's process.
	Start string `json:"start,omitempty"`
	// Report: the caller wants the node's report too.
	Report bool `json:"report,omitempty"`
}

// helloResponse is what a node reports about itself to peers.
type helloResponse struct {
	Member member `json:"member"`
	// Formed: the node has a cluster configuration.
	Formed bool `json:"formed,omitempty"`
	// Fresh: it has no state at all and expects to form a cluster.
	Fresh bool `json:"fresh,omitempty"`
	// Start is the nonce of its process. NotMember, when set, is an index as of which
	// the caller is no member.
	Start     string `json:"start,omitempty"`
	NotMember uint64 `json:"not_member,omitempty"`
	// Promised is the id of the node that may form the cluster with this one.
	Promised string `json:"promised,omitempty"`
	// Known lists the nodes without state that it has discovered.
	Known []member `json:"known,omitempty"`
	// Protocol is the newest protocol version of its program; Applied is its store's index.
	Protocol int    `json:"protocol"`
	Applied  uint64 `json:"applied"`
	State    string `json:"state"`
	// Time is its clock.
	Time time.Time `json:"time,omitzero"`
	// Commit is the commit index it knows. A leader sets Heard: milliseconds since it heard each
	// member.
	Commit uint64 `json:"commit,omitempty"`
	// EventsMissing is how many bytes of events it lacks, negative for not known yet.
	EventsMissing int64 `json:"events_missing,omitempty"`
	// EventsFull: its disk has no room for events.
	EventsFull bool `json:"events_full,omitempty"`
	// Unfit: the node must not lead.
	Unfit bool `json:"unfit,omitempty"`
	// Life is the start of its process, zero until the start check has passed.
	Life  records.Start    `json:"life,omitzero"`
	Heard map[string]int64 `json:"heard,omitempty"`
	// Report is nil unless it was asked for, and from older programs.
	Report *Report `json:"report,omitempty"`
}

// promiseRequest asks a node without state to form a cluster with the caller only.
type promiseRequest struct {
	Member member `json:"member"`
}

// promiseResponse grants the promise or gives the reason for the refusal.
type promiseResponse struct {
	Granted bool   `json:"granted"`
	Reason  string `json:"reason,omitempty"`
}

// hello calls one peer and records what it reports.
func (n *Node) hello(ctx context.Context, address string) (helloResponse, error) {
	return n.helloAsking(ctx, address, helloRequest{})
}

// helloAsking is hello with what else the caller wants to know.
func (n *Node) helloAsking(ctx context.Context, address string, request helloRequest) (helloResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	var response helloResponse
	if address == "" {
		return response, membership.ErrNoAddress
	}
	request.Member, request.Fresh, request.Start = n.self(), n.fresh(), n.identity.start
	var node string
	if err := n.ask(peernet.WithAnswerer(ctx, &node), address, callHello, request, &response); err != nil {
		return response, err
	}
	if err := n.checkCaller(node, response.Member); err != nil {
		return response, err
	}
	n.addresses.learn(response.Member)
	n.identity.heard(response.Member.ID, response.Start, n.servers())
	n.noteMembership(raft.ServerID(response.Member.ID), response.NotMember, response.Applied)
	return response, nil
}

// ask makes a peer call with a JSON request and response.
func (n *Node) ask(ctx context.Context, address, call string, request, response any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", call, err)
	}
	raw, err := n.network.Call(ctx, address, call, body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, response); err != nil {
		return fmt.Errorf("reading answer to %s: %w", call, err)
	}
	return nil
}

// fresh reports whether this node has no state and may form a cluster.
func (n *Node) fresh() bool {
	if n.cfg.BootstrapExpect == 0 || len(n.servers()) > 0 {
		return false
	}
	empty, err := n.empty()
	return err == nil && empty
}

// handleHello answers callHello.
func (n *Node) handleHello(from string, request helloRequest) (helloResponse, error) {
	if err := n.checkCaller(from, request.Member); err != nil {
		return helloResponse{}, err
	}
	n.addresses.learn(request.Member)
	response := n.ownHello(n.Status())
	response.Member, response.Fresh, response.Formed = n.self(), n.fresh(), len(n.servers()) > 0
	if request.Report {
		response.Report = n.Report()
	}
	response.Time = n.clock().UTC()
	response.Start, response.NotMember = n.identity.start, n.notMemberAsOf(request.Member.ID)
	n.identity.heard(request.Member.ID, request.Start, n.servers())
	response.Promised, _ = n.promises.To()
	if request.Fresh {
		n.promises.Meet(string(n.id), formation.Node(request.Member))
	}
	if response.Fresh {
		for _, m := range n.promises.Known() {
			response.Known = append(response.Known, member(m))
		}
	}
	return response, nil
}

// checkCaller verifies that the caller's certificate name matches the member it claims to be.
func (n *Node) checkCaller(from string, m member) error {
	if from != m.Name || peernet.NodeName(raft.ServerID(m.ID)) != m.Name || m.Address == "" {
		return fmt.Errorf("node %q can't speak as %q (%s)", from, m.Name, m.ID)
	}
	return nil
}

// handlePromise answers callPromise.
func (n *Node) handlePromise(from string, request promiseRequest) (promiseResponse, error) {
	if err := n.checkCaller(from, request.Member); err != nil {
		return promiseResponse{}, err
	}
	refused, err := n.promises.Grant(request.Member.ID, n.fresh)
	return promiseResponse{Granted: err == nil && refused == "", Reason: refused}, err
}

// promisedTo reports whether this node promised to form a cluster with another.
func (n *Node) promisedTo(id raft.ServerID) bool {
	to, _ := n.promises.To()
	return to == string(id)
}

// keepMembership bootstraps or joins a cluster, and corrects this node's address when it changes.
// It runs as long as the node.
func (n *Node) keepMembership(ctx context.Context) {
	pause := backoff.ExponentialBackOff{
		InitialInterval: bootstrapRetryMin, MaxInterval: bootstrapRetryMax, Multiplier: 2, RandomizationFactor: .5,
	}
	warned := time.Now()
	for {
		settled := n.settled()
		if !settled {
			if err := n.bootstrapOrJoin(ctx); err != nil && ctx.Err() == nil && time.Since(warned) > 5*time.Second {
				n.logger.Warn("cluster: not in a cluster yet", "error", err)
				warned = time.Now()
			}
		}
		wait := settledInterval
		if !settled {
			wait = pause.NextBackOff()
		} else {
			pause.Reset()
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// settled reports whether Raft's configuration has this node at its address and a leader is known.
func (n *Node) settled() bool {
	l, _ := n.leaders.get()
	if l.id == "" {
		return false
	}
	for _, s := range n.servers() {
		if s.ID == n.id {
			return string(s.Address) == n.network.Addr()
		}
	}
	return false
}

// bootstrapOrJoin discovers peers and takes one step.
func (n *Node) bootstrapOrJoin(ctx context.Context) error {
	_, granted := n.promises.To()
	peers := n.discoverPeers(ctx)
	step := formation.NextStep(n.situation(), peers)
	if err := n.promises.Release(string(n.id), granted, step, peers); err != nil {
		return err
	}
	switch step.Kind {
	case formation.Join:
		return n.join(ctx, step.Via)
	case formation.Bootstrap:
		return n.bootstrapWith(ctx, step.Members)
	}
	if step.Reason != "" {
		return errors.New(step.Reason)
	}
	return nil
}

func (n *Node) situation() formation.Situation {
	s := formation.Situation{Self: formation.Node(n.self()), Expect: n.cfg.BootstrapExpect, Fresh: n.fresh()}
	for _, server := range n.servers() {
		s.Configured = true
		if server.ID == n.id {
			s.Listed, s.Address = true, string(server.Address)
		}
	}
	return s
}

// discoverPeers says hello to every known address and returns the answers, ordered by id.
func (n *Node) discoverPeers(ctx context.Context) []formation.Peer {
	addresses := map[string]bool{}
	for _, a := range n.cfg.RetryJoin {
		addresses[a] = true
	}
	for _, s := range n.servers() {
		addresses[n.currentAddress(s)] = true
	}
	for _, m := range n.promises.Known() {
		addresses[m.Address] = true
	}
	delete(addresses, n.network.Addr())

	var mu sync.Mutex
	var wg sync.WaitGroup
	byID := map[string]formation.Peer{}
	for a := range addresses {
		wg.Go(func() {
			response, err := n.hello(ctx, a)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				n.promises.Forget(a)
			} else if response.Member.ID != string(n.id) {
				byID[response.Member.ID] = response.peer()
			}
		})
	}
	wg.Wait()
	var peers []formation.Peer
	for _, p := range byID {
		peers = append(peers, p)
		if p.Fresh {
			n.promises.Meet(string(n.id), append(p.Known, p.Node)...)
		}
	}
	slices.SortFunc(peers, func(a, b formation.Peer) int { return cmp.Compare(a.ID, b.ID) })
	return peers
}

// peer is the answer as the first start sees it.
func (h helloResponse) peer() formation.Peer {
	p := formation.Peer{Node: formation.Node(h.Member), Formed: h.Formed, Fresh: h.Fresh, Promised: h.Promised}
	for _, m := range h.Known {
		p.Known = append(p.Known, formation.Node(m))
	}
	return p
}

// join asks the cluster, through any of its members, to add this node.
func (n *Node) join(ctx context.Context, via []string) error {
	var errs []error
	for _, address := range via {
		ctx, cancel := context.WithTimeout(ctx, changeTimeout)
		var response changeResponse
		err := n.ask(
			ctx, address, callJoin, joinRequest{Member: n.self(), Protocol: fsm.ProtocolVersion}, &response,
		)
		cancel()
		if err == nil && response.Error == nil {
			return nil
		}
		if err == nil {
			err = response.Error
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("joining: %w", errors.Join(errs...))
}

// bootstrapWith collects the promises and writes the first configuration.
func (n *Node) bootstrapWith(ctx context.Context, members []formation.Node) error {
	granted, err := n.promises.Begin(string(n.id))
	if err != nil {
		return err
	}
	configuration := raft.Configuration{}
	for _, m := range members {
		configuration.Servers = append(
			configuration.Servers,
			raft.Server{ID: raft.ServerID(m.ID), Address: raft.ServerAddress(m.Address)},
		)
		if m.ID == string(n.id) {
			continue
		}
		callCtx, cancel := context.WithTimeout(ctx, helloTimeout)
		var response promiseResponse
		err := n.ask(
			callCtx, peernet.AddressFor(raft.ServerID(m.ID), m.Address), callPromise,
			promiseRequest{n.self()}, &response,
		)
		cancel()
		if err != nil {
			return fmt.Errorf("asking %s to form a cluster: %w", m.Name, err)
		}
		if !response.Granted {
			return fmt.Errorf("%s does not form a cluster with this node: %s", m.Name, response.Reason)
		}
	}
	return n.promises.Write(string(n.id), granted, func() error {
		n.logger.Info("cluster: forming a new cluster", "count", len(members))
		// Raft itself refuses when a vote or an entry arrived meanwhile.
		if err := n.await(ctx, n.raft.Load().BootstrapCluster(configuration)); err != nil {
			return fmt.Errorf("forming the cluster: %w", err)
		}
		return nil
	})
}

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

	"bivouac.dev/bivouac/cluster/membership"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/raftstore"
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
	// helloLimit bounds the addresses that one round asks.
	helloLimit = 64
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

// bootstrapState is what a node without state knows about the first start.
type bootstrapState struct {
	stable raft.StableStore

	mu sync.Mutex
	// promised is stored in stable before any answer contains it. granted counts its changes, so that
	// an answer from before a change is recognized as old.
	promised string
	granted  int
	// discovered holds the fresh nodes by address.
	discovered map[string]member
}

func (b *bootstrapState) init(stable raft.StableStore) (err error) {
	b.stable, b.discovered = stable, map[string]member{}
	if b.promised, err = raftstore.Get(stable, raftstore.KeyPromise); err != nil {
		return fmt.Errorf("reading promise: %w", err)
	}
	return nil
}

// promise stores the node that this one may form a cluster with, "" for none. The caller holds mu.
func (b *bootstrapState) promise(id string) error {
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
	b := &n.bootstrap
	b.mu.Lock()
	defer b.mu.Unlock()
	response.Promised = b.promised
	if request.Fresh && len(b.discovered) < helloLimit {
		b.discovered[request.Member.Address] = request.Member
	}
	if response.Fresh {
		for _, m := range b.discovered {
			response.Known = append(response.Known, m)
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
	b := &n.bootstrap
	b.mu.Lock()
	defer b.mu.Unlock()
	if !n.fresh() {
		return promiseResponse{Reason: "this node has state"}, nil
	}
	if b.promised != "" && b.promised != request.Member.ID {
		return promiseResponse{Reason: "promised to " + b.promised}, nil
	}
	if err := b.promise(request.Member.ID); err != nil {
		return promiseResponse{}, err
	}
	return promiseResponse{Granted: true}, nil
}

// promisedTo reports whether this node promised to form a cluster with another.
func (n *Node) promisedTo(id raft.ServerID) bool {
	n.bootstrap.mu.Lock()
	defer n.bootstrap.mu.Unlock()
	return n.bootstrap.promised == string(id)
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
	b := &n.bootstrap
	b.mu.Lock()
	granted := b.granted
	b.mu.Unlock()
	peers := n.discoverPeers(ctx)
	step := nextStep(n.situation(), peers)

	b.mu.Lock()
	err := b.releasePromise(string(n.id), granted, step, peers)
	b.mu.Unlock()
	if err != nil {
		return err
	}
	switch step.kind {
	case stepJoin:
		return n.join(ctx, step.via)
	case stepBootstrap:
		return n.bootstrapWith(ctx, step.members)
	}
	if step.reason != "" {
		return errors.New(step.reason)
	}
	return nil
}

// discoverPeers says hello to every known address and returns the answers, ordered by id.
func (n *Node) discoverPeers(ctx context.Context) []helloResponse {
	addresses := map[string]bool{}
	for _, a := range n.cfg.RetryJoin {
		addresses[a] = true
	}
	for _, s := range n.servers() {
		addresses[n.currentAddress(s)] = true
	}
	n.bootstrap.mu.Lock()
	for a := range n.bootstrap.discovered {
		addresses[a] = true
	}
	n.bootstrap.mu.Unlock()
	delete(addresses, n.network.Addr())

	var mu sync.Mutex
	var wg sync.WaitGroup
	byID := map[string]helloResponse{}
	for a := range addresses {
		wg.Go(func() {
			response, err := n.hello(ctx, a)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				n.bootstrap.forget(a)
			} else if response.Member.ID != string(n.id) {
				byID[response.Member.ID] = response
			}
		})
	}
	wg.Wait()
	var peers []helloResponse
	for _, p := range byID {
		peers = append(peers, p)
		n.bootstrap.addDiscovered(string(n.id), p)
	}
	slices.SortFunc(
		peers, func(a, b helloResponse) int { return cmp.Compare(a.Member.ID, b.Member.ID) },
	)
	return peers
}

// addDiscovered records a fresh peer and the fresh nodes that it knows.
func (b *bootstrapState) addDiscovered(self string, p helloResponse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range append(p.Known, p.Member) {
		if p.Fresh && m.ID != self && len(b.discovered) < helloLimit {
			b.discovered[m.Address] = m
		}
	}
}

func (b *bootstrapState) forget(address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.discovered, address)
}

// releasePromise withdraws a promise when that is safe. granted is the count from before the peers
// were asked. The caller holds mu.
func (b *bootstrapState) releasePromise(
	self string, granted int, step step, peers []helloResponse,
) error {
	if b.promised == self && step.kind != stepBootstrap {
		return b.promise("") // it binds only this node
	}
	if b.promised == "" || b.promised == self || b.granted != granted {
		return nil
	}
	for _, p := range peers {
		// The promised node answered after the promise that it does not form a cluster; it would have to
		// ask again. Or it lost its disk, and the promise with it.
		abandoned := p.Member.ID == b.promised && p.Fresh && p.Promised != b.promised
		reborn := p.Member.ID != b.promised && p.Member.Name == peernet.NodeName(raft.ServerID(b.promised))
		if abandoned || reborn {
			return b.promise("")
		}
	}
	return nil
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
func (n *Node) bootstrapWith(ctx context.Context, members []member) error {
	b := &n.bootstrap
	b.mu.Lock()
	if b.promised != "" && b.promised != string(n.id) {
		b.mu.Unlock()
		return fmt.Errorf("promised to %s", b.promised)
	}
	err := b.promise(string(n.id))
	granted := b.granted
	b.mu.Unlock()
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
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.promised != string(n.id) || b.granted != granted {
		return errors.New("the promise changed meanwhile")
	}
	n.logger.Info("cluster: forming a new cluster", "count", len(members))
	// Raft itself refuses when a vote or an entry arrived meanwhile.
	if err := n.await(ctx, n.raft.Load().BootstrapCluster(configuration)); err != nil {
		return fmt.Errorf("forming the cluster: %w", err)
	}
	return nil
}

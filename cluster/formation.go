package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/fsm"
)

// The first start. Nodes without state say hello to each other; when
// BootstrapExpect of them have met, the one whose name sorts first writes the
// first configuration, with all of them as voters, and the others learn it from
// Raft. That exactly one cluster comes of it rests on promises: the former must
// hold the promise of every node in its configuration, its own included, and a
// node gives its promise, on disk, to one node at a time. Whoever meets a node
// that is in a cluster already joins that one instead.

const (
	// formMin and formMax bound the pause between looks at the situation.
	formMin = 100 * time.Millisecond
	formMax = time.Second
	// settledInterval is how often a settled node looks whether it still is.
	settledInterval = 2 * time.Second
	// helloLimit bounds how many addresses are asked in one round.
	helloLimit = 64
)

// helloRequest introduces the caller.
type helloRequest struct {
	Member member `json:"member"`
	// Fresh: it has no state and wants to form a cluster.
	Fresh bool `json:"fresh,omitempty"`
	// Start is the nonce of the caller's process.
	Start string `json:"start,omitempty"`
}

// helloResponse tells all that peers need to know of a node.
type helloResponse struct {
	Member member `json:"member"`
	// Formed: it is in a cluster, or at least knows one.
	Formed bool `json:"formed,omitempty"`
	// Fresh: it has no state at all and expects to form a cluster.
	Fresh bool `json:"fresh,omitempty"`
	// Start is the nonce of its process. NotMember, when set, is an index as of which
	// the caller is no member.
	Start     string `json:"start,omitempty"`
	NotMember uint64 `json:"not_member,omitempty"`
	// Promised is the id of the node that may form the cluster with it.
	Promised string `json:"promised,omitempty"`
	// Known are the nodes without state that it has met.
	Known []member `json:"known,omitempty"`
	// Protocol is the newest protocol version it knows, Applied its store's
	// index.
	Protocol int    `json:"protocol"`
	Applied  uint64 `json:"applied"`
	State    string `json:"state"`
	// Time is its clock.
	Time time.Time `json:"time,omitzero"`
	// Commit is the commit index it knows of. Heard is set by a leader: how many
	// milliseconds ago it heard each member.
	Commit uint64 `json:"commit,omitempty"`
	// Unfit: it must not lead.
	Unfit bool `json:"unfit,omitempty"`
	// Life is the start of its process, zero until the members have let it pass.
	Life  start            `json:"life,omitzero"`
	Heard map[string]int64 `json:"heard,omitempty"`
}

// promiseRequest asks a node without state to wait for the caller.
type promiseRequest struct {
	Member member `json:"member"`
}

// promiseResponse grants it or says why not.
type promiseResponse struct {
	Granted bool   `json:"granted"`
	Reason  string `json:"reason,omitempty"`
}

// formation is what a node without state has gathered.
type formation struct {
	stable raft.StableStore

	mu sync.Mutex
	// promised is stored in stable before it is told to anybody; granted counts
	// its changes, so that an answer from before one is not taken for news.
	promised string
	granted  int
	// met are the fresh nodes heard of, by address.
	met map[string]member
}

func (f *formation) init(stable raft.StableStore) (err error) {
	f.stable, f.met = stable, map[string]member{}
	if f.promised, err = getString(stable, keyPromise); err != nil {
		return fmt.Errorf("reading promise: %w", err)
	}
	return nil
}

// promise stores whom this node waits for, "" for nobody. The caller holds mu.
func (f *formation) promise(id string) error {
	if f.promised == id {
		return nil
	}
	if err := f.stable.Set(keyPromise, []byte(id)); err != nil {
		return fmt.Errorf("storing promise: %w", err)
	}
	f.promised = id
	f.granted++
	return nil
}

// hello calls one peer.
func (n *Node) hello(ctx context.Context, address string) (helloResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	var response helloResponse
	if address == "" {
		return response, errNowhere
	}
	request := helloRequest{Member: n.self(), Fresh: n.fresh(), Start: n.identity.start}
	if err := n.ask(ctx, address, callHello, request, &response); err != nil {
		return response, err
	}
	n.addresses.learn(response.Member)
	n.identity.heard(response.Member.ID, response.Start)
	n.belongs(response.NotMember, response.Applied)
	return response, nil
}

// ask makes a peer call with JSON on both ways.
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

// fresh: this node has no state and may form a cluster.
func (n *Node) fresh() bool {
	if n.cfg.BootstrapExpect == 0 || len(n.servers()) > 0 {
		return false
	}
	has, err := raft.HasExistingState(n.storage.Logs, n.storage.Stable, n.storage.Snapshots)
	return err == nil && !has
}

// handleHello answers callHello.
func (n *Node) handleHello(from string, request helloRequest) (helloResponse, error) {
	if err := n.introduce(from, request.Member); err != nil {
		return helloResponse{}, err
	}
	n.addresses.learn(request.Member)
	response := n.ownHello(n.Status())
	response.Member, response.Fresh, response.Formed = n.self(), n.fresh(), len(n.servers()) > 0
	response.Time = n.clock().UTC()
	response.Start, response.NotMember = n.identity.start, n.absence(request.Member.ID)
	n.identity.heard(request.Member.ID, request.Start)
	f := &n.formation
	f.mu.Lock()
	defer f.mu.Unlock()
	response.Promised = f.promised
	if request.Fresh && len(f.met) < helloLimit {
		f.met[request.Member.Address] = request.Member
	}
	if response.Fresh {
		for _, m := range f.met {
			response.Known = append(response.Known, m)
		}
	}
	return response, nil
}

// introduce checks that a caller is who it says.
func (n *Node) introduce(from string, m member) error {
	if from != m.Name || nodeName(raft.ServerID(m.ID)) != m.Name || m.Address == "" {
		return fmt.Errorf("node %q can't speak as %q (%s)", from, m.Name, m.ID)
	}
	return nil
}

// handlePromise answers callPromise.
func (n *Node) handlePromise(from string, request promiseRequest) (promiseResponse, error) {
	if err := n.introduce(from, request.Member); err != nil {
		return promiseResponse{}, err
	}
	f := &n.formation
	f.mu.Lock()
	defer f.mu.Unlock()
	if !n.fresh() {
		return promiseResponse{Reason: "this node has state"}, nil
	}
	if f.promised != "" && f.promised != request.Member.ID {
		return promiseResponse{Reason: "promised to " + f.promised}, nil
	}
	if err := f.promise(request.Member.ID); err != nil {
		return promiseResponse{}, err
	}
	return promiseResponse{Granted: true}, nil
}

// form brings this node into a cluster and keeps its address there current. It
// runs as long as the node.
func (n *Node) form(ctx context.Context) {
	pause := formMin
	warned := time.Now()
	for {
		settled := n.settled()
		if !settled {
			if err := n.formOnce(ctx); err != nil && ctx.Err() == nil && time.Since(warned) > 5*time.Second {
				n.logger.Warn("cluster: not in a cluster yet", "error", err)
				warned = time.Now()
			}
		}
		wait := settledInterval
		if !settled {
			wait = pause/2 + rand.N(pause)
			pause = min(2*pause, formMax)
		} else {
			pause = formMin
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// settled: Raft's configuration has this node, where it is, and somebody leads.
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

// formOnce has one look around and takes the step that follows.
func (n *Node) formOnce(ctx context.Context) error {
	f := &n.formation
	f.mu.Lock()
	granted := f.granted
	f.mu.Unlock()
	peers := n.lookAround(ctx)
	step := nextStep(n.situation(), peers)

	f.mu.Lock()
	err := f.reconsider(string(n.id), granted, step, peers)
	f.mu.Unlock()
	if err != nil {
		return err
	}
	switch step.kind {
	case stepJoin:
		return n.join(ctx, step.via)
	case stepForm:
		return n.formWith(ctx, step.members)
	}
	if step.reason != "" {
		return errors.New(step.reason)
	}
	return nil
}

// lookAround says hello to everybody it can think of.
func (n *Node) lookAround(ctx context.Context) []helloResponse {
	addresses := map[string]bool{}
	for _, a := range n.cfg.RetryJoin {
		addresses[a] = true
	}
	for _, s := range n.servers() {
		addresses[n.whereIs(s)] = true
	}
	n.formation.mu.Lock()
	for a := range n.formation.met {
		addresses[a] = true
	}
	n.formation.mu.Unlock()
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
				n.formation.forget(a)
			} else if response.Member.ID != string(n.id) {
				byID[response.Member.ID] = response
			}
		})
	}
	wg.Wait()
	var peers []helloResponse
	for _, p := range byID {
		peers = append(peers, p)
		n.formation.meet(string(n.id), p)
	}
	slices.SortFunc(peers, func(a, b helloResponse) int { return cmp.Compare(a.Member.ID, b.Member.ID) })
	return peers
}

// meet remembers a fresh peer and those it knows.
func (f *formation) meet(self string, p helloResponse) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range append(p.Known, p.Member) {
		if p.Fresh && m.ID != self && len(f.met) < helloLimit {
			f.met[m.Address] = m
		}
	}
}

func (f *formation) forget(address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.met, address)
}

// reconsider takes a promise back when that is safe. The caller holds mu;
// granted is the count when the hellos of peers began.
func (f *formation) reconsider(self string, granted int, step step, peers []helloResponse) error {
	if f.promised == self && step.kind != stepForm {
		return f.promise("") // nobody else acts on it
	}
	if f.promised == "" || f.promised == self || f.granted != granted {
		return nil
	}
	for _, p := range peers {
		// The node we wait for says, after it got our promise, that it does not
		// form a cluster; it would have to ask again. Or it has lost its disk,
		// and the promise with it.
		gaveUp := p.Member.ID == f.promised && p.Fresh && p.Promised != f.promised
		reborn := p.Member.ID != f.promised && p.Member.Name == nodeName(raft.ServerID(f.promised))
		if gaveUp || reborn {
			return f.promise("")
		}
	}
	return nil
}

// join asks the cluster, through any of its members, to take this node.
func (n *Node) join(ctx context.Context, via []string) error {
	var errs []error
	for _, address := range via {
		ctx, cancel := context.WithTimeout(ctx, changeTimeout)
		var response changeResponse
		err := n.ask(ctx, address, callJoin, joinRequest{Member: n.self(), Protocol: fsm.ProtocolVersion}, &response)
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

// formWith collects the promises and writes the first configuration.
func (n *Node) formWith(ctx context.Context, members []member) error {
	f := &n.formation
	f.mu.Lock()
	if f.promised != "" && f.promised != string(n.id) {
		f.mu.Unlock()
		return fmt.Errorf("promised to %s", f.promised)
	}
	err := f.promise(string(n.id))
	granted := f.granted
	f.mu.Unlock()
	if err != nil {
		return err
	}
	configuration := raft.Configuration{}
	for _, m := range members {
		configuration.Servers = append(configuration.Servers, raft.Server{ID: raft.ServerID(m.ID), Address: raft.ServerAddress(m.Address)})
		if m.ID == string(n.id) {
			continue
		}
		callCtx, cancel := context.WithTimeout(ctx, helloTimeout)
		var response promiseResponse
		err := n.ask(callCtx, addressFor(raft.ServerID(m.ID), m.Address), callPromise, promiseRequest{n.self()}, &response)
		cancel()
		if err != nil {
			return fmt.Errorf("asking %s to form a cluster: %w", m.Name, err)
		}
		if !response.Granted {
			return fmt.Errorf("%s does not form a cluster with this node: %s", m.Name, response.Reason)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.promised != string(n.id) || f.granted != granted {
		return errors.New("the promise changed meanwhile")
	}
	n.logger.Info("cluster: forming a new cluster", "count", len(members))
	// Raft itself refuses if a vote or an entry arrived meanwhile.
	if err := n.await(ctx, n.raft.Load().BootstrapCluster(configuration)); err != nil {
		return fmt.Errorf("forming the cluster: %w", err)
	}
	return nil
}

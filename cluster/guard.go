package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"bivouac.dev/bivouac/cluster/membership"
	"bivouac.dev/bivouac/cluster/records"
	"github.com/google/uuid"
	"github.com/hashicorp/raft"
)

const (
	// guardTimeout bounds how long a start waits for the members. objectionTimeout bounds the wait for
	// late answers while the node runs.
	guardTimeout     = time.Second
	objectionTimeout = 30 * time.Second
	// spreadTimeout is how long what one member knows takes to reach the others: a leader tells all
	// once a second.
	spreadTimeout = 1500 * time.Millisecond
	// commitTimeout bounds the wait for an index before the leader's records are taken.
	commitTimeout = 200 * time.Millisecond
	// lifeTimeout bounds the check for another process of the same node; it is part of guardTimeout.
	lifeTimeout = guardTimeout / 2
)

// beginRequest asks a member, before Raft starts, whether it objects to the start.
type beginRequest struct {
	Member member `json:"member"`
	// Starts are those on the disk, the current one last; Last is the last log index on it.
	Starts []records.Start `json:"starts"`
	Last   uint64          `json:"last"`
	// Goes: no member has objected and the node starts.
	Goes bool `json:"goes,omitempty"`
}

// beginResponse has the objection, "" for none.
type beginResponse struct {
	Objection string `json:"objection,omitempty"`
}

// lifeResponse identifies the process that answers.
type lifeResponse struct {
	ID    string        `json:"id"`
	Start records.Start `json:"start"`
}

// recordsRequest has the leader's records of all members, as of its commit index.
type recordsRequest struct {
	Records map[raft.ServerID]records.Record `json:"records"`
	// Index is 0 from older programs.
	Index uint64 `json:"index,omitempty"`
}

// guard asks the members whether they object to this start, and stores it when they do not. A
// majority of those that answer stops the node (decide). Missing answers do not.
func (n *Node) guard(ctx context.Context) error {
	fresh, err := n.empty()
	if err != nil {
		return err
	}
	n.records.Begin(uuid.NewString())
	if fresh {
		n.records.MarkPassed()
		return n.records.StoreStarts()
	}
	last, err := n.lastIndex()
	if err != nil {
		return err
	}
	request := beginRequest{Member: n.self(), Starts: n.records.Starts(), Last: last}
	if err := n.askMembers(ctx, request); err != nil {
		return err
	}
	// Before a member records it: the disk must know every start that the members know.
	if err := n.records.StoreStarts(); err != nil {
		return err
	}
	request.Goes = true
	if err := n.askMembers(ctx, request); err != nil {
		return err
	}
	n.records.MarkPassed()
	return nil
}

// empty reports whether the disk holds no Raft state.
func (n *Node) empty() (bool, error) {
	has, err := raft.HasExistingState(n.storage.Logs, n.storage.Stable, n.storage.Snapshots)
	if err != nil {
		return false, fmt.Errorf("reading the state: %w", err)
	}
	return !has, nil
}

// lastIndex is the last log index on the disk.
func (n *Node) lastIndex() (uint64, error) {
	last, err := n.storage.Logs.LastIndex()
	if err != nil {
		return 0, fmt.Errorf("reading the log: %w", err)
	}
	snapshots, err := n.storage.Snapshots.List()
	if err != nil {
		return 0, fmt.Errorf("reading the snapshots: %w", err)
	}
	for _, s := range snapshots {
		last = max(last, s.Index)
	}
	return last, nil
}

func (n *Node) objected(o opinion) error {
	return fmt.Errorf(
		"the member at %s objects to the start of this node: %s; %s", o.address, o.objection,
		n.storage.Remedy(),
	)
}

// askMembers sends the request to all members and waits for guardTimeout. If one objects, the others
// decide. Objections that come later are decided while the node runs.
func (n *Node) askMembers(ctx context.Context, request beginRequest) error {
	ctx, end := context.WithTimeout(ctx, objectionTimeout)
	stop := context.AfterFunc(n.stopping, end)
	opinions, asked := n.opinions(ctx, request)
	timeout := time.NewTimer(guardTimeout)
	defer timeout.Stop()
	for range asked {
		select {
		case o := <-opinions:
			if o.objection != "" {
				stop()
				end()
				return n.decide(request, o, guardTimeout)
			}
		case <-timeout.C:
			n.guarding.Go(func() {
				defer end()
				defer stop()
				n.decideLate(ctx, request, opinions)
			})
			return nil
		}
	}
	stop()
	end()
	return nil
}

// opinion is a member's answer to a start; an error is none.
type opinion struct {
	address, objection string
	err                error
}

// opinions asks all members. The channel has an opinion of each.
func (n *Node) opinions(ctx context.Context, request beginRequest) (opinions <-chan opinion, asked int) {
	addresses := n.memberAddresses()
	all := make(chan opinion, len(addresses))
	for _, address := range addresses {
		n.guarding.Go(func() {
			var response beginResponse
			err := n.ask(ctx, address, callBegin, request, &response)
			all <- opinion{address, response.Objection, err}
		})
	}
	return all, len(addresses)
}

// decide puts one member's objection to all members again, once what that one knows has spread to
// the others. It returns the objection if most of those that answer within the timeout object.
func (n *Node) decide(request beginRequest, first opinion, timeout time.Duration) error {
	n.logger.Warn("cluster: a member objects to the start of this node; the others are asked", "address", first.address,
		"reason", first.objection)
	select {
	case <-time.After(spreadTimeout):
	case <-n.stopping.Done():
	}
	ctx, cancel := context.WithTimeout(n.stopping, timeout)
	defer cancel()
	request.Goes = false
	opinions, asked := n.opinions(ctx, request)
	answered, objecting := 0, []opinion{}
	for range asked {
		o := <-opinions
		if o.err == nil {
			answered++
		}
		if o.objection != "" {
			objecting = append(objecting, o)
		}
	}
	switch {
	case answered == 0 && timeout == guardTimeout: // the only one that answered is gone
		return n.objected(first)
	case 2*len(objecting) > answered:
		return n.objected(objecting[0])
	}
	n.logger.Warn("cluster: most members do not object to the start of this node: it goes on (bivouac runbook disk)",
		"count", answered)
	return nil
}

// decideLate decides objections that come while the node runs. It may have acknowledged more entries
// meanwhile, so only its starts count.
func (n *Node) decideLate(ctx context.Context, request beginRequest, opinions <-chan opinion) {
	for {
		select {
		case o := <-opinions:
			if o.objection != "" {
				n.challenge(request.Member, o)
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// challenge stops this node if most members that answer object to its starts.
func (n *Node) challenge(self member, first opinion) {
	request := beginRequest{Member: self, Starts: n.records.Starts(), Last: math.MaxUint64}
	if err := n.decide(request, first, objectionTimeout); err != nil && n.stopping.Err() == nil {
		n.failWith(err)
	}
}

// memberAddresses are the addresses of the last known members and of RetryJoin, without this node's
// own.
func (n *Node) memberAddresses() []string {
	known := n.records.Addresses()
	delete(known, n.id)
	all := map[string]bool{}
	for _, a := range slices.AppendSeq(slices.Clone(n.cfg.RetryJoin), maps.Values(known)) {
		all[a] = true
	}
	delete(all, n.network.Addr())
	return slices.Sorted(maps.Keys(all))
}

// handleBegin answers callBegin.
func (n *Node) handleBegin(
	ctx context.Context, from string, request beginRequest,
) (beginResponse, error) {
	if err := n.checkCaller(from, request.Member); err != nil {
		return beginResponse{}, err
	}
	m := request.Member
	id := raft.ServerID(m.ID)
	if id == n.id || len(request.Starts) == 0 {
		return beginResponse{}, errors.New("a node can't ask itself")
	}
	term, commit := n.leads()
	known := n.records.Get(id, term, commit)
	if why := known.Objection(request.Starts, request.Last); why != "" {
		n.logger.Error("cluster: this node objects to the start of another", "peer", m.Name, "error", why)
		return beginResponse{Objection: why}, nil
	}
	present := request.Starts[len(request.Starts)-1]
	if where := n.otherProcess(ctx, id, m.Address, present); where != "" {
		return beginResponse{Objection: "a process of this node still answers at " + where + "; stop one of the two"}, nil
	}
	if request.Goes && n.recordable(id) {
		n.records.Heard(id, present, m.Address)
		if err := n.records.Store(); err != nil {
			return beginResponse{}, err
		}
	}
	return beginResponse{}, nil
}

// otherProcess returns the address at which another process of the node answers, "" for none. The
// starting process answers at its own address.
func (n *Node) otherProcess(
	ctx context.Context, id raft.ServerID, own string, present records.Start,
) string {
	ctx, cancel := context.WithTimeout(ctx, lifeTimeout)
	defer cancel()
	former := map[string]bool{n.records.Addresses()[id]: true}
	if a, known := n.addresses.get(id); known {
		former[a] = true
	}
	for address := range former {
		if address == "" || address == own {
			continue
		}
		var life lifeResponse
		if err := n.ask(ctx, address, callLife, struct{}{}, &life); err == nil && life.ID == string(id) &&
			life.Start != present {
			return address
		}
	}
	return ""
}

// handleLife answers callLife.
func (n *Node) handleLife() lifeResponse {
	return lifeResponse{ID: string(n.id), Start: n.records.CurrentStart()}
}

// leads returns the term that this node leads and its commit index, 0 for none. The term is read
// last: a commit index from another leader comes with a newer term.
func (n *Node) leads() (term, commit uint64) {
	r, t := n.raft.Load(), n.terms.get()
	if r == nil || t == nil {
		return 0, 0
	}
	commit = r.CommitIndex()
	if r.State() != raft.Leader || r.CurrentTerm() != t.number {
		return 0, 0
	}
	return t.number, commit
}

// shareRecords sends the leader's records to all members. sent has the records each member got
// last.
func (n *Node) shareRecords(
	ctx context.Context, servers []raft.Server, contacts map[raft.ServerID]contact,
	sent map[raft.ServerID]map[raft.ServerID]records.Record,
) error {
	for id, c := range contacts {
		if c.alive {
			n.records.Heard(id, c.hello.Life, c.hello.Member.Address)
		}
	}
	term, commit := n.leads()
	if term == 0 {
		return nil
	}
	gathered := n.records.Gather(servers, n.id, term, commit)
	n.records.Merge(gathered)
	n.records.Keep(servers)
	due := slices.DeleteFunc(slices.Clone(servers), func(s raft.Server) bool {
		return s.ID == n.id || !contacts[s.ID].alive || maps.Equal(sent[s.ID], gathered)
	})
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, s := range due {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, helloTimeout)
			defer cancel()
			if n.ask(ctx, n.currentAddress(s), callRecords, recordsRequest{Records: gathered, Index: commit},
				&struct{}{}) == nil {
				mu.Lock()
				defer mu.Unlock()
				sent[s.ID] = gathered
			}
		})
	}
	wg.Wait()
	return n.records.Store()
}

// recordable reports whether records of a node are kept: of members, and before Raft runs of those
// whose records are on the disk.
func (n *Node) recordable(id raft.ServerID) bool {
	if servers := n.servers(); len(servers) > 0 {
		return membership.Listed(servers, id)
	}
	return n.records.Has(id)
}

// handleRecords answers callRecords of the leader that this node follows. The records are taken once
// this node knows itself that the index is committed; the leader tells again what was refused. A
// start of this node that its disk does not know may be that of another process, on a copy.
func (n *Node) handleRecords(ctx context.Context, request recordsRequest) (struct{}, error) {
	servers, index := n.servers(), request.Index
	maps.DeleteFunc(request.Records, func(id raft.ServerID, r records.Record) bool {
		index = max(index, r.Acked)
		return !membership.Listed(servers, id)
	})
	if !n.committed(ctx, index) {
		return struct{}{}, fmt.Errorf("this node does not know yet that entry %d is committed", index)
	}
	if own, known := request.Records[n.id]; known {
		own.Acked = 0 // Raft may just be behind
		if why := own.Objection(n.records.Starts(), 0); why != "" {
			delete(request.Records, n.id)
			if n.challenging.CompareAndSwap(false, true) {
				n.guarding.Go(func() {
					defer n.challenging.Store(false)
					n.challenge(n.self(),
						opinion{address: "the leader", objection: "another process has started on a copy of this node's disk: " + why})
				})
			}
		}
	}
	n.records.Merge(request.Records)
	n.records.Keep(servers)
	return struct{}{}, n.records.Store()
}

// committed waits until this node knows that an index is committed, for commitTimeout.
func (n *Node) committed(ctx context.Context, index uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	r := n.raft.Load()
	for r != nil && r.CommitIndex() < index {
		select {
		case <-time.After(commitTimeout / 10):
		case <-ctx.Done():
			return false
		}
	}
	return r != nil
}

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

	"github.com/google/uuid"
	"github.com/hashicorp/raft"
)

const (
	// guardTimeout bounds how long a start waits for the members. objectionTimeout bounds the wait for
	// late answers while the node runs.
	guardTimeout     = time.Second
	objectionTimeout = 30 * time.Second
	// lifeTimeout bounds the check for another process of the same node; it is part of guardTimeout.
	lifeTimeout = guardTimeout / 2
)

// beginRequest asks a member, before Raft starts, whether it objects to the start.
type beginRequest struct {
	Member member `json:"member"`
	// Starts are those on the disk, the current one last; Last is the last log index on it.
	Starts []start `json:"starts"`
	Last   uint64  `json:"last"`
	// Goes: no member has objected and the node starts.
	Goes bool `json:"goes,omitempty"`
}

// beginResponse has the objection, "" for none.
type beginResponse struct {
	Objection string `json:"objection,omitempty"`
}

// lifeResponse identifies the process that answers.
type lifeResponse struct {
	ID    string `json:"id"`
	Start start  `json:"start"`
}

// recordsRequest has the leader's records of all members.
type recordsRequest struct {
	Records map[raft.ServerID]record `json:"records"`
	// Silent has the milliseconds since the leader heard each silent member.
	Silent map[raft.ServerID]int64 `json:"silent,omitempty"`
}

// guard asks the members whether they object to this start, and stores it when none does. One
// objection stops the node. Missing answers do not.
func (n *Node) guard(ctx context.Context) error {
	fresh, err := n.empty()
	if err != nil {
		return err
	}
	n.records.begin(uuid.NewString())
	if fresh {
		n.records.markPassed()
		return n.records.storeStarts()
	}
	last, err := n.lastIndex()
	if err != nil {
		return err
	}
	request := beginRequest{Member: n.self(), Starts: n.records.starts(), Last: last}
	if err := n.askMembers(ctx, request); err != nil {
		return err
	}
	// Before a member records it: the disk must know every start that the members know.
	if err := n.records.storeStarts(); err != nil {
		return err
	}
	request.Goes = true
	if err := n.askMembers(ctx, request); err != nil {
		return err
	}
	n.records.markPassed()
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

// diskRunbook tells the operator what to do about an objection.
const diskRunbook = "bivouac runbook disk"

// objection is the reason that the member at an address gave.
type objection struct{ address, why string }

func (n *Node) objected(o objection) error {
	return fmt.Errorf(
		"the member at %s objects to the start of this node: %s; %s", o.address, o.why,
		n.storage.Remedy(),
	)
}

// askMembers sends the request to all members and waits for guardTimeout. The first objection is
// the error. Later objections are checked again while the node runs.
func (n *Node) askMembers(ctx context.Context, request beginRequest) error {
	ctx, end := context.WithTimeout(ctx, objectionTimeout)
	stop := context.AfterFunc(n.stopping, end)
	addresses := n.memberAddresses()
	objections := make(chan objection, len(addresses))
	var asking sync.WaitGroup
	for _, address := range addresses {
		asking.Go(func() {
			var response beginResponse
			err := n.ask(ctx, address, callBegin, request, &response)
			if err == nil && response.Objection != "" {
				objections <- objection{address, response.Objection}
			}
		})
	}
	n.guarding.Go(func() { asking.Wait(); close(objections) })
	timeout := time.NewTimer(guardTimeout)
	defer timeout.Stop()
	select {
	case o, any := <-objections:
		stop()
		end()
		if any {
			return n.objected(o)
		}
	case <-timeout.C:
		n.guarding.Go(func() {
			defer end()
			defer stop()
			for o := range objections {
				n.askAgain(ctx, o.address, request.Member)
			}
		})
	}
	return nil
}

// askAgain asks a member that objected late once more, and stops the node if it still objects. The
// node may have acknowledged more entries meanwhile, so only its starts count.
func (n *Node) askAgain(ctx context.Context, address string, self member) {
	request := beginRequest{Member: self, Starts: n.records.starts(), Last: math.MaxUint64}
	var response beginResponse
	if n.ask(ctx, address, callBegin, request, &response) == nil && response.Objection != "" {
		n.failWith(n.objected(objection{address, response.Objection}))
	}
}

// memberAddresses are the addresses of the last known members and of RetryJoin, without this node's
// own.
func (n *Node) memberAddresses() []string {
	known := n.records.addresses()
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
	known := n.records.get(id, term, commit)
	if why := known.objection(request.Starts, request.Last); why != "" {
		n.logger.Error("cluster: this node objects to the start of another", "peer", m.Name, "error", why)
		return beginResponse{Objection: why}, nil
	}
	present := request.Starts[len(request.Starts)-1]
	if where := n.otherProcess(ctx, id, m.Address, present); where != "" {
		return beginResponse{Objection: "a process of this node still answers at " + where + "; stop one of the two"}, nil
	}
	if request.Goes {
		n.records.heard(id, present, m.Address)
		if err := n.records.store(); err != nil {
			return beginResponse{}, err
		}
	}
	return beginResponse{}, nil
}

// otherProcess returns the address at which another process of the node answers, "" for none. The
// starting process answers at its own address.
func (n *Node) otherProcess(
	ctx context.Context, id raft.ServerID, own string, present start,
) string {
	ctx, cancel := context.WithTimeout(ctx, lifeTimeout)
	defer cancel()
	former := map[string]bool{n.records.addresses()[id]: true}
	if a, known := n.addresses.get(id); known {
		former[a] = true
	}
	for address := range former {
		if address == "" || address == own {
			continue
		}
		var life lifeResponse
		if err := n.ask(ctx, address, callLife, struct{}{}, &life); err == nil && life.ID == string(id) && life.Start != present {
			return address
		}
	}
	return ""
}

// handleLife answers callLife.
func (n *Node) handleLife() lifeResponse {
	return lifeResponse{ID: string(n.id), Start: n.records.currentStart()}
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
	sent map[raft.ServerID]map[raft.ServerID]record,
) error {
	for id, c := range contacts {
		if c.alive {
			n.records.heard(id, c.hello.Life, c.hello.Member.Address)
		}
	}
	term, commit := n.leads()
	if term == 0 {
		return nil
	}
	records := n.records.gather(servers, n.id, term, commit)
	n.records.merge(records)
	n.records.keep(servers)
	silent := silentIn(contacts, time.Now())
	due := slices.DeleteFunc(slices.Clone(servers), func(s raft.Server) bool {
		return s.ID == n.id || !contacts[s.ID].alive || len(silent) == 0 && maps.Equal(sent[s.ID], records)
	})
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, s := range due {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, helloTimeout)
			defer cancel()
			if n.ask(ctx, n.currentAddress(s), callRecords, recordsRequest{records, silent}, &struct{}{}) == nil {
				mu.Lock()
				defer mu.Unlock()
				sent[s.ID] = records
			}
		})
	}
	wg.Wait()
	return n.records.store()
}

// handleRecords answers callRecords. A start of this node that its disk does not know is that of
// another process, on a copy of the disk.
func (n *Node) handleRecords(request recordsRequest) (struct{}, error) {
	if own, known := request.Records[n.id]; known {
		own.Acked = 0 // Raft may just be behind
		if why := own.objection(n.records.starts(), 0); why != "" {
			n.failWith(fmt.Errorf("another process has started on a copy of this node's disk: %s; stop one of the two for good (%s)", why, diskRunbook))
			return struct{}{}, nil
		}
	}
	n.silent.set(request.Silent, time.Now())
	n.records.merge(request.Records)
	return struct{}{}, n.records.store()
}

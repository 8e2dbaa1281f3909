package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"
)

const (
	// guardTimeout bounds what asking the members costs a start, objectionTimeout how
	// long their answers are waited for while the node runs already.
	guardTimeout     = time.Second
	objectionTimeout = 30 * time.Second
	// lifeTimeout bounds looking whether a former process still answers; it is part
	// of a guardTimeout.
	lifeTimeout = guardTimeout / 2
)

// beginRequest asks a member, before Raft starts, whether it objects.
type beginRequest struct {
	Member member `json:"member"`
	// Starts are those on the disk, the present one last; Last is the last log
	// index on it.
	Starts []start `json:"starts"`
	Last   uint64  `json:"last"`
	// Goes: nobody has objected, and the node starts.
	Goes bool `json:"goes,omitempty"`
}

// beginResponse holds the objection, "" for none.
type beginResponse struct {
	Objection string `json:"objection,omitempty"`
}

// lifeResponse says which process answers.
type lifeResponse struct {
	ID    string `json:"id"`
	Start start  `json:"start"`
}

// witnessRequest is what a leader knows of all members.
type witnessRequest struct {
	Records map[raft.ServerID]record `json:"records"`
	// Silent is for how many milliseconds the leader has heard nothing of members.
	Silent map[raft.ServerID]int64 `json:"silent,omitempty"`
}

// guard draws the nonce of this start and asks the members whether they object to
// it. One objection stops the node; silence does not.
func (n *Node) guard(ctx context.Context) error {
	fresh, err := n.empty()
	if err != nil {
		return err
	}
	if err := n.witness.begin(uuid.NewString()); err != nil {
		return err
	}
	if fresh {
		n.witness.pass()
		return nil
	}
	last, err := n.lastIndex()
	if err != nil {
		return err
	}
	request := beginRequest{Member: n.self(), Starts: n.witness.starts(), Last: last}
	if err := n.askMembers(ctx, request); err != nil {
		return err
	}
	request.Goes = true
	if err := n.askMembers(ctx, request); err != nil {
		return err
	}
	n.witness.pass()
	return nil
}

// empty reports whether the disk holds nothing of Raft's.
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

// objection is what a member at an address has against a start.
type objection struct{ address, why string }

func (n *Node) objected(o objection) error {
	return fmt.Errorf("the member at %s objects to the start of this node: %s; %s", o.address, o.why, n.storage.remedy())
}

// askMembers puts the request to all members and waits for guardTimeout. The first
// objection is the error. One that comes later, as from a member under load, is looked
// into while the node runs.
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

// askAgain stops the node when the member at an address, which objected late, still
// does. By then the node may have acknowledged more than the request told, so only its
// starts are in question.
func (n *Node) askAgain(ctx context.Context, address string, self member) {
	request := beginRequest{Member: self, Starts: n.witness.starts(), Last: math.MaxUint64}
	var response beginResponse
	if n.ask(ctx, address, callBegin, request, &response) == nil && response.Objection != "" {
		n.breaks(n.objected(objection{address, response.Objection}))
	}
}

// memberAddresses are those of the last known members and of RetryJoin, without
// this node's own.
func (n *Node) memberAddresses() []string {
	known := n.witness.addresses()
	delete(known, n.id)
	all := map[string]bool{}
	for _, a := range slices.AppendSeq(slices.Clone(n.cfg.RetryJoin), maps.Values(known)) {
		all[a] = true
	}
	delete(all, n.network.Addr())
	return slices.Sorted(maps.Keys(all))
}

// remedy is what to do with a disk that others object to.
func (s *Storage) remedy() string {
	where := "the data directory"
	if s.disk != nil {
		where = s.disk.dir
	}
	return fmt.Sprintf("do not run it: move %s away and start the node with an empty one, and it fetches everything from the others (%s)", where, runbook)
}

// handleBegin answers callBegin.
func (n *Node) handleBegin(ctx context.Context, from string, request beginRequest) (beginResponse, error) {
	if err := n.introduce(from, request.Member); err != nil {
		return beginResponse{}, err
	}
	m := request.Member
	id := raft.ServerID(m.ID)
	if id == n.id || len(request.Starts) == 0 {
		return beginResponse{}, errors.New("a node can't ask itself")
	}
	term, commit := n.leads()
	known := n.witness.get(id, term, commit)
	if why := known.objection(request.Starts, request.Last); why != "" {
		n.logger.Error("cluster: this node objects to the start of another", "peer", m.Name, "error", why)
		return beginResponse{Objection: why}, nil
	}
	present := request.Starts[len(request.Starts)-1]
	if where := n.stillLives(ctx, id, m.Address, present); where != "" {
		return beginResponse{Objection: "a process of this node still answers at " + where + "; stop one of the two"}, nil
	}
	if request.Goes {
		n.witness.heard(id, present, m.Address)
		if err := n.witness.store(); err != nil {
			return beginResponse{}, err
		}
	}
	return beginResponse{}, nil
}

// stillLives gives the address at which another process of the node answers, "" for
// none. The one that starts answers at its own.
func (n *Node) stillLives(ctx context.Context, id raft.ServerID, own string, present start) string {
	ctx, cancel := context.WithTimeout(ctx, lifeTimeout)
	defer cancel()
	former := map[string]bool{n.witness.addresses()[id]: true}
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
	return lifeResponse{ID: string(n.id), Start: n.witness.present()}
}

// leads gives the term that this node leads in and what is committed in it; 0 for
// none. The term is read last: a commit index of another leader comes with a newer
// one.
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

// spread tells all members what this leader knows of them. told is what each was
// told last.
func (n *Node) spread(ctx context.Context, servers []raft.Server, contacts map[raft.ServerID]contact, told map[raft.ServerID]map[raft.ServerID]record) error {
	for id, c := range contacts {
		if c.alive {
			n.witness.heard(id, c.hello.Life, c.hello.Member.Address)
		}
	}
	term, commit := n.leads()
	if term == 0 {
		return nil
	}
	records := n.witness.gather(servers, n.id, term, commit)
	n.witness.merge(records)
	n.witness.keep(servers)
	silent := silentIn(contacts, time.Now())
	due := slices.DeleteFunc(slices.Clone(servers), func(s raft.Server) bool {
		return s.ID == n.id || !contacts[s.ID].alive || len(silent) == 0 && maps.Equal(told[s.ID], records)
	})
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, s := range due {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, helloTimeout)
			defer cancel()
			if n.ask(ctx, n.whereIs(s), callWitness, witnessRequest{records, silent}, &struct{}{}) == nil {
				mu.Lock()
				defer mu.Unlock()
				told[s.ID] = records
			}
		})
	}
	wg.Wait()
	return n.witness.store()
}

// handleWitness answers callWitness. A start of this very node that its disk does
// not know of is another process's, on a copy of the disk.
func (n *Node) handleWitness(request witnessRequest) (struct{}, error) {
	if own, known := request.Records[n.id]; known {
		own.Acked = 0 // Raft may just be behind
		if why := own.objection(n.witness.starts(), 0); why != "" {
			n.breaks(fmt.Errorf("another process has started on a copy of this node's disk: %s; stop one of the two for good (%s)", why, runbook))
			return struct{}{}, nil
		}
	}
	n.silences.set(request.Silent, time.Now())
	n.witness.merge(request.Records)
	return struct{}{}, n.witness.store()
}

// InstallSnapshot implements raft.Transport: a member that has taken a snapshot has
// all that is in it.
func (f *feed) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	err := f.Transport.InstallSnapshot(id, target, args, resp, data)
	if err == nil && resp.Success && f.matched != nil {
		f.matched(id, args.Term, args.LastLogIndex)
	}
	return err
}

// acknowledged notes what a member has, by its answer to a leader's entries.
func (f *feed) acknowledged(id raft.ServerID, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) {
	if f.matched == nil || !resp.Success || resp.Term != args.Term {
		return
	}
	index := args.PrevLogEntry
	if len(args.Entries) > 0 {
		index = args.Entries[len(args.Entries)-1].Index
	}
	if index > 0 {
		f.matched(id, args.Term, index)
	}
}

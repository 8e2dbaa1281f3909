package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

// MemberRecord is what a node knows of a member's disk: an older one is refused at its start.
type MemberRecord struct {
	ID string `json:"id"`
	// Starts is the number of the member's newest start, Acked the highest index that it acknowledged.
	Starts  uint64 `json:"starts"`
	Acked   uint64 `json:"acked"`
	Address string `json:"address"`
}

// recordsOfRequest asks a node for its records, and to clear the one of a node by its name.
type recordsOfRequest struct {
	Clear string `json:"clear,omitempty"`
	// Spread: the asked node has all members clear it too.
	Spread bool `json:"spread,omitempty"`
}

type recordsOfResponse struct {
	Records []MemberRecord `json:"records"`
	// Asked are the members that cleared the record too.
	Asked []string   `json:"asked,omitempty"`
	Error *fsm.Error `json:"error,omitempty"`
}

// proven is what the operator's proof is for, on every member that is asked.
func (r recordsOfRequest) proven() string { return "clear record\n" + r.Clear }

// handleRecordsOf answers callRecordsOf. It needs no leader: a member that is refused at its start may
// be the one that a majority lacks. So each node checks the proof with its own store.
func (n *Node) handleRecordsOf(ctx context.Context, r recordsOfRequest) (response recordsOfResponse, err error) {
	if r.Clear != "" {
		if !n.provesHere(ctx, r.proven()) {
			return recordsOfResponse{Error: errNoOperator()}, nil
		}
		if r.Spread && !n.records.Named(r.Clear) {
			return recordsOfResponse{Error: fsm.Errorf(fsm.CodeNotFound, "this node has no record of node %q", r.Clear)}, nil
		}
		n.logger.Warn("cluster: an operator clears what is known of a member's disk", "peer", r.Clear)
		if r.Spread {
			response.Asked = n.spreadClear(ctx, r)
		}
		if err := n.records.Clear(r.Clear); err != nil {
			return response, err
		}
	}
	response.Records = []MemberRecord{}
	for id, known := range n.records.All() {
		response.Records = append(response.Records, MemberRecord{string(id), known.Start.Seq, known.Acked, known.Address})
	}
	return response, nil
}

// provesHere checks the proof of an operator's key behind a call with this node's own store.
func (n *Node) provesHere(ctx context.Context, of string) bool {
	v := n.store.View()
	if !v.AnyOperatorKey(n.clock()) {
		return true
	}
	caller, _ := ctx.Value(callerKey{}).(provenCaller)
	age := n.clock().Sub(caller.Time)
	return age < maxCommandAge && age > -maxCommandAge &&
		v.OperatorProves(caller.Lookup, caller.message(of), caller.Proof, n.clock())
}

// spreadClear has the other members clear a record, twice: a leader may tell of it in between.
func (n *Node) spreadClear(ctx context.Context, r recordsOfRequest) (asked []string) {
	request := recordsOfRequest{Clear: r.Clear}
	body, err := withProvenCaller(ctx, request, request.proven())
	if err != nil {
		return nil
	}
	var mu sync.Mutex
	for round := range 2 {
		var wg sync.WaitGroup
		for _, s := range n.servers() {
			address := n.currentAddress(s)
			if s.ID == n.id || address == "" {
				continue
			}
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, helloTimeout)
				defer cancel()
				_, err := n.network.Call(ctx, peernet.AddressFor(s.ID, address), callRecordsOf, body)
				if err == nil && round == 0 {
					mu.Lock()
					defer mu.Unlock()
					asked = append(asked, peernet.NodeName(s.ID))
				}
			})
		}
		wg.Wait()
		if err := n.records.Clear(r.Clear); err != nil || round > 0 {
			break
		}
		select {
		case <-time.After(reconcileInterval + helloTimeout/2):
		case <-ctx.Done():
		}
	}
	return asked
}

// Records asks the node what it knows of the members' disks. With the name of a node it and all other
// members that answer forget that first, which needs an operator's key; asked are those others.
func (c *PeerClient) Records(ctx context.Context, forget string) (records []MemberRecord, asked []string, err error) {
	request := recordsOfRequest{Clear: forget, Spread: forget != ""}
	data, err := withProvenCaller(ctx, request, request.proven())
	if err != nil {
		return nil, nil, fmt.Errorf("asking for records: %w", err)
	}
	var response recordsOfResponse
	if err := c.ask(ctx, callRecordsOf, data, &response); err != nil {
		return nil, nil, err
	}
	if response.Error != nil {
		return nil, nil, response.Error
	}
	return response.Records, response.Asked, nil
}

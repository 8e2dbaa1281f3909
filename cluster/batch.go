package cluster

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/raftfsm"
	"bivouac.dev/bivouac/fsm"
)

// maxForwards bounds the forwarding calls to the leader that are in flight. Later commands share
// the next call.
const maxForwards = 2

// proposal is one command on its way into the log.
type proposal struct {
	cmd  fsm.Command
	data []byte
	// decoded: cmd was read from data, so applying either gives the same result.
	decoded bool
	// request is the id of the API request behind a forwarded command, "" without one.
	request string
	// leader is the receiver of a forwarded command.
	leader *leadership
	// slot identifies the proposal among those that share done. done is buffered for all of them.
	slot int
	done chan<- slotOutcome
}

// slotOutcome is the outcome of the proposal in a slot.
type slotOutcome struct {
	slot int
	outcome
}

// resolve reports the outcome to the proposer. It never blocks.
func (p *proposal) resolve(a outcome) { p.done <- slotOutcome{p.slot, a} }

// batcher sends proposals in batches. A batch holds what arrived while earlier ones were in flight.
// An idle batcher sends a proposal at once.
type batcher struct {
	// run resolves every proposal of a batch. It calls release when the next batch may start.
	run func(batch []*proposal, release func())
	// spawn starts a goroutine that the node waits for.
	spawn func(func())
	// maxInFlight bounds the batches that run at a time.
	maxInFlight int

	mu       sync.Mutex
	waiting  []*proposal
	inFlight int
	// gathering is set while a batch collects its proposals.
	gathering bool
}

// add queues proposals for one leader, in order.
func (b *batcher) add(proposals ...*proposal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, proposals...)
	b.dispatch()
}

// withdraw removes a proposal that no batch has taken yet, and reports whether it did. A withdrawn
// proposal is never resolved.
func (b *batcher) withdraw(p *proposal) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, w := range b.waiting {
		if w == p {
			b.waiting = append(b.waiting[:i:i], b.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// dispatch starts the next batch if the limit allows it. The caller holds mu.
func (b *batcher) dispatch() {
	if b.gathering || b.inFlight == b.maxInFlight || len(b.waiting) == 0 {
		return
	}
	b.gathering = true
	b.inFlight++
	b.spawn(func() {
		release := sync.OnceFunc(b.release)
		defer release()
		if batch := b.gather(); len(batch) > 0 { // else it was withdrawn
			b.run(batch, release)
		}
	})
}

// gather takes the next batch after the runnable proposers have queued theirs. The answers to one
// batch wake many proposers; without the wait the first of them would send a batch of one.
func (b *batcher) gather() []*proposal {
	gather(func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.waiting)
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gathering = false
	batch := b.take()
	b.dispatch()
	return batch
}

// gatherYields bounds how often gather yields the processor.
const gatherYields = 8

// gather yields while each yield lets more goroutines join. It returns at once when no other
// goroutine is runnable. BenchmarkBatcher_Gather measures what it saves.
func gather(joined func() int) {
	before := 0
	for range gatherYields {
		runtime.Gosched()
		now := joined()
		if now <= before {
			return
		}
		before = now
	}
}

func (b *batcher) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight--
	b.dispatch()
}

// take removes the next batch from the queue: proposals for one leader, within the limits of an
// entry. The caller holds mu.
func (b *batcher) take() []*proposal {
	n, bytes := 0, 0
	for n < len(b.waiting) && n < raftfsm.MaxBatch && b.waiting[n].leader == b.waiting[0].leader {
		if bytes += len(b.waiting[n].data); n > 0 && bytes > raftfsm.MaxBatchBytes {
			break
		}
		n++
	}
	batch := b.waiting[:n:n]
	b.waiting = b.waiting[n:]
	if len(b.waiting) == 0 {
		b.waiting = nil
	}
	return batch
}

// leaderLost is closed when the receiver of a forwarded command no longer leads.
func (p *proposal) leaderLost() <-chan struct{} {
	if p.leader == nil {
		return nil
	}
	return p.leader.ctx.Done()
}

// send queues a proposal and waits for its outcome, for the end of ctx, or for the leader's loss.
func (b *batcher) send(ctx context.Context, p *proposal) outcome {
	done := make(chan slotOutcome, 1)
	p.done = done
	b.add(p)
	select {
	case d := <-done:
		return d.outcome
	case <-ctx.Done():
	case <-p.leaderLost():
	}
	if b.withdraw(p) {
		return outcome{}
	}
	select {
	case d := <-done:
		return d.outcome
	default:
		return outcome{status: maybeCommitted}
	}
}

// appendEntry appends a batch to the log: as one entry if all nodes know batches, else as one entry
// for each command. It runs while this node believes that it leads.
func (n *Node) appendEntry(batch []*proposal, release func()) {
	groups, entries, futures := n.enqueue(batch)
	release()
	for i, g := range groups {
		err := futures[i].Error()
		n.raftFSM.DropDecoded(entries[i])
		deliverEntry(g, futures[i], err)
	}
}

// enqueue hands the entries of a batch to Raft, in groups that are one entry each.
func (n *Node) enqueue(batch []*proposal) (groups [][]*proposal, entries [][]byte, futures []raft.ApplyFuture) {
	n.appending.Lock()
	defer n.appending.Unlock()
	v := n.store.View()
	if batch = readable(v, batch); len(batch) == 0 {
		return nil, nil, nil
	}
	groups = [][]*proposal{batch}
	if !v.Active(fsm.VersionBatches) {
		groups = groups[:0]
		for i := range batch {
			groups = append(groups, batch[i:i+1])
		}
	}
	entries = make([][]byte, len(groups))
	futures = make([]raft.ApplyFuture, len(groups))
	for i, g := range groups {
		entries[i] = entryOf(g)
		if commands := decodedCommands(g); commands != nil {
			n.raftFSM.KeepDecoded(entries[i], commands)
		}
		// Apply returns when Raft has taken the entry. Commands that arrive meanwhile form the next
		// batch.
		futures[i] = n.raft.Load().Apply(entries[i], n.cfg.ProposeTimeout)
	}
	return groups, entries, futures
}

// readable returns the commands that all nodes of the state's protocol version can read, and
// resolves the others. Those were encoded for a state of a higher version, before a restore.
func readable(v *fsm.View, batch []*proposal) []*proposal {
	if v.Active(fsm.ProtocolVersion) {
		return batch
	}
	return slices.DeleteFunc(batch, func(p *proposal) bool {
		since := fsm.MinVersion(p.cmd.Type)
		if fsm.IsBinary(p.data) {
			since = max(since, fsm.VersionBinary)
		}
		if v.Active(since) {
			return false
		}
		p.resolve(outcome{err: fsm.Errorf(fsm.CodeConflict,
			"the cluster's state was replaced by one of protocol version %d; nothing was done: send the request again",
			v.ProtocolVersion())})
		return true
	})
}

// entryOf encodes a batch as one log entry.
func entryOf(batch []*proposal) []byte {
	commands := make([][]byte, len(batch))
	for i, p := range batch {
		commands[i] = p.data
	}
	return raftfsm.JoinCommands(commands)
}

// decodedCommands returns the batch's commands if all were decoded from their bytes, else nil. A
// command built in memory may differ from its decoded form, such as nil and an empty list.
func decodedCommands(batch []*proposal) []fsm.Command {
	commands := make([]fsm.Command, len(batch))
	for i, p := range batch {
		if !p.decoded {
			return nil
		}
		commands[i] = p.cmd
	}
	return commands
}

// deliverEntry resolves the proposals of one log entry.
func deliverEntry(batch []*proposal, future raft.ApplyFuture, err error) {
	// The entry may be committed: leadership was lost, the node stops, or it could not apply the
	// entry.
	all := outcome{status: maybeCommitted}
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrEnqueueTimeout),
		errors.Is(err, raft.ErrLeadershipTransferInProgress):
		all = outcome{}
	case err == nil:
		if answers, ok := future.Response().([]raftfsm.Applied); ok && len(answers) == len(batch) {
			for i, p := range batch {
				a := answers[i]
				p.resolve(
					outcome{status: committed, index: a.Index, term: a.Term, result: a.Result, err: a.Err},
				)
			}
			return
		}
	}
	for _, p := range batch {
		p.resolve(all)
	}
}

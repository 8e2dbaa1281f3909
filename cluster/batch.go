package cluster

import (
	"context"
	"errors"
	"runtime"
	"sync"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/fsm"
)

// forwardLanes is how many calls with commands are on their way to the leader at
// a time. What comes meanwhile goes with the next one.
const forwardLanes = 2

// parcel is one command on its way into the log.
type parcel struct {
	cmd  fsm.Command
	data []byte
	// exact: cmd was read from data, so that applying either is the same.
	exact bool
	// leader is whom a forwarded command is for.
	leader *leadership
	// slot tells the parcels apart that share done; done has room for all of them.
	slot int
	done chan<- delivery
}

// delivery is what became of the parcel in a slot.
type delivery struct {
	slot int
	attempt
}

func (p *parcel) deliver(a attempt) { p.done <- delivery{p.slot, a} }

// batcher carries parcels away in batches: each batch is what came while the
// ones before it were on their way. An idle one takes a parcel at once.
type batcher struct {
	// carry delivers every parcel of a batch. It calls release as soon as the next
	// batch may leave.
	carry func(batch []*parcel, release func())
	spawn func(func())
	// lanes is how many batches may be on their way at a time.
	lanes int

	mu      sync.Mutex
	waiting []*parcel
	busy    int
	// gathering is set while a lane waits for its batch to be whole.
	gathering bool
}

// add takes parcels for one leader, in order.
func (b *batcher) add(parcels ...*parcel) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, parcels...)
	b.dispatch()
}

// withdraw takes back a parcel that is not on its way yet, and reports whether
// that was so; then it is not delivered.
func (b *batcher) withdraw(p *parcel) bool {
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

// dispatch puts a free lane to work. The caller holds mu.
func (b *batcher) dispatch() {
	if b.gathering || b.busy == b.lanes || len(b.waiting) == 0 {
		return
	}
	b.gathering = true
	b.busy++
	b.spawn(func() {
		release := sync.OnceFunc(b.release)
		defer release()
		if batch := b.gather(); len(batch) > 0 { // else it was withdrawn
			b.carry(batch, release)
		}
	})
}

// gather makes a batch with the parcels of those who are ready to run too: the
// answers to one batch wake many, and the first of them would leave alone.
func (b *batcher) gather() []*parcel {
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

// gatherLooks bounds how often gather looks.
const gatherLooks = 8

// gather lets goroutines that are ready to run join what is about to leave, while
// each look finds that more have joined. Where nothing else wants to run it costs
// nothing.
func gather(joined func() int) {
	before := 0
	for range gatherLooks {
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
	b.busy--
	b.dispatch()
}

// take cuts the next batch off what waits. The caller holds mu.
func (b *batcher) take() []*parcel {
	n, bytes := 0, 0
	for n < len(b.waiting) && n < maxBatch && b.waiting[n].leader == b.waiting[0].leader {
		if bytes += len(b.waiting[n].data); n > 0 && bytes > maxBatchBytes {
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

// lost ends when whom a forwarded command is for no longer leads.
func (p *parcel) lost() <-chan struct{} {
	if p.leader == nil {
		return nil
	}
	return p.leader.ctx.Done()
}

// send adds a parcel and waits for its delivery, or for the end of ctx or of the
// leader it is for.
func (b *batcher) send(ctx context.Context, p *parcel) attempt {
	done := make(chan delivery, 1)
	p.done = done
	b.add(p)
	select {
	case d := <-done:
		return d.attempt
	case <-ctx.Done():
	case <-p.lost():
	}
	if b.withdraw(p) {
		return attempt{}
	}
	select {
	case d := <-done:
		return d.attempt
	default:
		return attempt{certainty: maybeDone}
	}
}

// appendEntry puts a batch into the log, as one entry if every node knows such;
// this node leads, as far as it knows.
func (n *Node) appendEntry(batch []*parcel, release func()) {
	groups := [][]*parcel{batch}
	if n.store.View().ProtocolVersion() < batchVersion {
		groups = groups[:0]
		for i := range batch {
			groups = append(groups, batch[i:i+1])
		}
	}
	entries := make([][]byte, len(groups))
	futures := make([]raft.ApplyFuture, len(groups))
	for i, g := range groups {
		entries[i] = entryOf(g)
		if commands := exactly(g); commands != nil {
			n.machine.expect(entries[i], commands)
		}
		// Returns when Raft has taken the entry, so that what comes in the meantime
		// makes the next one.
		futures[i] = n.raft.Load().Apply(entries[i], n.cfg.ProposeTimeout)
	}
	release()
	for i, g := range groups {
		err := futures[i].Error()
		n.machine.forget(entries[i])
		deliverEntry(g, futures[i], err)
	}
}

// entryOf gives the bytes of the log entry for a batch.
func entryOf(batch []*parcel) []byte {
	commands := make([][]byte, len(batch))
	for i, p := range batch {
		commands[i] = p.data
	}
	return joinCommands(commands)
}

// exactly gives the commands of a batch if each was read from its bytes, else
// nil: what this program has in memory and what all others read could differ in
// a nil where there is an empty list.
func exactly(batch []*parcel) []fsm.Command {
	commands := make([]fsm.Command, len(batch))
	for i, p := range batch {
		if !p.exact {
			return nil
		}
		commands[i] = p.cmd
	}
	return commands
}

// deliverEntry tells each parcel what became of the entry it was in.
func deliverEntry(batch []*parcel, future raft.ApplyFuture, err error) {
	// Lost leadership, shutdown, a full disk; or committed, but this node could
	// not apply it and stops.
	all := attempt{certainty: maybeDone}
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		all = attempt{}
	case err == nil:
		if answers, ok := future.Response().([]applied); ok && len(answers) == len(batch) {
			for i, p := range batch {
				a := answers[i]
				p.deliver(attempt{certainty: done, index: a.index, term: a.term, result: a.result, err: a.err})
			}
			return
		}
	}
	for _, p := range batch {
		p.deliver(all)
	}
}

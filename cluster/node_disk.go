package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// abandonTimeout bounds ending a node whose disk has failed or hangs: what waits
// for the disk is left behind, and ends with the process.
const abandonTimeout = 5 * time.Second

// watchDisk looks at the disk's pace, and notes once a second how far the log
// goes, as long as the node runs.
func (n *Node) watchDisk(tasks *sync.WaitGroup) {
	if n.storage.disk == nil {
		return
	}
	tasks.Go(func() {
		every(n.stopping, stallTick, func() { n.storage.disk.look(time.Now()) })
	})
	tasks.Go(func() {
		every(n.stopping, markEvery, func() {
			_ = n.storage.mark.note() // an error has ended the node already
		})
	})
}

// every calls fn again and again until ctx ends.
func every(ctx context.Context, pause time.Duration, fn func()) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			fn()
		case <-ctx.Done():
			return
		}
	}
}

// noteEnd notes where the log ends when the node stops in order, so that the
// next start would miss its last entry too.
func (s *Storage) noteEnd() error {
	if s.mark == nil || s.disk.failure() != nil {
		return nil
	}
	return s.mark.note()
}

// abandon ends a node whose disk can't be waited for. Raft and the network come
// first: the others elect a leader when they hear nothing more.
func (n *Node) abandon(r *raft.Raft, end func() error) error {
	ended := make(chan error, 1)
	go func() {
		r.Shutdown()
		n.inbox.Shut()
		closed := make(chan error, 1)
		go func() { closed <- n.network.Close() }()
		err := end()
		ended <- errors.Join(err, <-closed)
	}()
	select {
	case err := <-ended:
		return err
	case <-time.After(abandonTimeout):
		n.logger.Warn("cluster: the disk still has not answered; the node stops without closing it")
		return nil
	}
}

// newRaft is raft.NewRaft in a goroutine of its own, which a store that can't be
// written or read may end.
func (n *Node) newRaft(conf *raft.Config, transport raft.Transport) (r *raft.Raft, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		r, err = raft.NewRaft(conf, n.machine, n.storage.Logs, n.storage.Stable, n.storage.Snapshots, transport)
	}()
	<-done
	if r == nil && err == nil {
		err = n.storage.disk.failure()
	}
	return r, err
}

// diskTransport sends nothing that a leader sends while this node's disk does
// not answer, so that the others elect one whose disk does: Raft's heartbeats
// come from a goroutine that never waits for the disk.
type diskTransport struct {
	*raft.NetworkTransport
	disk *disk
	book *addressBook
}

// EncodePeer implements raft.Transport: what Raft notes as an address names no
// member.
func (t *diskTransport) EncodePeer(id raft.ServerID, address raft.ServerAddress) []byte {
	if place := t.book.place(id); place != "" {
		return []byte(place)
	}
	return []byte(address)
}

// DecodePeer implements raft.Transport.
func (t *diskTransport) DecodePeer(raw []byte) raft.ServerAddress {
	_, hostPort := SplitAddress(string(raw))
	return raft.ServerAddress(hostPort)
}

// AppendEntries implements raft.Transport.
func (t *diskTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if err := t.disk.trouble(); err != nil {
		return err
	}
	return t.NetworkTransport.AppendEntries(id, target, args, resp)
}

package cluster

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

// abandonTimeout bounds the stop of a node whose disk failed or hangs. Goroutines that wait for the
// disk end with the process.
const abandonTimeout = 5 * time.Second

// abandon stops a node without waiting for its disk. Raft and the network end first, so that the
// other nodes elect a leader.
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
		n.logger.Warn("cluster: the disk does not answer; the node stops without closing it")
		return nil
	}
}

// newRaft runs raft.NewRaft in a goroutine of its own, which a failed store may end
// (raftstore's endCaller).
func (n *Node) newRaft(conf *raft.Config, transport raft.Transport) (r *raft.Raft, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		r, err = raft.NewRaft(
			conf, n.raftFSM, n.storage.Logs, n.storage.Stable, n.storage.Snapshots, transport,
		)
	}()
	<-done
	if r == nil && err == nil {
		err = n.storage.Watchdog().Failure()
	}
	return r, err
}

// diskTransport sends no entries or heartbeats while this node's disk does not answer, so that the
// others elect a leader whose disk does. Raft's heartbeat goroutine itself never waits for the
// disk.
type diskTransport struct {
	*peernet.Transport
	node *Node
}

// EncodePeer implements raft.Transport. The address of a message's header has the sender's id too:
// Raft stores that of the candidate with a vote. Raft itself decodes it to the place alone.
func (t *diskTransport) EncodePeer(id raft.ServerID, address raft.ServerAddress) []byte {
	if place := t.node.addresses.lookup(id); place != "" {
		address = raft.ServerAddress(place)
	}
	if id == "" || !t.node.store.View().Active(fsm.VersionHistory) { // programs before it don't decode it
		return []byte(address)
	}
	return []byte(peernet.AddressFor(id, string(address)))
}

// DecodePeer implements raft.Transport.
func (t *diskTransport) DecodePeer(raw []byte) raft.ServerAddress {
	_, hostPort := peernet.SplitAddress(string(raw))
	return raft.ServerAddress(hostPort)
}

// AppendEntries implements raft.Transport.
func (t *diskTransport) AppendEntries(
	id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse,
) error {
	if err := t.node.storage.Watchdog().Trouble(); err != nil {
		return err
	}
	return t.Transport.AppendEntries(id, target, args, resp)
}

package cluster

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/membership"
	"bivouac.dev/bivouac/fsm"
)

// firstVersion is the protocol version of a state that no protocol.raise has reached: a new
// cluster's.
const firstVersion = 1

// raiseVersion raises the protocol version of a new cluster to the newest that all members know. In
// one that was upgraded it says once a term that the version waits for an operator. Dead members are
// ignored: an older node stops when it reads the version from the log.
func (n *Node) raiseVersion(
	ctx context.Context, states []membership.State, contacts map[raft.ServerID]contact, announced *int,
) error {
	version := n.store.View().ProtocolVersion()
	known := []int{fsm.ProtocolVersion}
	for _, s := range states {
		switch {
		case s.ID == n.id || s.Dead:
		case s.Alive:
			known = append(known, contacts[s.ID].hello.Protocol)
		default:
			known = append(known, 0)
		}
	}
	next := membership.RaisedVersion(version, known)
	switch {
	case next == version:
		return nil
	case version > firstVersion && !n.cfg.RaiseProtocol:
		if *announced != next {
			*announced = next
			n.logger.Info("cluster: all members know a newer protocol version, "+
				"which waits for an operator (bivouac operator protocol set)",
				"version", version, "known", next)
		}
		return nil
	}
	cmd := fsm.NewCommand(uuid.NewString(), n.clock(), "", &fsm.ProtocolRaiseBody{Version: next})
	if _, err := n.Propose(ctx, cmd); err != nil {
		return fmt.Errorf("raising the protocol version: %w", err)
	}
	n.logger.Info("cluster: protocol version raised", "version", next)
	return nil
}

// SetProtocol raises the cluster's protocol version for good, with the operator's key of ctx. Every
// node accepts it. The version that the cluster has is no error. CodeInvalid: there is no such
// version. CodeConflict: the cluster's is higher, or a member does not know the version or does not
// answer; the message names the member.
func (n *Node) SetProtocol(ctx context.Context, version int) error {
	v, err := n.View(ctx, Linearizable)
	if err != nil {
		return err
	}
	has := v.ProtocolVersion()
	switch {
	case version < firstVersion:
		return fsm.Errorf(fsm.CodeInvalid, "a protocol version is a number from %d on", firstVersion)
	case version == has:
		return nil
	case version < has:
		return fsm.Errorf(fsm.CodeConflict, "the cluster is at protocol version %d, which can't be lowered", has)
	}
	if why := unknowing(n.Members(ctx), version); len(why) > 0 {
		return fsm.Errorf(fsm.CodeConflict, "protocol version %d was not set: %s; nothing was done", version,
			strings.Join(why, "; "))
	}
	cmd := fsm.NewCommand(uuid.NewString(), n.clock(), "", &fsm.ProtocolRaiseBody{Version: version})
	if _, err := n.Propose(ctx, cmd); err != nil {
		return err
	}
	n.logger.Info("cluster: an operator set the protocol version", "version", version)
	return nil
}

// unknowing says which members don't know a protocol version, or may not.
func unknowing(members []Member, version int) (why []string) {
	if len(members) == 0 {
		return []string{"this node knows no members yet"}
	}
	for _, m := range members {
		switch {
		case m.Error != "":
			why = append(why,
				fmt.Sprintf("node %q does not answer: start it, or remove it (bivouac operator remove %s)", m.Name, m.Name))
		case m.KnownVersion < version:
			why = append(why, fmt.Sprintf("node %q knows protocol version %d: upgrade it", m.Name, m.KnownVersion))
		}
	}
	return why
}

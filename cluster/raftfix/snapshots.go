package raftfix

import (
	"fmt"

	"github.com/hashicorp/raft"
)

// snapshot judges a leader's snapshot; it avoids hashicorp/raft issue 697. Raft installs every
// snapshot. One that is late or repeated moves the store back, empties a monotonic log of
// acknowledged entries, and leaves Raft with the former last index.
//
// By the Raft paper the receiver keeps what it has (section 7, rule 6). A snapshot whose last entry
// is applied here, or is in this log with the same term, is answered as installed and dropped: its
// content is already durable here. If the log has another entry there, the rest of the log is not
// the leader's. Raft can't forget its end, so these uncommitted entries are deleted and Raft must
// be restarted.
//
// Raft first gets a heartbeat in the snapshot's place, so that it judges the term, knows the
// leader, and has handled earlier messages. An error is the reason that Raft must be restarted.
func (i *Inbox) snapshot(rpc raft.RPC, request *raft.InstallSnapshotRequest) error {
	heard, err := i.ask(&raft.AppendEntriesRequest{RPCHeader: request.RPCHeader, Term: request.Term})
	answer := &raft.InstallSnapshotResponse{RPCHeader: i.header()}
	if heard != nil {
		answer.Term = heard.Term
	}
	if err != nil || !heard.Success {
		i.refuse(rpc, answer, err)
		return nil
	}
	held, conflict, err := i.holds(request.LastLogIndex, request.LastLogTerm)
	switch {
	case err != nil:
		i.refuse(rpc, answer, err)
	case held:
		answer.Success = true
		i.refuse(rpc, answer, nil)
	case conflict:
		err = fmt.Errorf("the leader's snapshot ends with entry %d of term %d, "+
			"the log has another there (hashicorp/raft issue 697): what follows was not committed and is deleted",
			request.LastLogIndex, request.LastLogTerm)
		i.refuse(rpc, answer, err)
		return i.cut(request.LastLogIndex, err)
	default:
		i.put(rpc)
	}
	return nil
}

// holds reports whether everything up to the entry is here, or another entry is in its place.
func (i *Inbox) holds(index, term uint64) (held, conflict bool, err error) {
	if index <= i.state.AppliedIndex() {
		return true, false, nil
	}
	last, err := i.logs.LastIndex()
	if err != nil || index > last {
		return false, false, err
	}
	var entry raft.Log
	if err := i.logs.GetLog(index, &entry); err != nil {
		return false, false, fmt.Errorf("comparing a snapshot with the log: %w", err)
	}
	return entry.Term == term, entry.Term != term, nil
}

// cut deletes the log from first on, and returns why.
func (i *Inbox) cut(first uint64, why error) error {
	last, err := i.logs.LastIndex()
	if err == nil {
		err = i.logs.DeleteRange(first, last)
	}
	if err != nil {
		return fmt.Errorf("%w; deleting it: %w", why, err)
	}
	return why
}

// ahead rewrites an AppendEntries request when this node is ahead of what the leader assumes. After
// a snapshot that was dropped the leader continues behind it, where this log may begin later. Raft
// would refuse the request, as it looks for the previous entry in the log only, and the leader
// would send the snapshot again without end (issue 697). Applied entries are committed, so they
// need no comparison and are not needed again.
func (i *Inbox) ahead(request *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	first := request.PrevLogEntry
	if first == 0 && len(request.Entries) > 0 {
		first = request.Entries[0].Index
	}
	applied := i.state.AppliedIndex()
	if first == 0 || first > applied || first == i.state.LastIndex() {
		return request
	}
	if err := i.logs.GetLog(first, &raft.Log{}); err == nil {
		return request
	}
	rest := *request // the sender may keep its own
	rest.PrevLogEntry, rest.PrevLogTerm, rest.Entries = 0, 0, nil
	for at, entry := range request.Entries {
		if entry.Index > applied {
			rest.Entries = request.Entries[at:]
			break
		}
	}
	return &rest
}

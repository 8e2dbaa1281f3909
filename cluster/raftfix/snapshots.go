package raftfix

import (
	"fmt"

	"github.com/hashicorp/raft"
)

// snapshot judges a snapshot that a leader sends; it holds off hashicorp/raft
// issue 697. Raft compares it with nothing: one that comes late or twice takes the
// store back, empties a monotonic log of entries that were acknowledged, and
// leaves Raft claiming the end of the log that it had.
//
// The Raft paper has the receiver keep what it has (section 7, rule 6). So a
// snapshot whose last entry is applied here, or is in this log with the same term,
// is answered as taken and not handed on: all that it holds is here, durably,
// which is what the leader notes. A log that has another entry there is no part of
// the leader's from there on, and Raft has no way to forget its end: these entries,
// which no leader can count, are deleted, and Raft must be started anew.
//
// Before that Raft gets a heartbeat in the snapshot's place, so that it judges the
// term, knows the leader, and has done what came before. An error is why Raft must
// be started anew.
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
		err = fmt.Errorf("the leader's snapshot ends with entry %d of term %d, the log has another there (hashicorp/raft issue 697): what follows was not committed and is deleted",
			request.LastLogIndex, request.LastLogTerm)
		i.refuse(rpc, answer, err)
		return i.cut(request.LastLogIndex, err)
	default:
		i.put(rpc)
	}
	return nil
}

// holds reports whether everything up to that entry is here, or another entry in
// its place.
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

// cut deletes the log from first on, and gives why.
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

// ahead makes a message with entries that Raft can judge when this node is further
// than the leader believes; else it gives the message as it is. After a snapshot
// that was answered as taken the leader goes on behind it, where this log may
// begin later. Raft would refuse that, because it looks for the entry before in the
// log alone, and the leader would send the snapshot again, for ever (issue 697).
// What is applied here is committed, so the leader of this term or a later one has
// the same: those entries need not be compared, or come again.
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

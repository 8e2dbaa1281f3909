// Package raftfix holds what keeps the known faults of hashicorp/raft v1.7.3 off
// this program, one decorator each, named after what it holds off:
//
//	Answers              an answer of another member than was asked is taken for its own
//	Pipelines            issue 612: a peer gets no entries for as long as the leader leads
//	Transfers            issue 696: a handover that timed out has a leader refuse every entry
//	Inbox, votes.go      a member without a configuration votes for whoever asks
//	Inbox, heartbeats.go issue 695: a heartbeat changes the term beside Raft's own goroutine
//	Inbox, snapshots.go  issue 697: a snapshot that comes late erases acknowledged entries
//
// Each decorator has a test that fails without it. The package knows nothing of
// the cluster: what a decorator needs to know is handed in.
package raftfix

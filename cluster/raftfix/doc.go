// Package raftfix avoids the known faults of hashicorp/raft v1.7.3, with one decorator for each:
//
//	Answers              an answer is counted for another member than sent it
//	Pipelines            issue 612: a peer gets no entries for as long as the leader leads
//	Transfers            issue 696: a transfer that timed out makes a leader refuse every entry
//	Inbox, admit.go      every sender is believed; a member without a configuration votes for any
//	Inbox, heartbeats.go issue 695: a heartbeat changes the term beside Raft's own goroutine
//	Inbox, snapshots.go  issue 697: a late snapshot erases acknowledged entries
//
// Each decorator has a test that fails without it. The package does not depend on the cluster: its
// callers pass in what a decorator needs.
package raftfix

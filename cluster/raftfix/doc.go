// Package raftfix holds what keeps the known faults of hashicorp/raft v1.7.3 off
// this program, one decorator each, named after what it holds off:
//
//	Answers    an answer of another member than was asked is taken for its own
//
// Each decorator has a test that fails without it. The package knows nothing of
// the cluster: what a decorator needs to know is handed in.
package raftfix

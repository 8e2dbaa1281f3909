// Package clustertest runs a whole cluster in one process and in memory:
// hashicorp/raft's in-memory transport, production's storage over stores in memory,
// and peer calls that are function calls, with partitions, lost answers, crashes and wiped disks.
// It is meant for testing/synctest, where fake minutes take real milliseconds:
//
//	synctest.Test(t, func(t *testing.T) {
//		c := clustertest.New(t, 3)
//		defer c.Close()
//		...
//	})
//
// Close checks the same invariants in every test: equal state at equal index, one
// leader per term, no acknowledged write lost, every node stopped without an
// error. synctest checks that no goroutine is left.
package clustertest

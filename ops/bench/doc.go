// Package bench measures Bivouac against Nomad alone, in the same run on the
// same real Nomad, so that a slow machine slows both. `make bench` runs it; its
// tests skip otherwise. RESULTS.md keeps what it printed.
//
// The folder peers, a module of its own, measures it beside etcd, rqlite and
// hashicorp/raft alone: real clusters of three processes on one disk, each write
// synced on a majority, all driven by the same closed loop, in turn, those whose
// turn it is not stopped with SIGSTOP. `make bench` runs that, too. To run a part:
//
//	go run -C ops/bench/peers . -help
//	go run -C ops/bench/peers . -rows write,read-follower -clients 64 -repeats 2
//
// And to tune Bivouac, with only the limit, or a Bivouac built before, beside it:
//
//	go run -C ops/bench/peers . -rows write -clients 64 -systems "raft + bare HTTP"
//	go run -C ops/bench/peers . -rows write -clients 64 -systems none -base /tmp/bivouac-before
package bench

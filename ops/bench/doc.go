// Package bench compares Bivouac with Nomad alone, in the same run on the same Nomad, so that a
// slow machine slows both. `make bench` runs it; its tests skip otherwise. RESULTS.md has the
// results.
//
// The folder peers, a module of its own, compares Bivouac with etcd, rqlite and hashicorp/raft
// alone. All are clusters of three processes on one disk that sync each write on a majority.
// The same closed loop loads them in turn; the others are stopped with SIGSTOP meanwhile. `make
// bench` runs that, too. To run a part:
//
//	go run -C ops/bench/peers . -help
//	go run -C ops/bench/peers . -rows write,read-follower -clients 64 -repeats 2
//
// To tune Bivouac, compare it with the limit only, or with an earlier build:
//
//	go run -C ops/bench/peers . -rows write -clients 64 -systems "raft + bare HTTP"
//	go run -C ops/bench/peers . -rows write -clients 64 -systems none -base /tmp/bivouac-before
package bench

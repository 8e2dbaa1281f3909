// Package nemesis does to a fleet what a bad week does to a cluster: it kills,
// pauses and restarts nodes, cuts, slows and thins out the network between
// them, moves their clocks, holds Raft's messages back and sends them twice, and
// empties, puts back, clones and replaces the disks of a minority, several at
// once, by a schedule that a seed decides.
//
// A disk counts as touched until its node is a voter again that has all that was
// committed, under whatever name and id. Never more than a minority is touched,
// so that no acknowledged write may be lost. A node may refuse a disk that was
// put back or cloned, or be refused with it; the nemesis then empties that disk,
// as ops/runbooks/disk.md says.
//
// Every node lives in a network namespace of its own. Its only interface is a
// tun device whose other end is this process: Network is the router between
// them, and so the place where a packet is dropped, or delayed. The kernel's
// netem would do as well where it is built in; here it need not be.
//
// The programs carry nothing for this. What must differ in a drill's build (the
// clock that can be moved, a mutation that a drill has to notice) is written
// over the sources by `go build -overlay` (Overlay), so that the tree stays as
// it is.
//
// Linux and root are needed; Need says whether they are there.
package nemesis

// Package nemesis does to a fleet what a bad week does to a cluster: it kills,
// pauses and restarts nodes, cuts, slows and thins out the network between
// them, moves their clocks, holds Raft's messages back and sends them twice, and
// empties, puts back, clones and replaces the disks of a minority, several at
// once, by a schedule that a seed decides.
//
// A disk counts as touched until its node is a voter again that has all that was
// committed, under whatever name and id. Never more than a minority is touched,
// so that no acknowledged write may be lost. A node must refuse a disk that was put
// back or cloned, with words: a copy by itself, an older state or a second process
// because another member objects. The nemesis then does what ops/runbooks/disk.md
// has an operator do: it empties the disk, puts the newest directory back, or adopts
// a copy that is the newest. It also adopts what must not be adopted, while all
// others run: they must object, however often it is tried.
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

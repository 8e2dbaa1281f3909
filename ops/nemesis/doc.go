// Package nemesis does to a fleet what a bad week does to a cluster: it kills,
// pauses and restarts nodes, cuts, slows and thins out the network between
// them, and moves their clocks, several at once, by a schedule that a seed
// decides.
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

// Package chaos injects faults into a test cluster on a schedule that a seed decides. It
// kills, pauses and restarts nodes; it cuts, delays and drops their network traffic; it moves
// their clocks; it delays and repeats Raft's messages; and it empties, rolls back, clones and
// replaces the disks of a minority, several at once. Strangers send forged messages meanwhile. With
// StackKinds it kills and pauses nodes, Nomad and Vault.
//
// A disk counts as touched until its node is a voter again that has everything committed, under
// whatever name and id. Never more than a minority is touched, so no acknowledged write may be
// lost. A node must refuse a disk that was rolled back or cloned, and say why: a copy by
// itself, an older state or a second process because another member objects. The nemesis then
// does what ops/runbooks/disk.md tells an operator to do: it empties the disk, restores the
// newest directory, or adopts a copy that is the newest. While all others run, it also adopts
// what must not be adopted: they must object at every attempt.
//
// Every node has its own network namespace. Its only interface is a tun device whose other end
// is this process. Network is the router between them, so it can drop or delay any packet. The
// kernel's netem could do the same, but it is not in every kernel.
//
// The programs contain no code for this. `go build -overlay` (Overlay) changes the sources for
// a drill's build (the movable clock, a mutation that a drill has to detect), so the tree stays
// unchanged.
//
// It needs Linux, and root for a Network; Need checks that.
package chaos

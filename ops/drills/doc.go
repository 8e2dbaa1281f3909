// Command drills runs the end-to-end tests side by side (`make e2e`, `make drills`). It compiles
// the test binary and the programs once, asks the binary for its tests, and hands the next test to
// a process of its own whenever the machine has room for it. Every process starts its own Nomad,
// Vault and nodes, so no test sees what another one kills or freezes.
//
// How much runs at once follows from times.txt: the seconds and the CPU seconds that each test
// took. Tests that mostly wait share the machine; one that computes all the time runs alone.
// Raft's timers depend on it (ops/decisions/0018). A test that is not in the file runs too.
package main

// Package local runs the real stack on one machine: Vault, Nomad, HAProxy and three Bivouac
// nodes, as ordinary processes on the loopback interface. The tests start single parts of it
// (StartVault, StartNomad); `make stack` starts all (Up, Down).
//
// Everything it starts keeps its data, its log and its configuration below the given Dir. Close
// leaves no task, container or mount, also after a Kill.
//
// It knows programs only by their command lines and HTTP APIs. Of Bivouac it uses nothing but
// the files in deploy. The programs are set up for development and tests: no TLS, unseal keys
// on disk.
package local

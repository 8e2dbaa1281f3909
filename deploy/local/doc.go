// Package local runs the real stack on one machine: Vault, Nomad, HAProxy and
// three Bivouac nodes, as ordinary processes on the loopback interface. The
// tests start single parts of it (StartVault, StartNomad); `make stack` starts
// all (Up, Down).
//
// It promises that whatever it starts has its data, its log and its
// configuration below the Dir it was given and nowhere else, and that Close
// leaves nothing running, also after a Kill: no task, no container, no mount.
//
// It knows programs by their command lines and HTTP APIs only and imports
// nothing of Bivouac but the files in deploy. The programs are for development
// and tests: no TLS, unseal keys on disk.
package local

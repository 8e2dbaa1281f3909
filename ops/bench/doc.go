// Package bench measures Bivouac against Nomad alone, in the same run on the
// same real Nomad, so that a slow machine slows both. `make bench` runs it; its
// tests skip otherwise. RESULTS.md keeps what it printed.
package bench

// Package fleet starts what drills and benchmarks need: a real Vault, a real
// Nomad and three `bivouac server` processes on the loopback interface, and
// speaks to them as users and operators do, over HTTP. Everything ends with the
// test that started it.
package fleet
